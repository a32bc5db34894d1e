// hash: one short string that says whether two runs hold the same bits.
//
// Two hashes: of the fp32 master weights (in fp32 runs: the parameters) and of the optimizer's moments. Each is
// Σ mod 2^128 over elements of mix(tensor name [and kind], logical index, bits): padding and the order of addition do not matter, so each rank sums its shard,
// one all-reduce ends it, and runs with any N, stage and device can be compared.
#ifndef ZERO_HASH_H
#define ZERO_HASH_H

#include "zero/layout.h"

typedef unsigned __int128 Hash128;
enum { HASH_TEXT_BYTES = 33 };

// Add elements [begin, begin+len) of a unit (padding and gaps are skipped) to *hash. kind: "master", "m", "v".
// per_tensor, if not NULL, receives the same sums per tensor of the unit (MAX_TENSORS entries, added to).
void hash_unit(const UnitLayout *unit, const char *kind, int64_t begin, int64_t len, const float *values, Hash128 *hash,
               Hash128 *per_tensor);
void hash_text(Hash128 hash, char text[HASH_TEXT_BYTES]);  // 32 hexadecimal digits

// 64-bit hash of a byte block, for checkpoints (order matters). seed chains blocks.
uint64_t hash_bytes(const void *data, size_t bytes, uint64_t seed);

#endif
