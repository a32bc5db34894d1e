// The header of model.safetensors, and reading from what it says.
#include "test/fuzz/fuzz.h"
#include "zero/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    fuzz_file("model.safetensors", data, bytes);
    Safetensors model;
    if (safetensors_open(fuzz_directory(), &model) == OK) {
        for (int i = 0; i < model.n_tensors; i++) {
            float values[16];
            int64_t len = model.tensors[i].len < 16 ? model.tensors[i].len : 16;
            if (safetensors_find(&model, model.tensors[i].name) != &model.tensors[i])
                abort();
            (void)safetensors_read(&model, &model.tensors[i], model.tensors[i].len - len, len, values);
        }
        safetensors_close(&model);
    }
    status_clear();
    return 0;
}
