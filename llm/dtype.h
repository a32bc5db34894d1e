// dtype: the three number formats that parameters and activations come in, and exact scalar conversions.
//
// Conversions to fp32 are exact; conversions from fp32 round to nearest even, as every device does. NaN stays NaN.
#ifndef LLM_DTYPE_H
#define LLM_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum Dtype { DTYPE_FP32, DTYPE_BF16, DTYPE_FP16 } Dtype;

static inline size_t dtype_bytes(Dtype dtype) {
    return dtype == DTYPE_FP32 ? 4 : 2;
}

static inline const char *dtype_name(Dtype dtype) {
    return dtype == DTYPE_FP32 ? "fp32" : dtype == DTYPE_BF16 ? "bf16" : "fp16";
}

static inline uint32_t fp32_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float fp32_from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float bf16_to_fp32(uint16_t h) {
    return fp32_from_bits((uint32_t)h << 16);
}

static inline uint16_t fp32_to_bf16(float x) {
    uint32_t bits = fp32_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40);  // NaN: keep it a quiet NaN
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

static inline float fp16_to_fp32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
    if (exponent == 31)
        return fp32_from_bits(sign | 0x7f800000u | (mantissa ? 0x400000u | mantissa << 13 : 0));
    if (exponent == 0) {  // zero and subnormals: mantissa · 2^-24, exact in fp32
        float magnitude = (float)mantissa * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return fp32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

static inline uint16_t fp32_to_fp16(float x) {
    uint32_t bits = fp32_bits(x), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
    if (magnitude >= 0x477ff000u)  // rounds to 65536 or more: infinity
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000u) {  // below 2^-14: a subnormal; the fp32 adder does the rounding at 2^-24
        float rounded = fp32_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (fp32_bits(rounded) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1)) >> 13));
}

// Element `i` of an array of `dtype`, as fp32, and back. For tests, checkpoints and other places that are not hot.
static inline float dtype_load(Dtype dtype, const void *data, size_t i) {
    switch (dtype) {
        case DTYPE_BF16: return bf16_to_fp32(((const uint16_t *)data)[i]);
        case DTYPE_FP16: return fp16_to_fp32(((const uint16_t *)data)[i]);
        default: return ((const float *)data)[i];
    }
}

static inline void dtype_store(Dtype dtype, void *data, size_t i, float x) {
    switch (dtype) {
        case DTYPE_BF16: ((uint16_t *)data)[i] = fp32_to_bf16(x); break;
        case DTYPE_FP16: ((uint16_t *)data)[i] = fp32_to_fp16(x); break;
        default: ((float *)data)[i] = x;
    }
}

#endif
