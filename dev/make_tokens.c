// make_tokens: a shard for benchmarks, without Python: a random walk over the vocabulary, so that a loss can fall.
//
//     make_tokens FILE TOKENS VOCABULARY
#include <stdio.h>

#include "test/write_shard.h"

int main(int argc, char **argv) {
    long long n = argc == 4 ? atoll(argv[2]) : 0, vocab = argc == 4 ? atoll(argv[3]) : 0;
    uint16_t *tokens = n > 0 && vocab > 0 && vocab <= 65536 ? malloc((size_t)n * sizeof *tokens) : NULL;
    if (!tokens) {
        fprintf(stderr, "usage: make_tokens FILE TOKENS VOCABULARY (at most 65536)\n");
        return 2;
    }
    uint64_t state = 1;
    long long token = vocab / 2;
    for (long long i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        token = (token + (long long)(state >> 33) % 33 - 16 + vocab) % vocab;
        tokens[i] = (uint16_t)token;
    }
    write_shard((ShardSpec){.path = argv[1], .n = (hsize_t)n, .data = tokens, .vocab_size = vocab});
    free(tokens);
    return 0;
}
