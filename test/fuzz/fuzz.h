// fuzz: what the fuzz targets share. Each target is one function that libFuzzer calls with inputs it makes up
// (https://llvm.org/docs/LibFuzzer.html): it must come back, whatever they are. dev/fuzz.sh runs them, test/test_fuzz.py for
// a few seconds; the inputs to begin with are in corpus/.
#ifndef TEST_FUZZ_H
#define TEST_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

// HDF5 takes megabytes for each file that it opens: freed memory is kept for a shorter time than AddressSanitizer would.
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "quarantine_size_mb=16";
}

// A directory of this process, for readers that take paths.
static inline const char *fuzz_directory(void) {
    static char path[64];
    if (!*path) {
        snprintf(path, sizeof path, "%s/zero_fuzz_%d_XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", getpid());
        if (!mkdtemp(path))
            abort();
    }
    return path;
}

// Write the input to `name` in that directory; returns its path, valid until the next call.
static inline const char *fuzz_file(const char *name, const void *data, size_t bytes) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", fuzz_directory(), name);
    FILE *file = fopen(path, "wb");
    if (!file || (bytes > 0 && fwrite(data, 1, bytes, file) != bytes) || fclose(file) != 0)
        abort();
    return path;
}

// Remove it at the end of the process (libFuzzer ends through exit).
__attribute__((destructor)) static inline void fuzz_remove_directory(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf /dev/shm/zero_fuzz_%d_* /tmp/zero_fuzz_%d_*", getpid(), getpid());
    if (system(command) != 0)
        fprintf(stderr, "cannot remove the fuzzer's directory\n");
}

#endif
