// simd: sixteen fp32 numbers at a time, the same way on every instruction set, for …_isa.c files only.
//
// f32x16 is GCC's and clang's vector type, so + - * / and comparisons work on it directly; on AVX2 the compiler splits it in
// two, without AVX in four. What the language lacks (fused multiply-add, rounding conversions, masks at the end of an array)
// is here, once. Elements are reduced in a fixed tree (halves), so sums do not depend on the instruction set's width.
#ifndef LLM_CPU_SIMD_H
#define LLM_CPU_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "llm/dtype.h"

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x4 __attribute__((vector_size(16)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

#define SIMD static inline __attribute__((always_inline))

SIMD f32x16 v_set(float x) {
    return (f32x16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}
SIMD f32x16 v_zero(void) {
    return v_set(0.0f);
}

// a·b + c, rounded once where the machine has fused multiply-add.
SIMD f32x16 v_fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    union {
        f32x16 v;
        __m256 half[2];
    } x = {a}, y = {b}, z = {c};
    z.half[0] = _mm256_fmadd_ps(x.half[0], y.half[0], z.half[0]);
    z.half[1] = _mm256_fmadd_ps(x.half[1], y.half[1], z.half[1]);
    return z.v;
#else
    return a * b + c;
#endif
}

// The same, rounded once on every machine, for sums whose bits are promised. Slow where there is no instruction for it.
SIMD f32x16 v_fma_exact(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__FMA__)
    return v_fma(a, b, c);
#else
    for (int i = 0; i < 16; i++)
        c[i] = fmaf(a[i], b[i], c[i]);
    return c;
#endif
}

SIMD f32x16 v_select(i32x16 mask, f32x16 yes, f32x16 no) {  // mask lanes are 0 or -1
    return (f32x16)((mask & (i32x16)yes) | (~mask & (i32x16)no));
}
SIMD f32x16 v_max(f32x16 a, f32x16 b) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return v_select(a > b, a, b);
#endif
}
SIMD f32x16 v_min(f32x16 a, f32x16 b) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_min_ps((__m512)a, (__m512)b);
#else
    return v_select(a < b, a, b);
#endif
}

// Sum and maximum of the lanes, by halves.
SIMD float v_sum(f32x16 a) {
    f32x8 b = __builtin_shufflevector(a, a, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15);
    f32x4 c = __builtin_shufflevector(b, b, 0, 1, 2, 3) + __builtin_shufflevector(b, b, 4, 5, 6, 7);
    return (c[0] + c[2]) + (c[1] + c[3]);
}
SIMD float v_max_lane(f32x16 a) {
    float m = a[0];
    for (int i = 1; i < 16; i++)
        m = a[i] > m ? a[i] : m;
    return m;
}

// ---- loads and stores of any dtype ----
SIMD f32x16 v_load_fp32(const float *p) {
    f32x16 v;
    memcpy(&v, p, sizeof v);
    return v;
}
SIMD f32x16 v_load_bf16(const uint16_t *p) {
    u16x16 h;
    memcpy(&h, p, sizeof h);
    return (f32x16)(__builtin_convertvector(h, u32x16) << 16);
}
SIMD f32x16 v_load_fp16(const uint16_t *p) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(__F16C__)
    union {
        __m256 half[2];
        f32x16 v;
    } x = {{_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1))}};
    return x.v;
#else
    f32x16 v;
    for (int i = 0; i < 16; i++)
        v[i] = fp16_to_fp32(p[i]);
    return v;
#endif
}
SIMD void v_store_fp32(float *p, f32x16 v) {
    memcpy(p, &v, sizeof v);
}
SIMD void v_store_bf16(uint16_t *p, f32x16 v) {
    // Not vcvtneps2bf16, which flushes subnormals; this is as fast as memory.
    u32x16 bits = (u32x16)v;
    u32x16 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
#if defined(__AVX512F__)
    __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    __m512i chosen = _mm512_mask_or_epi32((__m512i)rounded, nan, (__m512i)(bits >> 16), _mm512_set1_epi32(0x40));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(chosen));
#else
    u32x16 quiet = (bits >> 16) | 0x40;
    u32x16 nan = (u32x16)((bits & 0x7fffffff) > 0x7f800000u);
    u16x16 h = __builtin_convertvector((nan & quiet) | (~nan & rounded), u16x16);
    memcpy(p, &h, sizeof h);
#endif
}
SIMD void v_store_fp16(uint16_t *p, f32x16 v) {
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
    union {
        f32x16 v;
        __m256 half[2];
    } x = {v};
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.half[0], _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)p + 1, _mm256_cvtps_ph(x.half[1], _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < 16; i++)
        p[i] = fp32_to_fp16(v[i]);
