// manifest, the reader: every field is checked before it is used.
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "zero/durable.h"
#include "zero/manifest.h"

enum { MAX_UNITS = 10000, MAX_FILES = 100000 };  // also what four and five digits in names can tell apart
static const int64_t MAX_MANIFEST_BYTES = (int64_t)1 << 30;
static const int64_t MAX_LEN = (int64_t)1 << 48;  // elements of a unit
static const int64_t MAX_INT = (int64_t)1 << 53;

// ---- members of an object, by name and type ----

static Status get(const cJSON *object, const char *name, int type, const cJSON **item) {
    *item = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!*item || !((*item)->type & type))
        return fail("\"%s\" is missing or is not %s", name,
                    type == cJSON_Number   ? "a number"
                    : type == cJSON_String ? "a string"
                    : type == cJSON_Array  ? "a list"
                    : type == cJSON_Object ? "an object"
                                           : "true or false");
    return OK;
}

static Status as_int(const cJSON *item, const char *name, int64_t min, int64_t max, int64_t *value) {
    double number = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    if (!(number >= (double)min && number <= (double)max) || number != floor(number))
        return fail("\"%s\" is not a whole number between %lld and %lld", name, (long long)min, (long long)max);
    *value = (int64_t)number;
    return OK;
}

static Status get_int(const cJSON *object, const char *name, int64_t min, int64_t max, int64_t *value) {
    const cJSON *item;
    TRY(get(object, name, cJSON_Number, &item));
    return as_int(item, name, min, max, value);
}

static Status get_int32(const cJSON *object, const char *name, int min, int max, int *value) {
    int64_t wide;
    TRY(get_int(object, name, min, max, &wide));
    *value = (int)wide;
    return OK;
}

static Status get_double(const cJSON *object, const char *name, double *value) {
    const cJSON *item;
    TRY(get(object, name, cJSON_Number, &item));
    *value = item->valuedouble;
    if (!isfinite(*value))
        return fail("\"%s\" is not finite", name);
    return OK;
}

static Status get_bool(const cJSON *object, const char *name, bool *value) {
    const cJSON *item;
    TRY(get(object, name, cJSON_True | cJSON_False, &item));
    *value = cJSON_IsTrue(item);
    return OK;
}

static Status get_text(const cJSON *object, const char *name, const char **text) {
    const cJSON *item;
    TRY(get(object, name, cJSON_String, &item));
    *text = item->valuestring;
    return OK;
}

// A name that must be the one we would give: it is never used as a path.
static Status expect_text(const cJSON *object, const char *name, const char *expected) {
    const char *text;
    TRY(get_text(object, name, &text));
    if (strcmp(text, expected) != 0)
        return fail("\"%s\" is \"%.100s\", expected \"%s\"", name, text, expected);
    return OK;
}

static bool is_hex(const char *text, size_t digits) {
    return strlen(text) == digits && strspn(text, "0123456789abcdef") == digits;
}

static Status as_hash(const cJSON *item, const char *name, uint64_t *hash) {
    if (!cJSON_IsString(item) || !is_hex(item->valuestring, 16))
        return fail("\"%s\" is not 16 hexadecimal digits", name);
    *hash = strtoull(item->valuestring, NULL, 16);
    return OK;
}

static Status get_hash(const cJSON *object, const char *name, uint64_t *hash) {
    return as_hash(cJSON_GetObjectItemCaseSensitive(object, name), name, hash);
}

static Status get_list(const cJSON *object, const char *name, int64_t min, int64_t max, const cJSON **list, int *len) {
    TRY(get(object, name, cJSON_Array, list));
    *len = cJSON_GetArraySize(*list);
    if (*len < min || *len > max)
        return fail("\"%s\" has %d entries, expected %lld to %lld", name, *len, (long long)min, (long long)max);
    return OK;
}

static Status get_kind(const char *name, StateKind *kind) {
    for (*kind = 0; *kind < STATE_KINDS; (*kind)++)
        if (strcmp(name, state_kind_names[*kind]) == 0)
            return OK;
    return fail("\"%.40s\" is not a kind of state", name);
}

// ---- the parts of a manifest ----

