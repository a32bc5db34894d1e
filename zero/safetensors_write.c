// safetensors, the writer: all headers first, then each value goes to its final place.
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zero/safetensors.h"

enum { BUFFER_LEN = 1 << 16 };  // values that are rounded at a time

typedef struct OutputFile {
    char path[PATH_BYTES];
    int fd;
    int first, end;  // its tensors
    int64_t bytes;   // of data
} OutputFile;

typedef struct Place {
    int file;
    int64_t len;     // elements
    int64_t offset;  // bytes from the start of the data, then of the file
} Place;

struct SafetensorsWriter {
    char directory[PATH_BYTES];
    Dtype dtype;
    const SafetensorsSpec *tensors;
    int n_tensors, n_files;
    Place *places;      // (n_tensors)
    OutputFile *files;  // (n_files)
    uint16_t *buffer;   // (BUFFER_LEN)
};

// ---- which tensor goes where ----

static Status place(SafetensorsWriter *w, int64_t max_file_bytes) {
    for (int t = 0; t < w->n_tensors; t++) {
        const SafetensorsSpec *spec = &w->tensors[t];
        int64_t len = spec->shape[0] * (spec->n_dims == 2 ? spec->shape[1] : 1);
        int64_t bytes = len * (int64_t)dtype_bytes(w->dtype);
        if (t == 0 || w->files[w->n_files - 1].bytes > max_file_bytes - bytes) {
            OutputFile *more = realloc(w->files, (size_t)(w->n_files + 1) * sizeof *more);
            if (!more)
                return fail("no memory for the files of %s", w->directory);
            w->files = more;
            more[w->n_files++] = (OutputFile){.fd = -1, .first = t};
        }
        OutputFile *file = &w->files[w->n_files - 1];
        w->places[t] = (Place){.file = w->n_files - 1, .len = len, .offset = file->bytes};
        file->bytes += bytes;
        file->end = t + 1;
    }
    return OK;
}

static void file_name(const SafetensorsWriter *w, int f, char name[64]) {
    if (w->n_files == 1)
        snprintf(name, 64, "model.safetensors");
    else
        snprintf(name, 64, "model-%05d-of-%05d.safetensors", f + 1, w->n_files);
}

// ---- headers ----

static char *header_text(const SafetensorsWriter *w, const OutputFile *file) {
    static const char *const names[] = {[DTYPE_FP32] = "F32", [DTYPE_BF16] = "BF16", [DTYPE_FP16] = "F16"};
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(cJSON_AddObjectToObject(json, "__metadata__"), "format", "pt");  // transformers asks for it
    for (int t = file->first; t < file->end; t++) {
        const SafetensorsSpec *spec = &w->tensors[t];
        double begin = (double)w->places[t].offset;
        double end = begin + (double)w->places[t].len * (double)dtype_bytes(w->dtype);
        cJSON *tensor = cJSON_AddObjectToObject(json, spec->name);
        cJSON_AddStringToObject(tensor, "dtype", names[w->dtype]);
        cJSON *shape = cJSON_AddArrayToObject(tensor, "shape");
        for (int d = 0; d < spec->n_dims; d++)
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)spec->shape[d]));
        cJSON *offsets = cJSON_AddArrayToObject(tensor, "data_offsets");
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber(begin));
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber(end));
    }
    char *text = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    return text;
}

static Status create_file(SafetensorsWriter *w, int f) {
    OutputFile *file = &w->files[f];
    char name[64];
    file_name(w, f, name);
    TRY(durable_join(file->path, w->directory, name));
    file->fd = open(file->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file->fd < 0)
        return fail("cannot create %s: %s", file->path, strerror(errno));
    char *text = header_text(w, file);
    if (!text)
        return fail("no memory for the header of %s", file->path);
    uint64_t bytes = strlen(text), padded = (bytes + 7) / 8 * 8;  // spaces, so that the data are aligned
    Status status = durable_write_at(file->fd, file->path, &padded, sizeof padded, 0);
    if (status == OK)
        status = durable_write_at(file->fd, file->path, text, bytes, sizeof padded);
    if (status == OK)
        status = durable_write_at(file->fd, file->path, "       ", padded - bytes, (int64_t)(sizeof padded + bytes));
    cJSON_free(text);
    for (int t = file->first; t < file->end; t++)
        w->places[t].offset += (int64_t)(sizeof padded + padded);
    return status;
}