#endif
}
SIMD f32x16 v_load(Dtype dt, const void *p, int64_t i) {
    return dt == DTYPE_BF16   ? v_load_bf16((const uint16_t *)p + i)
           : dt == DTYPE_FP16 ? v_load_fp16((const uint16_t *)p + i)
                              : v_load_fp32((const float *)p + i);
}
SIMD void v_store(Dtype dt, void *p, int64_t i, f32x16 v) {
    if (dt == DTYPE_BF16)
        v_store_bf16((uint16_t *)p + i, v);
    else if (dt == DTYPE_FP16)
        v_store_fp16((uint16_t *)p + i, v);
    else
        v_store_fp32((float *)p + i, v);
}
// Lanes 0 … n-1 of v, zeros elsewhere.
SIMD f32x16 v_first(f32x16 v, int64_t n) {
    const i32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return (f32x16)((lane < (int32_t)n) & (i32x16)v);
}

// n < 16 elements: missing lanes read as 0 and are not written.
SIMD f32x16 v_load_n(Dtype dt, const void *p, int64_t i, int n) {
    char tail[64] = {0};
    memcpy(tail, (const char *)p + (size_t)i * dtype_bytes(dt), (size_t)n * dtype_bytes(dt));
    return v_load(dt, tail, 0);
}
SIMD void v_store_n(Dtype dt, void *p, int64_t i, f32x16 v, int n) {
    char tail[64];
    v_store(dt, tail, 0, v);
    memcpy((char *)p + (size_t)i * dtype_bytes(dt), tail, (size_t)n * dtype_bytes(dt));
}

// Elements i … i+15 of an array that ends at `end`.
SIMD f32x16 v_load_to(Dtype dt, const void *p, int64_t i, int64_t end) {
    return i + 16 <= end ? v_load(dt, p, i) : v_load_n(dt, p, i, (int)(end - i));
}
SIMD void v_store_to(Dtype dt, void *p, int64_t i, int64_t end, f32x16 v) {
    if (i + 16 <= end)
        v_store(dt, p, i, v);
    else
        v_store_n(dt, p, i, v, (int)(end - i));
}

// Run `call` with a constant DT equal to dt, so that inlined kernels are compiled once for each dtype.
#define WITH_DTYPE(dt, call)                                               \
    do {                                                                   \
        switch (dt) {                                                      \
            case DTYPE_BF16: { const Dtype DT = DTYPE_BF16; call; break; } \
            case DTYPE_FP16: { const Dtype DT = DTYPE_FP16; call; break; } \
            default: { const Dtype DT = DTYPE_FP32; call; }                \
        }                                                                  \
    } while (0)

// ---- exponential, to about 1 ulp, by range reduction and a polynomial (Cody & Waite; coefficients of Cephes' expf) ----
// e^x; 0 below -87.33 (about the smallest normal number), +inf above the largest. NaN stays NaN.
SIMD f32x16 v_exp(f32x16 x) {
    f32x16 clamped = v_max(v_set(-88.0f), v_min(v_set(88.8f), x));  // in this order NaN passes through
    // n = round(x / ln 2) by adding and subtracting 1.5·2^23; x = n·ln 2 + r with ln 2 in two parts
    f32x16 shifted = v_fma(clamped, v_set(1.44269504f), v_set(12582912.0f));
    f32x16 n = shifted - v_set(12582912.0f);
    f32x16 r = v_fma(n, v_set(-0.693359375f), clamped);
    r = v_fma(n, v_set(2.12194440e-4f), r);
    f32x16 p = v_set(1.9875691500e-4f);
    p = v_fma(p, r, v_set(1.3981999507e-3f));
    p = v_fma(p, r, v_set(8.3334519073e-3f));
    p = v_fma(p, r, v_set(4.1665795894e-2f));
    p = v_fma(p, r, v_set(1.6666665459e-1f));
    p = v_fma(p, r, v_set(5.0000001201e-1f));
    p = v_fma(p, r * r, r) + v_set(1.0f);
#if defined(__AVX512F__)
    __mmask16 kept = _mm512_cmp_ps_mask((__m512)x, (__m512)v_set(-87.33f), _CMP_NLT_UQ);
    return (f32x16)_mm512_maskz_scalef_ps(kept, (__m512)p, (__m512)n);
#else
    // 2^n in two factors, so that n = 128 (results up to the largest number) does not overflow too early
    i32x16 k = (i32x16)shifted - (i32x16)v_set(12582912.0f);
    i32x16 k1 = k >> 1, k2 = k - k1;
    f32x16 y = p * (f32x16)((k1 + 127) << 23) * (f32x16)((k2 + 127) << 23);
    return (f32x16)(~(x < v_set(-87.33f)) & (i32x16)y);
#endif
}
// 1 / (1 + e^-x)
SIMD f32x16 v_sigmoid(f32x16 x) {
    return v_set(1.0f) / (v_set(1.0f) + v_exp(-x));
}

#endif
