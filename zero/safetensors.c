// safetensors, the reader: headers and index are checked whole before any tensor is read.
#include "zero/safetensors.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zero/hash.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers go to files as they lie in memory");

enum { LENGTH_BYTES = 8, MAX_FILES = 512 };  // all files are open at once
// A header of this size describes 100,000 tensors; a longer one would be an attempt to use up memory.
static const int64_t MAX_HEADER_BYTES = 16 << 20;
static const int64_t MAX_INT = (int64_t)1 << 53;

static const struct {
    const char *name;
    int bytes;
} dtypes[] = {{"F32", 4}, {"BF16", 2},    {"F16", 2},     {"F64", 8}, {"I64", 8}, {"I32", 4}, {"I16", 2}, {"I8", 1},
              {"U8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"U32", 4}, {"U64", 8}, {"BOOL", 1}};

// ---- one tensor of a header ----

static Status as_int(const cJSON *item, int64_t *value) {
    double x = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    if (!(x >= 0 && x <= (double)MAX_INT) || x != floor(x))
        return fail("a shape or an offset is not a whole number from 0 to 2^53");
    *value = (int64_t)x;
    return OK;
}

static Status read_dtype(const cJSON *item, SafetensorsTensor *tensor) {
    for (size_t i = 0; cJSON_IsString(item) && i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(item->valuestring, dtypes[i].name) == 0) {
            tensor->dtype = dtypes[i].name;
            tensor->bytes = dtypes[i].bytes;
            return OK;
        }
    }
    return fail("the dtype is %.20s, which is not known", cJSON_IsString(item) ? item->valuestring : "missing");
}

// `data` and `data_bytes`: where the file's data begin, and how much there is.
static Status read_tensor(const cJSON *json, int64_t data, int64_t data_bytes, SafetensorsTensor *tensor) {
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(json, "shape"), *item;
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(json, "data_offsets");
    TRY(read_dtype(cJSON_GetObjectItemCaseSensitive(json, "dtype"), tensor));
    if (!cJSON_IsArray(shape) || !cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2)
        return fail("it has no \"shape\" or no \"data_offsets\" of two numbers");
    tensor->len = 1;
    cJSON_ArrayForEach(item, shape) {
        if (tensor->n_dims == SAFETENSORS_MAX_DIMS)
            return fail("it has more than %d dimensions", SAFETENSORS_MAX_DIMS);
        int64_t *size = &tensor->shape[tensor->n_dims++];
        TRY(as_int(item, size));
        if (__builtin_mul_overflow(tensor->len, *size, &tensor->len))
            return fail("its shape is too large");
    }
    if (__builtin_mul_overflow(tensor->len, tensor->bytes, &tensor->bytes))
        return fail("its shape is too large");
    int64_t begin = 0, end = 0;
    TRY(as_int(offsets->child, &begin));
    TRY(as_int(offsets->child->next, &end));
    if (begin > end || end > data_bytes)
        return fail("it would lie at bytes %lld to %lld of the data, of which there are %lld", (long long)begin,
                    (long long)end, (long long)data_bytes);
    if (end - begin != tensor->bytes)
        return fail("it has %lld bytes, but its shape and dtype make %lld", (long long)(end - begin),
                    (long long)tensor->bytes);
    tensor->offset = data + begin;
    return OK;
}

// ---- one file ----

static Status add_tensor(Safetensors *model, SafetensorsTensor **tensor) {
    if (model->n_tensors == model->room) {
        int room = 2 * model->room + 64;
        SafetensorsTensor *more = realloc(model->tensors, (size_t)room * sizeof *more);
        if (!more)
            return fail("no memory for %d tensors", room);
        model->tensors = more;
        model->room = room;
    }
    *tensor = &model->tensors[model->n_tensors++];
    **tensor = (SafetensorsTensor){0};
    return OK;
}

static int by_offset(const void *a, const void *b) {
    const SafetensorsTensor *x = a, *y = b;
    int order = (x->offset > y->offset) - (x->offset < y->offset);
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);  // an empty tensor before its neighbour
}

