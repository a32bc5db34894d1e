// Flat arrays: conversion, addition, sums of squares, and the optimizer step.
#include "llm/adamw.h"
#include "llm/cpu/kernels.h"
#include "llm/cpu/simd.h"

SIMD void convert_dt(Dtype to, Dtype from, const Flat *a, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += 16)
        v_store_to(to, a->to, i, end, v_load_to(from, a->from, i, end));
}
static void convert(const void *arguments, int64_t begin, int64_t end) {
    const Flat *a = arguments;
    switch (a->to_dtype) {
        case DTYPE_BF16: WITH_DTYPE(a->from_dtype, convert_dt(DTYPE_BF16, DT, a, begin, end)); break;
        case DTYPE_FP16: WITH_DTYPE(a->from_dtype, convert_dt(DTYPE_FP16, DT, a, begin, end)); break;
        default: WITH_DTYPE(a->from_dtype, convert_dt(DTYPE_FP32, DT, a, begin, end));
    }
}

SIMD void add_dt(Dtype to, Dtype from, const Flat *a, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += 16)
        v_store_to(to, a->to, i, end, v_load_to(to, a->to, i, end) + v_load_to(from, a->from, i, end));
}
static void add(const void *arguments, int64_t begin, int64_t end) {
    const Flat *a = arguments;
    switch (a->to_dtype) {
        case DTYPE_BF16: WITH_DTYPE(a->from_dtype, add_dt(DTYPE_BF16, DT, a, begin, end)); break;
        case DTYPE_FP16: WITH_DTYPE(a->from_dtype, add_dt(DTYPE_FP16, DT, a, begin, end)); break;
        default: WITH_DTYPE(a->from_dtype, add_dt(DTYPE_FP32, DT, a, begin, end));
    }
}

// The tree of ops.h: lane j of 256 takes elements j, j+256, … of the tile; then lanes are added by halves.
enum { VECTORS = SUMSQ_LANES / 16 };
SIMD void sumsq_dt(Dtype dt, const Flat *a, int64_t begin, int64_t end) {
    const f32x16 divisor = v_set(a->divisor);
    for (int64_t tile = begin; tile < end; tile++) {
        f32x16 lanes[VECTORS] = {0};
        int64_t first = tile * SUMSQ_TILE, last = first + SUMSQ_TILE < a->len ? first + SUMSQ_TILE : a->len;
        int64_t whole = first + (last - first) / SUMSQ_LANES * SUMSQ_LANES;
        for (int64_t i = first; i < whole; i += SUMSQ_LANES) {
            for (int k = 0; k < VECTORS; k++) {
                f32x16 x = v_load(dt, a->from, i + 16 * k) / divisor;
                lanes[k] = v_fma_exact(x, x, lanes[k]);
            }
        }
        for (int64_t i = whole; i < last; i += 16) {
            f32x16 x = v_load_to(dt, a->from, i, last) / divisor;
            f32x16 *lane = &lanes[(i - whole) / 16];
            *lane = v_fma_exact(x, x, *lane);
        }
        for (int half = VECTORS / 2; half > 0; half /= 2)
            for (int k = 0; k < half; k++)
                lanes[k] += lanes[k + half];
        ((float *)a->to)[tile] = v_sum(lanes[0]);
    }
}
static void sumsq(const void *arguments, int64_t begin, int64_t end) {
    const Flat *a = arguments;
    WITH_DTYPE(a->from_dtype, sumsq_dt(DT, a, begin, end));
}

// ---- optimizer step: plain loops over adamw.h, which the compiler vectorises, in chunks that stay in the cache ----
enum { CHUNK = 1024 };

static void adamw_chunk(float *restrict w, float *restrict m, float *restrict v, const float *restrict g, int64_t len,
                        const AdamwScalars *scalars) {
    const AdamwScalars s = *scalars;
    for (int64_t i = 0; i < len; i++)
        adamw_element(&w[i], &m[i], &v[i], g[i], &s);
}
static void sgd_chunk(float *restrict w, float *restrict m, const float *restrict g, int64_t len,
                      const AdamwScalars *scalars) {
    const AdamwScalars s = *scalars;
    for (int64_t i = 0; i < len; i++)
        sgd_element(&w[i], &m[i], g[i], &s);
}
static void adamw_range(const AdamwArgs *a, int64_t begin, int64_t end, bool decays) {
    const AdamwScalars scalars = adamw_scalars(a, decays);
    float converted[CHUNK];
    for (int64_t i = begin; i < end; i += CHUNK) {
        int64_t len = end - i < CHUNK ? end - i : CHUNK;
        const float *grad = (const float *)a->grad + i;
        if (a->grad_dtype != DTYPE_FP32) {
            const Flat to_fp32 = {converted, DTYPE_FP32, (const uint16_t *)a->grad + i, a->grad_dtype, len, 1.0f};
            convert(&to_fp32, 0, len);
            grad = converted;
        }
        if (a->kind == OPT_SGD)
            sgd_chunk(a->master + i, a->m + i, grad, len, &scalars);
        else
            adamw_chunk(a->master + i, a->m + i, a->v + i, grad, len, &scalars);
        if (a->param) {
            const Flat rounded = {a->param, a->param_dtype, a->master, DTYPE_FP32, a->len, 1.0f};
            convert(&rounded, i, i + len);
        }
    }
}
static void adamw(const void *arguments, int64_t begin, int64_t end) {
    const AdamwArgs *a = arguments;
    int64_t range_begin = 0;
    for (int r = 0; r < a->n_ranges; r++) {
        int64_t from = range_begin > begin ? range_begin : begin, to = a->range_end[r] < end ? a->range_end[r] : end;
        if (from < to)
            adamw_range(a, from, to, a->range_decay[r]);
        range_begin = a->range_end[r];
    }
}

const FlatKernels ISA_NAME(flat_kernels) = {convert, add, sumsq, adamw};
