// safetensors: Hugging Face's file format of weights, read and written as streams of fp32 values.
//
//     8 bytes   length of the header, little-endian
//     header    JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …}
//     data      the tensors, row by row, without holes; offsets count from here
//
// A model is a directory with model.safetensors, or with model.safetensors.index.json, whose "weight_map" says in which
// of several files each tensor is (https://huggingface.co/docs/safetensors). Files are hostile until checked: opening
// one checks all of its header, so that reading a tensor cannot leave the file.
#ifndef ZERO_SAFETENSORS_H
#define ZERO_SAFETENSORS_H

#include <stdbool.h>

#include "llm/dtype.h"
#include "zero/durable.h"

enum { SAFETENSORS_MAX_DIMS = 8 };

// ---- reading ----

typedef struct SafetensorsTensor {
    char *name;
    const char *dtype;  // as the format names it: "F32", "BF16", "I64", …
    int n_dims;         // 0: a scalar
    int64_t shape[SAFETENSORS_MAX_DIMS];
    int64_t len;     // elements
    int64_t offset;  // bytes from the start of its file
    int64_t bytes;
    int file;
} SafetensorsTensor;

typedef struct SafetensorsFile {
    char path[PATH_BYTES];
    int fd;
    int64_t bytes;
} SafetensorsFile;

typedef struct Safetensors {
    int n_files, n_tensors, room;
    SafetensorsFile *files;
    SafetensorsTensor *tensors;  // sorted by name
    uint64_t hash;               // of all headers: the same where two ranks see the same files
} Safetensors;

// Open the model in `directory`. On failure there is nothing to close; a zeroed one may be closed.
Status safetensors_open(const char *directory, Safetensors *model);
void safetensors_close(Safetensors *model);

const SafetensorsTensor *safetensors_find(const Safetensors *model, const char *name);  // NULL: there is none

// Elements [begin, begin+len) as fp32. F32, BF16 and F16 can be read; other dtypes fail.
Status safetensors_read(const Safetensors *model, const SafetensorsTensor *tensor, int64_t begin, int64_t len,
                        float *values);

// ---- writing ----

typedef struct SafetensorsSpec {
    const char *name;
    int n_dims;
    int64_t shape[2];
} SafetensorsSpec;

typedef struct SafetensorsWriter SafetensorsWriter;

// Make the files of a model in an existing directory: one, or several with an index where one would be longer than
// max_file_bytes. All tensors get the same dtype. `tensors` must outlive the writer.
Status safetensors_create(const char *directory, Dtype dtype, const SafetensorsSpec *tensors, int n_tensors,
                          int64_t max_file_bytes, SafetensorsWriter **writer);
// Write elements [begin, begin+len) of a tensor, rounded to the dtype; in any order, each element once. A finite value
// that the dtype cannot hold (fp16 ends at 65,504) is an error.
Status safetensors_write(SafetensorsWriter *writer, int tensor, int64_t begin, int64_t len, const float *values);
// After the last tensor: sync the files and write the index, if there are several.
Status safetensors_finish(SafetensorsWriter *writer);
void safetensors_writer_close(SafetensorsWriter *writer);  // NULL is fine

#endif