static Status read_window(const cJSON *json, const char *name, SpikeWindow *window) {
    const cJSON *list, *item;
    TRY(get_list(json, name, 0, SPIKE_WINDOW, &list, &window->n));
    int i = 0;
    cJSON_ArrayForEach(item, list) {
        if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble))
            return fail("\"%s\" holds what is not a finite number", name);
        window->values[i++] = item->valuedouble;
    }
    return OK;
}

static Status read_run(const cJSON *json, RunState *run) {
    const cJSON *scale;
    TRY(get_int(json, "step", 0, MAX_INT, &run->step));
    TRY(get_int(json, "updates", 0, run->step, &run->updates));
    TRY(get_int(json, "samples", 0, MAX_INT, &run->samples));
    TRY(get_int(json, "skipped", 0, run->step, &run->skipped));
    TRY(get_int(json, "skipped_in_a_row", 0, run->skipped, &run->skipped_in_a_row));
    TRY(get_int(json, "log_bytes", 0, MAX_INT, &run->log_bytes));
    TRY(get(json, "loss_scale", cJSON_Object, &scale));
    TRY(get_double(scale, "scale", &run->scale.scale));
    TRY(get_bool(scale, "dynamic", &run->scale.dynamic));
    TRY(get_int(scale, "iteration", 0, MAX_INT, &run->scale.iteration));
    TRY(get_int(scale, "last_overflow", -1, MAX_INT, &run->scale.last_overflow));
    TRY(get_int32(scale, "hysteresis_left", -(1 << 30), 1 << 30, &run->scale.hysteresis_left));
    TRY(get_int32(scale, "window", 1, 1 << 30, &run->scale.window));
    TRY(get_int32(scale, "hysteresis", 0, 1 << 30, &run->scale.hysteresis));
    TRY(get_double(scale, "factor", &run->scale.factor));
    TRY(get_double(scale, "minimum", &run->scale.minimum));
    TRY(read_window(json, "losses", &run->losses));
    TRY(read_window(json, "norms", &run->norms));
    if (run->scale.scale <= 0.0)
        return fail("\"scale\" is not positive");
    return OK;
}

static Status read_tensor(const cJSON *json, int64_t first, TensorSpec *tensor) {
    const char *name;
    TRY(get_text(json, "name", &name));
    size_t name_len = strlen(name);
    if (name_len == 0 || name_len >= sizeof tensor->name)
        return fail("the tensor name \"%.60s\" is empty or too long", name);
    strcpy(tensor->name, name);
    const cJSON *shape, *item;
    TRY(get_list(json, "shape", 1, 2, &shape, &tensor->n_dims));
    tensor->len = 1;
    tensor->shape[0] = tensor->shape[1] = 1;
    int i = 0;
    cJSON_ArrayForEach(item, shape) {
        TRY(as_int(item, "shape", 1, MAX_LEN, &tensor->shape[i]));
        if (__builtin_mul_overflow(tensor->len, tensor->shape[i++], &tensor->len) || tensor->len > MAX_LEN)
            return fail("the shape of tensor %s is too large", name);
    }
    TRY(get_int(json, "offset", first, MAX_LEN, &tensor->offset));
    if (tensor->offset % TENSOR_ALIGN != 0)
        return fail("tensor %s does not start at a multiple of %d elements", name, TENSOR_ALIGN);
    return OK;
}

static Status read_unit(const cJSON *json, UnitSpec *unit) {
    const cJSON *tensors, *item;
    TRY(get_int(json, "len", 1, MAX_LEN, &unit->len));
    TRY(get_list(json, "tensors", 1, MAX_TENSORS, &tensors, &unit->n_tensors));
    int64_t end = 0;
    int t = 0;
    cJSON_ArrayForEach(item, tensors) {
        TensorSpec *tensor = &unit->tensors[t++];
        TRY(read_tensor(item, end, tensor));
        end = tensor->offset + tensor->len;
    }
    if (unit->len % TENSOR_ALIGN != 0 || unit->len < end)
        return fail("a unit of %lld elements cannot hold its tensors", (long long)unit->len);
    return OK;
}

