#include "zero/comm_sum.h"

// Compiled twice, and the faster is taken where the machine has it: the same roundings, more elements at a time.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(SANITIZE_BUILD)
#define BEST_ISA __attribute__((target_clones("avx2", "default"), flatten))
#else
#define BEST_ISA
#endif

// Elements handled at a time: the sum and one converted addend stay in the first-level cache.
enum { CHUNK = 2048 };

// fp16 without branches, so that the loops below vectorise; same values as dtype.h's.
static inline float half_to_float(uint16_t h) {
    uint32_t magnitude = h & 0x7fffu;
    float finite = fp32_from_bits(magnitude << 13) * 0x1p112f;  // exact, subnormals too
    uint32_t special = 0x7f800000u | magnitude << 13 | (magnitude > 0x7c00u ? 0x400000u : 0);
    uint32_t bits = magnitude >= 0x7c00u ? special : fp32_bits(finite);
    return fp32_from_bits(bits | (uint32_t)(h & 0x8000u) << 16);
}

static inline uint16_t float_to_half(float x) {
    uint32_t bits = fp32_bits(x), magnitude = bits & 0x7fffffffu;
    uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1)) >> 13;
    uint32_t small = fp32_bits(fp32_from_bits(magnitude < 0x38800000u ? magnitude : 0) + 0.5f) - 0x3f000000u;
    uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    uint32_t h = magnitude < 0x38800000u ? small : normal;
    h = magnitude >= 0x477ff000u ? 0x7c00u : h;
    h = magnitude > 0x7f800000u ? nan : h;
    return (uint16_t)(h | ((bits >> 16) & 0x8000u));
}

static inline uint16_t float_to_bfloat(float x) {
    uint32_t bits = fp32_bits(x);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16, nan = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

BEST_ISA void round_to(Dtype dtype, void *to, const float *from, int64_t len) {
    uint16_t *restrict half = to;
    if (dtype == DTYPE_FP32) {
        memmove(to, from, (size_t)len * sizeof *from);
    } else if (dtype == DTYPE_BF16) {
        for (int64_t i = 0; i < len; i++)
            half[i] = float_to_bfloat(from[i]);
    } else {
        for (int64_t i = 0; i < len; i++)
            half[i] = float_to_half(from[i]);
    }
}

static void widen(Dtype dtype, float *restrict to, const uint16_t *restrict from, int64_t len) {
    if (dtype == DTYPE_BF16) {
        for (int64_t i = 0; i < len; i++)
            to[i] = bf16_to_fp32(from[i]);
    } else {
        for (int64_t i = 0; i < len; i++)
            to[i] = half_to_float(from[i]);
    }
}

// The values of elements [first, first+len) as fp32: where they are, or in `room`.
static const float *values(const Addend *a, int64_t first, int64_t len, float *room) {
    const char *from = (const char *)a->data + (size_t)first * dtype_bytes(a->dtype);
    if (a->dtype != DTYPE_FP32) {
        widen(a->dtype, room, (const uint16_t *)(const void *)from, len);
        return room;
    }
    if (a->rounded == DTYPE_FP32)
        return (const float *)(const void *)from;
    uint16_t half[CHUNK];
    round_to(a->rounded, half, (const float *)(const void *)from, len);
    widen(a->rounded, room, half, len);
    return room;
}

static void add_to(float *restrict sum, const float *restrict x, int64_t len) {
    for (int64_t i = 0; i < len; i++)
        sum[i] += x[i];
}

// Bring `sum` (len), which may be overwritten, to elements [first, first+len) of the target.
static void store(SumTarget t, int64_t first, int64_t len, float *sum) {
    char *to = (char *)t.data + (size_t)first * dtype_bytes(t.dtype);
    float room[CHUNK];
    const Addend total = {sum, DTYPE_FP32, t.rounded};
    const float *result = values(&total, 0, len, room);
    if (t.add) {
        float before[CHUNK];
        const Addend old = {to, t.dtype, DTYPE_FP32};
        const float *x = values(&old, 0, len, before);
        for (int64_t i = 0; i < len; i++)
            sum[i] = x[i] + result[i];
        result = sum;
    }
    round_to(t.dtype, to, result, len);
}

BEST_ISA void sum_in_order(SumTarget target, const Addend *addends, int n, int64_t len) {
    float sum[CHUNK], room[CHUNK];
    for (int64_t first = 0; first < len; first += CHUNK) {
        int64_t part = len - first < CHUNK ? len - first : CHUNK;
        memcpy(sum, values(&addends[0], first, part, room), (size_t)part * sizeof *sum);
        for (int k = 1; k < n; k++)
            add_to(sum, values(&addends[k], first, part, room), part);
        store(target, first, part, sum);
    }
}
