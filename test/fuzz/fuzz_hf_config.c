// A Hugging Face config.json: what is taken is a model whose every size can be computed.
#include "llm/model.h"
#include "test/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    ModelConfig model;
    if (model_config_read_hf(&model, fuzz_file("config.json", data, bytes)) == OK && model_n_params(&model) <= 0)
        abort();
    status_clear();
    return 0;
}