static Status read_layout(const cJSON *json, Layout *layout) {
    int n_ranks, group, n_units;
    bool tied;
    const cJSON *list, *item;
    TRY(get_int32(json, "ranks", 1, INT32_MAX, &n_ranks));
    TRY(get_int32(json, "shard_group", 1, n_ranks < MAX_FILES ? n_ranks : MAX_FILES, &group));
    TRY(get_bool(json, "tied", &tied));
    TRY(get_list(json, "units", 2, MAX_UNITS, &list, &n_units));
    UnitSpec *units = calloc((size_t)n_units, sizeof *units);
    if (!units)
        return fail("no memory for %d units", n_units);
    Status status = OK;
    int u = 0;
    cJSON_ArrayForEach(item, list) {
        TRY_GOTO(read_unit(item, &units[u++]), done);
    }
    status = layout_from_units(units, n_units, tied, n_ranks, group, 0, layout);
done:
    free(units);
    return status == OK ? OK : FAILED;
}

static Status read_datasets(const cJSON *json, Manifest *manifest) {
    const Layout *layout = &manifest->layout;
    const cJSON *list, *item;
    bool has[STATE_KINDS] = {false};
    StateKind kind;
    const char *name;
    int len;
    TRY(get_list(json, "kinds", 1, STATE_KINDS, &list, &len));
    cJSON_ArrayForEach(item, list) {
        TRY(get_kind(cJSON_IsString(item) ? item->valuestring : "", &kind));
        has[kind] = true;
    }
    int n_kinds = 0;
    for (kind = 0; kind < STATE_KINDS; kind++)
        n_kinds += has[kind];
    TRY(get_list(json, "datasets", (int64_t)layout->n_units * n_kinds, (int64_t)layout->n_units * n_kinds, &list,
                 &len));
    manifest->datasets = calloc((size_t)len, sizeof *manifest->datasets);
    bool *seen = calloc((size_t)layout->n_units * STATE_KINDS, sizeof *seen);
    Status status = manifest->datasets && seen ? OK : fail("no memory for %d datasets", len);
    int64_t end = 0;
    for (item = status == OK ? list->child : NULL; item; item = item->next) {
        StateDataset *dataset = &manifest->datasets[manifest->n_datasets++];
        TRY_GOTO(get_int32(item, "unit", 0, layout->n_units - 1, &dataset->unit), done);
        TRY_GOTO(get_text(item, "kind", &name), done);
        TRY_GOTO(get_kind(name, &dataset->kind), done);
        TRY_GOTO(get_int(item, "offset", end, MAX_INT, &dataset->offset), done);
        dataset->len = layout->units[dataset->unit].shard_len;
        end = dataset->offset + dataset->len * (int64_t)sizeof(float);
        bool *again = &seen[dataset->unit * STATE_KINDS + (int)dataset->kind];
        if (*again || !has[dataset->kind])
            TRY_GOTO(fail("dataset /unit_%04d/%s is there twice or not among \"kinds\"", dataset->unit, name), done);
        *again = true;
    }
    manifest_number_pieces(manifest);
done:
    free(seen);
    return status;
}

static Status read_file(const cJSON *json, Manifest *manifest, int f) {
    RankFile *file = &manifest->files[f];
    const StateDataset *last = &manifest->datasets[manifest->n_datasets - 1];
    char name[FILE_NAME_BYTES];
    manifest_file_name(manifest, f, name);
    TRY(expect_text(json, "name", name));
    TRY(get_int(json, "bytes", last->offset + last->len * (int64_t)sizeof(float), MAX_INT, &file->bytes));
    TRY(get_hash(json, "hash", &file->hash));
    const cJSON *lists, *list, *item;
    int len;
    TRY(get_list(json, "pieces", manifest->n_datasets, manifest->n_datasets, &lists, &len));
    int d = 0;
    cJSON_ArrayForEach(list, lists) {  // all lengths first: they bound the memory that is asked for
        if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != manifest->datasets[d].n_pieces)
            return fail("\"pieces\" of %s do not have %lld hashes for dataset %d", name,
                        (long long)manifest->datasets[d].n_pieces, d);
        d++;
    }
    file->pieces = calloc((size_t)manifest->n_pieces, sizeof *file->pieces);
    if (!file->pieces)
        return fail("no memory for %lld hashes", (long long)manifest->n_pieces);
    uint64_t *hash = file->pieces;
    cJSON_ArrayForEach(list, lists) {
        cJSON_ArrayForEach(item, list) {
            TRY(as_hash(item, "pieces", hash++));
        }
    }
    return OK;
}

