// A checkpoint's manifest. Its last line is a hash of the rest, which no mutation would get right, so it is put right here.
#include <cjson/cJSON.h>
#include <string.h>

#include "test/fuzz/fuzz.h"
#include "zero/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    char *text = malloc(bytes + 1), seal[MANIFEST_SEAL_BYTES + 1];
    memcpy(text, data, bytes);
    if (bytes >= MANIFEST_SEAL_BYTES) {
        manifest_seal(text, bytes - MANIFEST_SEAL_BYTES, seal);
        memcpy(text + bytes - MANIFEST_SEAL_BYTES, seal, MANIFEST_SEAL_BYTES);
    }
    fuzz_file("manifest.json", text, bytes);
    free(text);

    Manifest manifest;
    if (manifest_read(&manifest, fuzz_directory()) == OK) {
        Config config;
        char differences[256];
        config_defaults(&config);
        (void)config_compare(&config, manifest.config, differences, sizeof differences);
        (void)model_config_from_json(&config.model, manifest.config);
        loss_scale_update(&manifest.run.scale, bytes % 2);
        manifest_free(&manifest);
    }
    status_clear();
    return 0;
}
