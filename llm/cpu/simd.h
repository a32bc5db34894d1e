// simd: sixteen fp32 numbers at a time, the same way on every instruction set, for …_isa.c files only.
//
// f32x16 is GCC's and clang's vector type, so + - * / and comparisons work on it directly; on AVX2 the compiler splits
// it in two, without AVX in four. What the language lacks (fused multiply-add, rounding conversions, masks at the end
// of an array) is here, once. Elements are reduced in a fixed tree (halves), so sums do not depend on the instruction
// set's width.
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
    f32x8 b = __builtin_shufflevector(a, a, 0, 1, 2, 3, 4, 5, 6, 7) +
              __builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15);
    f32x4 c = __builtin_shufflevector(b, b, 0, 1, 2, 3) + __builtin_shufflevector(b, b, 4, 5, 6, 7);
    return (c[0] + c[2]) + (c[1] + c[3]);
}
SIMD float v_max_lane(f32x16 a) {
    float m = a[0];
    for (int i = 1; i < 16; i++)
        m = a[i] > m ? a[i] : m;
    return m;
}

// ---- conversions between fp32 and the sixteen bits of bf16 and fp16 ----
SIMD f32x16 v_from_bf16(u16x16 h) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
#else
    return (f32x16)(__builtin_convertvector(h, u32x16) << 16);
#endif
}
SIMD f32x16 v_from_fp16(u16x16 h) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_cvtph_ps((__m256i)h);
#elif defined(__F16C__)
    union {
        u16x16 v;
        __m128i half[2];
    } from = {h};
    union {
        __m256 half[2];
        f32x16 v;
    } to = {{_mm256_cvtph_ps(from.half[0]), _mm256_cvtph_ps(from.half[1])}};
    return to.v;
#else
    f32x16 v;
    for (int i = 0; i < 16; i++)
        v[i] = fp16_to_fp32(h[i]);
    return v;
#endif
}
SIMD u16x16 v_to_bf16(f32x16 v) {
    // Not vcvtneps2bf16, which flushes subnormals; this is as fast as memory.
    u32x16 bits = (u32x16)v, bias = ((bits >> 16) & 1) + 0x7fff;
#if defined(__AVX512BW__)
    // Add the bias, or for NaN set the quiet bit; then take the high halves.
    const __m512i high = {0x0007000500030001, 0x000f000d000b0009, 0x0017001500130011, 0x001f001d001b0019};
    __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    __m512i rounded = _mm512_mask_or_epi32((__m512i)(bits + bias), nan, (__m512i)bits, _mm512_set1_epi32(0x400000));
    return (u16x16)_mm512_castsi512_si256(_mm512_permutexvar_epi16(high, rounded));
#else
    u32x16 quiet = (bits >> 16) | 0x40, rounded = (bits + bias) >> 16;
    u32x16 nan = (u32x16)((bits & 0x7fffffff) > 0x7f800000u);
    return __builtin_convertvector((nan & quiet) | (~nan & rounded), u16x16);
#endif
}
SIMD u16x16 v_to_fp16(f32x16 v) {
#if defined(__AVX512F__)
    return (u16x16)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
    union {
        f32x16 v;
        __m256 half[2];
    } from = {v};
    union {
        __m128i half[2];
        u16x16 v;
    } to = {{_mm256_cvtps_ph(from.half[0], _MM_FROUND_TO_NEAREST_INT),
             _mm256_cvtps_ph(from.half[1], _MM_FROUND_TO_NEAREST_INT)}};
    return to.v;
#else
    u16x16 h;
    for (int i = 0; i < 16; i++)
        h[i] = fp32_to_fp16(v[i]);
    return h;
#endif
}

// ---- loads and stores of any dtype ----
SIMD f32x16 v_load_fp32(const float *p) {
    f32x16 v;
    memcpy(&v, p, sizeof v);
    return v;
}
SIMD void v_store_fp32(float *p, f32x16 v) {
    memcpy(p, &v, sizeof v);
}
SIMD f32x16 v_load(Dtype dt, const void *p, int64_t i) {
    if (dt == DTYPE_FP32)
        return v_load_fp32((const float *)p + i);
    u16x16 h;
    memcpy(&h, (const uint16_t *)p + i, sizeof h);
    return dt == DTYPE_BF16 ? v_from_bf16(h) : v_from_fp16(h);
}
SIMD void v_store(Dtype dt, void *p, int64_t i, f32x16 v) {
    if (dt == DTYPE_FP32) {
        v_store_fp32((float *)p + i, v);
        return;
    }
    u16x16 h = dt == DTYPE_BF16 ? v_to_bf16(v) : v_to_fp16(v);
    memcpy((uint16_t *)p + i, &h, sizeof h);
}

// Lanes 0 … n-1 of v, zeros elsewhere.
SIMD f32x16 v_first(f32x16 v, int64_t n) {
    const i32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return (f32x16)((lane < (int32_t)n) & (i32x16)v);
}

// n < 16 elements: missing lanes read as 0 and are not written. A call of memcpy here would cost the loop around it all
// its registers.
SIMD f32x16 v_load_n(Dtype dt, const void *p, int64_t i, int n) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    const __mmask16 lanes = (__mmask16)((1u << n) - 1);
    if (dt == DTYPE_FP32)
        return (f32x16)_mm512_maskz_loadu_ps(lanes, (const float *)p + i);
    u16x16 h = (u16x16)_mm256_maskz_loadu_epi16(lanes, (const uint16_t *)p + i);
    return dt == DTYPE_BF16 ? v_from_bf16(h) : v_from_fp16(h);
#else
    char tail[64] = {0};
    memcpy(tail, (const char *)p + (size_t)i * dtype_bytes(dt), (size_t)n * dtype_bytes(dt));
    return v_load(dt, tail, 0);
#endif
}
SIMD void v_store_n(Dtype dt, void *p, int64_t i, f32x16 v, int n) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    const __mmask16 lanes = (__mmask16)((1u << n) - 1);
    if (dt == DTYPE_FP32)
        _mm512_mask_storeu_ps((float *)p + i, lanes, (__m512)v);
    else
        _mm256_mask_storeu_epi16((uint16_t *)p + i, lanes, (__m256i)(dt == DTYPE_BF16 ? v_to_bf16(v) : v_to_fp16(v)));
#else
    char tail[64];
    v_store(dt, tail, 0, v);
    memcpy((char *)p + (size_t)i * dtype_bytes(dt), tail, (size_t)n * dtype_bytes(dt));
#endif
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
#define WITH_DTYPE(dt, call)                 \
    do {                                     \
        switch (dt) {                        \
            case DTYPE_BF16: {               \
                const Dtype DT = DTYPE_BF16; \
                call;                        \
                break;                       \
            }                                \
            case DTYPE_FP16: {               \
                const Dtype DT = DTYPE_FP16; \
                call;                        \
                break;                       \
            }                                \
            default: {                       \
                const Dtype DT = DTYPE_FP32; \
                call;                        \
            }                                \
        }                                    \
    } while (0)

// ---- exponential, to about 1 ulp: range reduction (Cody & Waite) and a polynomial (Cephes' expf) ----
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
