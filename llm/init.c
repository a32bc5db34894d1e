// init: initial values as a pure function of (seed, tensor name, element).
//
// Normal values come in pairs by Box & Muller (1958): z = sqrt(-2 ln u)·(cos 2πv, sin 2πv), with u, v drawn from a
// counter (splitmix64, Steele et al. 2014) keyed by seed and name, so an element's value needs nothing but its index.
// Logarithm, cosine and sine are written out in double with IEEE +, -, ·, /, sqrt alone: no libm, no contraction, hence
// the same bits on every machine. Loops over a block of pairs are free of branches and calls, so that they vectorise.
#include <math.h>
#include <string.h>

#include "llm/model.h"

enum { BLOCK_PAIRS = 128, BLOCK_LEN = 2 * BLOCK_PAIRS };

static inline double double_from_bits(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint64_t double_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline uint64_t splitmix64(uint64_t key, uint64_t counter) {
    uint64_t z = key + counter * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t tensor_key(uint64_t seed, const char *name) {
    uint64_t key = splitmix64(seed, 1);
    for (; *name; name++)
        key = splitmix64(key ^ (unsigned char)*name, 1);
    return key;
}

// The upper 52 bits as a number in [1, 2): integers become doubles without a conversion instruction.
static inline double one_to_two(uint64_t bits) {
    return double_from_bits(bits >> 12 | 0x3ff0000000000000u);
}

// ln x for normal x > 0: x = 2^e·m with m in [√½, √2), ln m = 2 atanh(s), s = (m-1)/(m+1), |s| < 0.172. Error below
// 1e-15.
static inline double log_of(double x) {
    // Subtracting √½'s bits moves the exponent's step from 1 to √½, so the exponent field counts the e meant above.
    uint64_t shifted = double_bits(x) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    double e = double_from_bits(shifted >> 52 | 0x4330000000000000u) - (0x1p52 + 1023.0);
    double m = double_from_bits((shifted & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu);
    double s = (m - 1.0) / (m + 1.0), z = s * s;
    double p = 1.0 / 21;
    p = p * z + 1.0 / 19;
    p = p * z + 1.0 / 17;
    p = p * z + 1.0 / 15;
    p = p * z + 1.0 / 13;
    p = p * z + 1.0 / 11;
    p = p * z + 1.0 / 9;
    p = p * z + 1.0 / 7;
    p = p * z + 1.0 / 5;
    p = p * z + 1.0 / 3;
    return e * 0x1.62e42fefa39efp-1 + (2.0 * s + 2.0 * s * z * p);
}

// cos and sin of 2π·turn, 0 <= turn < 1: the nearest quarter turn q and a rest of at most an eighth, by Taylor series.
static inline void cos_sin_turn(double turn, double *cosine, double *sine) {
    double shifted = 4.0 * turn + 0x1.8p52;  // rounds to an integer, which the low bits then hold
    double a = (4.0 * turn - (shifted - 0x1.8p52)) * 0x1.921fb54442d18p+0;  // rest in radians, |a| <= π/4
    double z = a * a;
    double s = -1.0 / 1307674368000;
    s = s * z + 1.0 / 6227020800;
    s = s * z - 1.0 / 39916800;
    s = s * z + 1.0 / 362880;
    s = s * z - 1.0 / 5040;
    s = s * z + 1.0 / 120;
    s = s * z - 1.0 / 6;
    s = a + a * z * s;
    double c = 1.0 / 20922789888000;
    c = c * z - 1.0 / 87178291200;
    c = c * z + 1.0 / 479001600;
    c = c * z - 1.0 / 3628800;
    c = c * z + 1.0 / 40320;
    c = c * z - 1.0 / 720;
    c = c * z + 1.0 / 24;
    c = c * z - 1.0 / 2;
    c = 1.0 + z * c;
    // q odd: cosine and sine change places. Signs: cosine is negative for q = 1, 2; sine for q = 2, 3.
    uint64_t q = double_bits(shifted), swap = -(q & 1);
    uint64_t c_bits = double_bits(c), s_bits = double_bits(s), both = (c_bits ^ s_bits) & swap;
    *cosine = double_from_bits(c_bits ^ both ^ ((q ^ q >> 1) & 1) << 63);
    *sine = double_from_bits(s_bits ^ both ^ (q >> 1 & 1) << 63);
}

// Elements [2·first_pair, 2·first_pair + BLOCK_LEN) of a normal tensor.
static void normal_block(uint64_t key, double std, uint64_t first_pair, float values[BLOCK_LEN]) {
    double u[BLOCK_PAIRS], v[BLOCK_PAIRS];
    for (int i = 0; i < BLOCK_PAIRS; i++) {
        uint64_t pair = first_pair + (uint64_t)i;
        u[i] = 2.0 - one_to_two(splitmix64(key, 2 * pair));  // in (0, 1]: never the logarithm of 0
        v[i] = one_to_two(splitmix64(key, 2 * pair + 1)) - 1.0;
    }
    for (int i = 0; i < BLOCK_PAIRS; i++)
        u[i] = std * sqrt(-2.0 * log_of(u[i]));
    for (int i = 0; i < BLOCK_PAIRS; i++) {
        double cosine, sine;
        cos_sin_turn(v[i], &cosine, &sine);
        values[2 * i] = (float)(u[i] * cosine);
        values[2 * i + 1] = (float)(u[i] * sine);
    }
}

// Elements [begin, end) of a normal tensor. Blocks start at multiples of BLOCK_LEN of the tensor wherever the range
// begins.
static void normal_range(uint64_t key, double std, int64_t begin, int64_t end, float *values) {
    int64_t first_block = begin / BLOCK_LEN, last_block = (end - 1) / BLOCK_LEN;
#pragma omp parallel for if (end - begin > 1 << 14)
    for (int64_t block = first_block; block <= last_block; block++) {
        float whole[BLOCK_LEN];
        normal_block(key, std, (uint64_t)block * BLOCK_PAIRS, whole);
        int64_t block_begin = block * BLOCK_LEN, block_end = block_begin + BLOCK_LEN;
        int64_t from = block_begin > begin ? block_begin : begin, to = block_end < end ? block_end : end;
        memcpy(values + (from - begin), whole + (from - block_begin), (size_t)(to - from) * sizeof *values);
    }
}

void model_init(const UnitSpec *unit, uint64_t seed, int64_t begin, int64_t len, float *values) {
    memset(values, 0, (size_t)len * sizeof *values);
    for (int t = 0; t < unit->n_tensors; t++) {
        const TensorSpec *tensor = &unit->tensors[t];
        int64_t from = tensor->offset > begin ? tensor->offset : begin;
        int64_t to = tensor->offset + tensor->len < begin + len ? tensor->offset + tensor->len : begin + len;
        if (from >= to)
            continue;
        float *out = values + (from - begin);
        switch (tensor->init) {
            case INIT_ZERO: break;
            case INIT_ONE:
                for (int64_t i = 0; i < to - from; i++)
                    out[i] = 1.0f;
                break;
            case INIT_NORMAL:
                normal_range(tensor_key(seed, tensor->name), (double)tensor->init_std, from - tensor->offset,
                             to - tensor->offset, out);
                break;
        }
    }
}