static Status read_files(const cJSON *json, Manifest *manifest) {
    const cJSON *list, *item;
    int len, f = 0;
    TRY(get_list(json, "files", manifest->layout.group, manifest->layout.group, &list, &len));
    manifest->files = calloc((size_t)len, sizeof *manifest->files);
    if (!manifest->files)
        return fail("no memory for %d files", len);
    cJSON_ArrayForEach(item, list) {
        TRY(read_file(item, manifest, f++));
    }
    if (!cJSON_HasObjectItem(json, "index"))
        return OK;
    TRY(get(json, "index", cJSON_Object, &item));
    TRY(expect_text(item, "name", "index.h5"));
    TRY(get_int(item, "bytes", 1, MAX_INT, &manifest->index_bytes));
    return get_hash(item, "hash", &manifest->index_hash);
}

static Status read_dtype(const cJSON *json, Dtype *dtype) {
    const char *text;
    TRY(get_text(json, "dtype", &text));
    for (*dtype = DTYPE_FP32; *dtype <= DTYPE_FP16; (*dtype)++)
        if (strcmp(text, dtype_name(*dtype)) == 0)
            return OK;
    return fail("\"dtype\" is \"%.20s\", which is not one of fp32, bf16, fp16", text);
}

static Status read_manifest(cJSON *json, Manifest *manifest) {
    const cJSON *run, *config;
    const char *text;
    int version;
    TRY(expect_text(json, "format", "zero.c checkpoint"));
    TRY(get_int32(json, "version", 0, INT32_MAX, &version));
    if (version != MANIFEST_VERSION)
        return fail("format version %d; this program reads version %d", version, MANIFEST_VERSION);
    TRY(get_text(json, "uuid", &text));
    if (!is_hex(text, UUID_BYTES - 1))
        return fail("\"uuid\" is not 32 hexadecimal digits");
    strcpy(manifest->uuid, text);
    TRY(get(json, "run", cJSON_Object, &run));
    TRY(read_run(run, &manifest->run));
    TRY(get_text(json, "data", &text));
    manifest->data = strdup(text);
    TRY(get_text(json, "environment", &text));
    manifest->environment = strdup(text);
    if (!manifest->data || !manifest->environment)
        return fail("no memory for the manifest's texts");
    TRY(get_int32(json, "reduce_group", 1, INT32_MAX, &manifest->reduce_group));
    TRY(get_int32(json, "zero_stage", 0, 3, &manifest->zero_stage));
    TRY(read_dtype(json, &manifest->dtype));
    TRY(get(json, "config", cJSON_Object, &config));
    TRY(read_layout(json, &manifest->layout));
    TRY(read_datasets(json, manifest));
    TRY(read_files(json, manifest));
    manifest->config = cJSON_DetachItemFromObjectCaseSensitive(json, "config");
    return OK;
}

static Status check_seal(const char *text, size_t bytes) {
    char seal[MANIFEST_SEAL_BYTES + 1];
    if (bytes < MANIFEST_SEAL_BYTES)
        return fail("the file has only %zu bytes", bytes);
    manifest_seal(text, bytes - MANIFEST_SEAL_BYTES, seal);
    if (memcmp(text + bytes - MANIFEST_SEAL_BYTES, seal, MANIFEST_SEAL_BYTES) != 0)
        return fail("damaged: the hash at its end is not that of its %zu bytes (%.16s)", bytes, seal);
    return OK;
}

Status manifest_read(Manifest *manifest, const char *directory) {
    *manifest = (Manifest){0};
    char path[PATH_BYTES], *text;
    size_t bytes;
    TRY(durable_join(path, directory, "manifest.json"));
    TRY(durable_read_file(path, MAX_MANIFEST_BYTES, &text, &bytes));
    cJSON *json = NULL;
    Status status = check_seal(text, bytes);
    if (status == OK) {
        json = cJSON_ParseWithLength(text, bytes);
        status = json ? read_manifest(json, manifest) : fail("it is not JSON");
    }
    cJSON_Delete(json);
    free(text);
    if (status != OK) {
        manifest_free(manifest);
        return fail_context(status, "%s", path);
    }
    return OK;
}
