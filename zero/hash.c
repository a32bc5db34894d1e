#include "zero/hash.h"

#include <stdio.h>
#include <string.h>

// ---- sums over elements ----

// Two mixers with different constants, each a bijection of its key and index before the bits come in, and again after:
// the finalizers of splitmix64 (Steele et al. 2014) and MurmurHash3. Neither half says anything about the other.
static inline uint64_t mix_low(uint64_t key, uint64_t index, uint64_t bits) {
    uint64_t z = key + index * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) + (bits << 32 | bits);
    z = (z ^ z >> 31) * 0x94d049bb133111ebu;
    return z ^ z >> 32;
}

static inline uint64_t mix_high(uint64_t key, uint64_t index, uint64_t bits) {
    uint64_t z = key ^ index * 0xd1342543de82ef95u;
    z = (z ^ z >> 33) * 0xff51afd7ed558ccdu;
    z = (z ^ z >> 29) ^ bits * 0x2545f4914f6cdd1du;
    z = (z ^ z >> 33) * 0xc4ceb9fe1a85ec53u;
    return z ^ z >> 33;
}

typedef struct HashVisit {
    const UnitLayout *unit;
    uint64_t kind;        // hash of the kind's name
    const float *values;  // of the visited range
    Hash128 *hash, *per_tensor;
} HashVisit;

static void hash_tensor_range(void *context, const TensorSpec *tensor, int64_t in_tensor, int64_t in_range,
                              int64_t count) {
    const HashVisit *visit = context;
    uint64_t key_low = hash_bytes(tensor->name, strlen(tensor->name), visit->kind);
    uint64_t key_high = hash_bytes(tensor->name, strlen(tensor->name), ~visit->kind);
    const float *values = visit->values + in_range;
    Hash128 sum = 0;
#pragma omp parallel if (count > 1 << 16)
    {
        Hash128 part = 0;
#pragma omp for nowait
        for (int64_t i = 0; i < count; i++) {
            uint64_t index = (uint64_t)(in_tensor + i), bits = fp32_bits(values[i]);
            part += (Hash128)mix_high(key_high, index, bits) << 64 | mix_low(key_low, index, bits);
        }
#pragma omp critical(hash_tensor_range)
        sum += part;
    }
    *visit->hash += sum;
    if (visit->per_tensor)
        visit->per_tensor[tensor - visit->unit->spec.tensors] += sum;
}

void hash_unit(const UnitLayout *unit, const char *kind, int64_t begin, int64_t len, const float *values, Hash128 *hash,
               Hash128 *per_tensor) {
    HashVisit visit = {unit, hash_bytes(kind, strlen(kind), 0), values, hash, per_tensor};
    layout_visit(unit, begin, len, hash_tensor_range, &visit);
}

void hash_text(Hash128 hash, char text[HASH_TEXT_BYTES]) {
    snprintf(text, HASH_TEXT_BYTES, "%016llx%016llx", (unsigned long long)(hash >> 64), (unsigned long long)hash);
}

// ---- bytes: XXH64 (Collet, github.com/Cyan4973/xxHash, doc/xxhash_spec.md) ----

#define PRIME1 0x9e3779b185ebca87u
#define PRIME2 0xc2b2ae3d27d4eb4fu
#define PRIME3 0x165667b19e3779f9u
#define PRIME4 0x85ebca77c2b2ae63u
#define PRIME5 0x27d4eb2f165667c5u

static inline uint64_t rotate(uint64_t x, int bits) {
    return x << bits | x >> (64 - bits);
}

static inline uint64_t round64(uint64_t sum, uint64_t lane) {
    return rotate(sum + lane * PRIME2, 31) * PRIME1;
}

static inline uint64_t merge64(uint64_t hash, uint64_t sum) {
    return (hash ^ round64(0, sum)) * PRIME1 + PRIME4;
}

static inline uint64_t load64(const unsigned char *p) {
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

uint64_t hash_bytes(const void *data, size_t bytes, uint64_t seed) {
    const unsigned char *p = data, *end = p + bytes;
    uint64_t hash = seed + PRIME5;
    if (bytes >= 32) {
        uint64_t a = seed + PRIME1 + PRIME2, b = seed + PRIME2, c = seed, d = seed - PRIME1;
        for (; end - p >= 32; p += 32) {
            a = round64(a, load64(p));
            b = round64(b, load64(p + 8));
            c = round64(c, load64(p + 16));
            d = round64(d, load64(p + 24));
        }
        hash = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
        hash = merge64(merge64(merge64(merge64(hash, a), b), c), d);
    }
    hash += bytes;
    for (; end - p >= 8; p += 8)
        hash = rotate(hash ^ round64(0, load64(p)), 27) * PRIME1 + PRIME4;
    if (end - p >= 4) {
        uint32_t lane;
        memcpy(&lane, p, sizeof lane);
        hash = rotate(hash ^ lane * PRIME1, 23) * PRIME2 + PRIME3;
        p += 4;
    }
    for (; p < end; p++)
        hash = rotate(hash ^ *p * PRIME5, 11) * PRIME1;
    hash = (hash ^ hash >> 33) * PRIME2;
    hash = (hash ^ hash >> 29) * PRIME3;
    return hash ^ hash >> 32;
}
