// DeepSpeed's JSON, and what the options that it gives come to.
#include "llm/deepspeed.h"
#include "test/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static Config config;
    config_defaults(&config);
    config.config_file = fuzz_file("ds.json", data, bytes);
    if (deepspeed_read(&config, NULL) == OK)
        (void)config_resolve(&config, 1 + (int)(bytes % 4), 0);
    status_clear();
    return 0;
}
