// The order of samples: a keyed permutation of the windows for every epoch, computed from the sample index alone.
//
// A Feistel network permutes the numbers of 2h bits: with halves (a, b), each round maps (a, b) to (b, a ^ f(b, key)),
// which is invertible whatever f is. n windows are covered by the smallest 2h with 2^2h >= n; a result outside of 0…n-1
// is put through the network again until it falls inside ("cycle walking": fewer than four passes on average, and still
// a permutation). Luby and Rackoff, "How to construct pseudorandom permutations", 1988; Black and Rogaway, "Ciphers
// with arbitrary finite domains", 2002.
//
// test/test_data_order.c holds a golden table: a change here would silently change what every resumed run reads.
#include <assert.h>

#include "data/shards.h"

enum { ROUNDS = 8, MIN_HALF_BITS = 2 };  // eight rounds, as halves of few bits mix slowly

// The finalizer of splitmix64 (Steele, Lea, Flood 2014): every input bit changes every output bit with probability 1/2.
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

int64_t sample_window(uint64_t seed, int64_t n_windows, int64_t i) {
    assert(n_windows > 0 && i >= 0);
    uint64_t n = (uint64_t)n_windows, epoch = (uint64_t)i / n, x = (uint64_t)i % n;
    int half = MIN_HALF_BITS;
    while (half < 31 && n > (uint64_t)1 << (2 * half))
        half++;
    assert(n <= (uint64_t)1 << (2 * half));
    const uint64_t golden = 0x9e3779b97f4a7c15u, mask = ((uint64_t)1 << half) - 1;
    uint64_t key = mix(mix(seed + golden) + epoch);
    do {
        uint64_t a = x >> half, b = x & mask, round_key = key;
        for (int r = 0; r < ROUNDS; r++) {
            round_key += golden;
            uint64_t next = a ^ (mix(mix(round_key) ^ b) >> (64 - half));
            a = b;
            b = next;
        }
        x = a << half | b;
    } while (x >= n);
    return (int64_t)x;
}