static Status write_index(const SafetensorsWriter *w) {
    char path[PATH_BYTES], name[64];
    double total = 0;
    cJSON *json = cJSON_CreateObject(), *metadata = cJSON_AddObjectToObject(json, "metadata");
    cJSON *map = cJSON_AddObjectToObject(json, "weight_map");
    for (int t = 0; t < w->n_tensors; t++) {
        file_name(w, w->places[t].file, name);
        cJSON_AddStringToObject(map, w->tensors[t].name, name);
        total += (double)w->places[t].len * (double)dtype_bytes(w->dtype);
    }
    cJSON_AddNumberToObject(metadata, "total_size", total);
    char *text = cJSON_Print(json);
    cJSON_Delete(json);
    Status status = durable_join(path, w->directory, "model.safetensors.index.json");
    if (status == OK)
        status = text ? durable_write_file(path, text, strlen(text)) : fail("no memory for %s", path);
    cJSON_free(text);
    return status;
}

// ---- public ----

Status safetensors_create(const char *directory, Dtype dtype, const SafetensorsSpec *tensors, int n_tensors,
                          int64_t max_file_bytes, SafetensorsWriter **writer) {
    *writer = NULL;
    SafetensorsWriter *w = calloc(1, sizeof *w);
    if (!w)
        return fail("no memory to write %s", directory);
    *w = (SafetensorsWriter){.dtype = dtype, .tensors = tensors, .n_tensors = n_tensors};
    snprintf(w->directory, sizeof w->directory, "%s", directory);
    w->places = calloc((size_t)n_tensors, sizeof *w->places);
    w->buffer = malloc(BUFFER_LEN * sizeof *w->buffer);
    Status status = w->places && w->buffer ? place(w, max_file_bytes) : fail("no memory to write %s", directory);
    for (int f = 0; f < w->n_files && status == OK; f++)
        status = create_file(w, f);
    if (status == OK)
        *writer = w;
    else
        safetensors_writer_close(w);
    return status;
}

static Status round_values(const SafetensorsWriter *w, const char *name, int64_t len, const float *values) {
    for (int64_t i = 0; i < len; i++) {
        w->buffer[i] = w->dtype == DTYPE_BF16 ? fp32_to_bf16(values[i]) : fp32_to_fp16(values[i]);
        float back = w->dtype == DTYPE_BF16 ? bf16_to_fp32(w->buffer[i]) : fp16_to_fp32(w->buffer[i]);
        if (isinf(back) && !isinf(values[i]))
            return fail("tensor %s: %g is beyond the range of %s; export in another --dtype", name, values[i],
                        dtype_name(w->dtype));
    }
    return OK;
}

Status safetensors_write(SafetensorsWriter *w, int tensor, int64_t begin, int64_t len, const float *values) {
    const OutputFile *file = &w->files[w->places[tensor].file];
    int64_t offset = w->places[tensor].offset, element = (int64_t)dtype_bytes(w->dtype);
    if (w->dtype == DTYPE_FP32)
        return durable_write_at(file->fd, file->path, values, (size_t)(len * element), offset + begin * element);
    for (int64_t i = 0; i < len; i += BUFFER_LEN) {
        int64_t n = len - i < BUFFER_LEN ? len - i : BUFFER_LEN;
        TRY(round_values(w, w->tensors[tensor].name, n, values + i));
        TRY(durable_write_at(file->fd, file->path, w->buffer, (size_t)(n * element), offset + (begin + i) * element));
    }
    return OK;
}

Status safetensors_finish(SafetensorsWriter *w) {
    for (int f = 0; f < w->n_files; f++) {
        OutputFile *file = &w->files[f];
        if (fsync(file->fd) != 0)
            return fail("cannot sync %s: %s", file->path, strerror(errno));
        int fd = file->fd;
        file->fd = -1;
        if (close(fd) != 0)
            return fail("cannot close %s: %s", file->path, strerror(errno));
    }
    return w->n_files > 1 ? write_index(w) : OK;
}

void safetensors_writer_close(SafetensorsWriter *w) {
    if (!w)
        return;
    for (int f = 0; f < w->n_files; f++)
        if (w->files[f].fd >= 0)
            close(w->files[f].fd);
    free(w->files);
    free(w->places);
    free(w->buffer);
    free(w);
}