static Status read_header(Safetensors *model, int f, const cJSON *json, int64_t data) {
    const SafetensorsFile *file = &model->files[f];
    int first = model->n_tensors;
    if (!cJSON_IsObject(json))
        return fail("its header is not JSON");
    for (const cJSON *item = json->child; item; item = item->next) {
        if (strcmp(item->string, "__metadata__") == 0)
            continue;
        SafetensorsTensor *tensor = NULL;
        TRY(add_tensor(model, &tensor));
        tensor->file = f;
        tensor->name = strdup(item->string);
        if (!tensor->name)
            return fail("no memory for its header");
        Status status = read_tensor(item, data, file->bytes - data, tensor);
        if (status != OK)
            return fail_context(status, "tensor \"%.100s\"", tensor->name);
    }
    int n = model->n_tensors - first;
    if (n > 0)
        qsort(model->tensors + first, (size_t)n, sizeof *model->tensors, by_offset);
    int64_t end = data;
    for (int i = first; i < model->n_tensors; i++) {
        if (model->tensors[i].offset != end)
            return fail("tensor \"%.100s\" begins at byte %lld, but the one before it ends at byte %lld",
                        model->tensors[i].name, (long long)model->tensors[i].offset, (long long)end);
        end += model->tensors[i].bytes;
    }
    if (end != file->bytes)
        return fail("its tensors end at byte %lld, but the file has %lld", (long long)end, (long long)file->bytes);
    return OK;
}

static Status read_file(Safetensors *model, int f) {
    SafetensorsFile *file = &model->files[f];
    unsigned char length[LENGTH_BYTES];
    if (file->bytes < LENGTH_BYTES)
        return fail("it has only %lld bytes: not a safetensors file", (long long)file->bytes);
    TRY(durable_read_at(file->fd, file->path, length, sizeof length, 0));
    uint64_t bytes;
    memcpy(&bytes, length, sizeof bytes);
    if (bytes > (uint64_t)MAX_HEADER_BYTES || bytes > (uint64_t)(file->bytes - LENGTH_BYTES))
        return fail("its header would have %llu bytes, but the file has %lld (and %lld is the most that is read)",
                    (unsigned long long)bytes, (long long)file->bytes, (long long)MAX_HEADER_BYTES);
    char *header = malloc((size_t)bytes + 1);
    if (!header)
        return fail("no memory for its header of %llu bytes", (unsigned long long)bytes);
    header[bytes] = '\0';
    Status status = durable_read_at(file->fd, file->path, header, (size_t)bytes, LENGTH_BYTES);
    if (status == OK) {
        model->hash = hash_bytes(header, (size_t)bytes, model->hash);
        cJSON *json = cJSON_ParseWithLength(header, (size_t)bytes);
        status = read_header(model, f, json, LENGTH_BYTES + (int64_t)bytes);
        cJSON_Delete(json);
    }
    free(header);
    return status;
}

static Status open_file(Safetensors *model, const char *directory, const char *name) {
    if (model->n_files == MAX_FILES)
        return fail("%s: the model has more than %d files", directory, MAX_FILES);
    SafetensorsFile *more = realloc(model->files, (size_t)(model->n_files + 1) * sizeof *more);
    if (!more)
        return fail("no memory to open %s/%s", directory, name);
    model->files = more;
    SafetensorsFile *file = &more[model->n_files];
    TRY(durable_join(file->path, directory, name));
    TRY(durable_open(file->path, &file->fd, &file->bytes));
    model->n_files++;
    Status status = read_file(model, model->n_files - 1);
    return status == OK ? OK : fail_context(status, "%s", file->path);
}

static const char *file_name(const Safetensors *model, int f) {
    return strrchr(model->files[f].path, '/') + 1;
}

// ---- several files ----

// A name in the model's own directory: an index must not lead anywhere else.
static bool is_plain_name(const char *name) {
    size_t len = strlen(name);
    return len > 0 && len < 256 && name[0] != '.' && !strchr(name, '/');
}

static Status open_mapped(Safetensors *model, const char *directory, const cJSON *map) {
    if (!cJSON_IsObject(map) || !map->child)
        return fail("it has no \"weight_map\"");
    for (const cJSON *item = map->child; item; item = item->next) {
        if (!cJSON_IsString(item) || !is_plain_name(item->valuestring))
            return fail("tensor \"%.100s\" is not in a file of this directory: \"%.100s\"", item->string,
                        cJSON_IsString(item) ? item->valuestring : "not a name");
        bool known = false;
        for (int f = 0; f < model->n_files && !known; f++)
            known = strcmp(item->valuestring, file_name(model, f)) == 0;
        if (!known)
            TRY(open_file(model, directory, item->valuestring));
    }
    return OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const SafetensorsTensor *)a)->name, ((const SafetensorsTensor *)b)->name);
}

