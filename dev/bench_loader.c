// bench_loader: how many tokens a second the loader delivers, on one core, from contiguous shards: one large file and
// 1,000 small ones, at two sequence lengths. Files are read from the page cache, as in later epochs of a run that fits.
//
//     make build/release/dev/bench_loader && build/release/dev/bench_loader
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "data/shards.h"
#include "test/write_shard.h"

enum { TOKENS = 64 << 20, BATCH = 8, VOCAB = 50257 };

static double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void write_files(const char *directory, int n_files) {
    size_t n = TOKENS / (size_t)n_files;
    uint16_t *data = malloc(n * sizeof *data);
    if (!data || mkdir(directory, 0700) != 0)
        abort();
    for (size_t i = 0; i < n; i++)
        data[i] = (uint16_t)(i * 2654435761u % VOCAB);
    for (int s = 0; s < n_files; s++) {
        char path[512];
        snprintf(path, sizeof path, "%s/train_%05d.h5", directory, s);
        write_shard((ShardSpec){.path = path, .n = n, .data = data, .vocab_size = VOCAB});
    }
    free(data);
}

// Tokens per second over one second of batches.
static Status measure(const char *directory, int seq_len, double *tokens_per_s) {
    Shards *shards;
    Loader *loader;
    TRY(shards_open(directory, seq_len, &shards));
    shards_set_vocab(shards, VOCAB);
    LoaderOptions options = {.shards = shards, .seed = 1, .shuffle = true, .batch = BATCH, .stride = BATCH, .depth = 2};
    TRY(loader_open(&options, &loader));
    int64_t tokens = 0, n_valid;
    double start = now_seconds(), seconds = 0, wait;
    for (int k = 0; seconds < 1; k++) {
        const int32_t *inputs, *targets;
        TRY(loader_next(loader, &inputs, &targets, &n_valid, &wait));
        tokens += n_valid;
        if (k % 64 == 0)
            seconds = now_seconds() - start;
    }
    *tokens_per_s = (double)tokens / seconds;
    loader_close(loader);
    shards_close(shards);
    return OK;
}

int main(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);  // reader and caller share one core

    char directory[256], command[300];
    snprintf(directory, sizeof directory, "%s/bench_loader_XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(directory))
        return 1;
    Status status = OK;
    for (int files = 1; status == OK && files <= 1000; files *= 1000) {
        char path[300];
        snprintf(path, sizeof path, "%s/%d", directory, files);
        write_files(path, files);
        for (int seq_len = 256; status == OK && seq_len <= 1024; seq_len *= 4) {
            double rate = 0;
            status = measure(path, seq_len, &rate);
            if (status == OK)
                printf("loader: %4d shards, T=%4d: %6.1f M tokens/s on one core\n", files, seq_len, rate * 1e-6);
        }
    }
    if (status != OK)
        fprintf(stderr, "%s\n", status_message());
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    return system(command) != 0 || status != OK;
}
