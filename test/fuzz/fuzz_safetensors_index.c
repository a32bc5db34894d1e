// model.safetensors.index.json, beside two files that it may name: a.safetensors (tensor "x") and b.safetensors ("y").
#include <string.h>

#include "test/fuzz/fuzz.h"
#include "zero/safetensors.h"

static void write_shard(const char *name, const char *tensor) {
    char text[128];
    uint64_t length = (uint64_t)snprintf(text + 8, sizeof text - 8,
                                         "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", tensor);
    memcpy(text, &length, sizeof length);
    memset(text + 8 + length, 0, 8);
    fuzz_file(name, text, 16 + length);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static int first = 1;
    if (first) {
        write_shard("a.safetensors", "x");
        write_shard("b.safetensors", "y");
        first = 0;
    }
    fuzz_file("model.safetensors.index.json", data, bytes);
    Safetensors model;
    if (safetensors_open(fuzz_directory(), &model) == OK)
        safetensors_close(&model);
    status_clear();
    return 0;
}