static Status sort_by_name(Safetensors *model) {
    if (model->n_tensors > 0)
        qsort(model->tensors, (size_t)model->n_tensors, sizeof *model->tensors, by_name);
    for (int i = 1; i < model->n_tensors; i++)
        if (strcmp(model->tensors[i - 1].name, model->tensors[i].name) == 0)
            return fail("%s: tensor \"%.100s\" is there twice", model->files[model->tensors[i].file].path,
                        model->tensors[i].name);
    return OK;
}

static Status check_map(const Safetensors *model, const cJSON *map) {
    for (const cJSON *item = map->child; item; item = item->next) {
        const SafetensorsTensor *tensor = safetensors_find(model, item->string);
        if (!tensor || strcmp(file_name(model, tensor->file), item->valuestring) != 0)
            return fail("tensor \"%.100s\" is not in %s, where it should be", item->string, item->valuestring);
    }
    return OK;
}

static Status open_index(Safetensors *model, const char *directory, const char *path) {
    char *text;
    size_t bytes;
    TRY(durable_read_file(path, MAX_HEADER_BYTES, &text, &bytes));
    cJSON *json = cJSON_ParseWithLength(text, bytes);
    free(text);
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(json, "weight_map");
    Status status = json ? open_mapped(model, directory, map) : fail("it is not JSON");
    if (status == OK)
        status = sort_by_name(model);
    if (status == OK)
        status = check_map(model, map);
    cJSON_Delete(json);
    return status == OK ? OK : fail_context(status, "%s", path);
}

// ---- public ----

Status safetensors_open(const char *directory, Safetensors *model) {
    char single[PATH_BYTES], index[PATH_BYTES];
    *model = (Safetensors){0};
    TRY(durable_join(single, directory, "model.safetensors"));
    TRY(durable_join(index, directory, "model.safetensors.index.json"));
    Status status;
    if (access(single, F_OK) == 0) {
        status = open_file(model, directory, "model.safetensors");
        if (status == OK)
            status = sort_by_name(model);
    } else if (access(index, F_OK) == 0) {
        status = open_index(model, directory, index);
    } else {
        status = fail(
            "%s has no model.safetensors and no model.safetensors.index.json; a pytorch_model.bin is converted "
            "by save_pretrained(…, safe_serialization=True) of transformers",
            directory);
    }
    if (status != OK)
        safetensors_close(model);
    return status;
}

void safetensors_close(Safetensors *model) {
    for (int i = 0; i < model->n_tensors; i++)
        free(model->tensors[i].name);
    for (int f = 0; f < model->n_files; f++)
        close(model->files[f].fd);
    free(model->tensors);
    free(model->files);
    *model = (Safetensors){0};
}

const SafetensorsTensor *safetensors_find(const Safetensors *model, const char *name) {
    SafetensorsTensor key = {.name = (char *)name};
    return model->n_tensors > 0
               ? bsearch(&key, model->tensors, (size_t)model->n_tensors, sizeof *model->tensors, by_name)
               : NULL;
}

Status safetensors_read(const Safetensors *model, const SafetensorsTensor *tensor, int64_t begin, int64_t len,
                        float *values) {
    const SafetensorsFile *file = &model->files[tensor->file];
    bool fp32 = strcmp(tensor->dtype, "F32") == 0, bf16 = strcmp(tensor->dtype, "BF16") == 0;
    if (!fp32 && !bf16 && strcmp(tensor->dtype, "F16") != 0)
        return fail("%s: tensor %s is of dtype %s; only F32, BF16 and F16 are supported", file->path, tensor->name,
                    tensor->dtype);
    size_t element = fp32 ? 4 : 2;
    if (begin < 0 || len < 0 || begin > tensor->len || len > tensor->len - begin)
        return fail("%s: elements %lld to %lld of tensor %s do not exist", file->path, (long long)begin,
                    (long long)(begin + len), tensor->name);
    // Halves are read into the second half of `values` and widened in place from the front: element i is read before
    // anything is written over it.
    char *raw = (char *)values + (size_t)len * (sizeof *values - element);
    TRY(durable_read_at(file->fd, file->path, raw, (size_t)len * element, tensor->offset + begin * (int64_t)element));
    for (int64_t i = 0; i < len && !fp32; i++) {
        uint16_t half;
        memcpy(&half, raw + 2 * i, sizeof half);
        float value = bf16 ? bf16_to_fp32(half) : fp16_to_fp32(half);
        memcpy(&values[i], &value, sizeof value);
    }
    return OK;
}
