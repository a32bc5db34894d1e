// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019), forward and backward.
#include "llm/cpu/kernels.h"
#include "llm/cpu/simd.h"

SIMD const void *row_of(Dtype dt, const void *matrix, int64_t row, int64_t channels) {
    return (const char *)matrix + row * channels * (int64_t)dtype_bytes(dt);
}

// The row stays in the first-level cache, so the variance gets a pass of its own: exact also where |mean| ≫ deviation.
SIMD void forward(Dtype dt, NormKind kind, const NormForward *a, int64_t begin, int64_t end) {
    const int64_t C = a->channels;
    for (int64_t row = begin; row < end; row++) {
        const void *x = row_of(dt, a->x, row, C);
        void *y = (void *)row_of(dt, a->y, row, C);
        float mean = 0.0f;
        if (kind == NORM_LAYER) {
            f32x16 sum = v_zero();
            for (int64_t i = 0; i < C; i += 16)
                sum += v_load_to(dt, x, i, C);
            mean = v_sum(sum) / (float)C;
        }
        f32x16 squares = v_zero();
        for (int64_t i = 0; i < C; i += 16) {
            f32x16 d = v_load_to(dt, x, i, C) - v_set(mean);
            if (i + 16 > C)
                d = v_first(d, C - i);
            squares = v_fma(d, d, squares);
        }
        float rstd = 1.0f / sqrtf(v_sum(squares) / (float)C + a->eps);
        for (int64_t i = 0; i < C; i += 16) {
            f32x16 xhat = (v_load_to(dt, x, i, C) - v_set(mean)) * v_set(rstd), w = v_load_to(dt, a->weight, i, C);
            v_store_to(dt, y, i, C, a->bias ? v_fma(xhat, w, v_load_to(dt, a->bias, i, C)) : xhat * w);
        }
        if (a->mean)
            a->mean[row] = mean;
        if (a->rstd)
            a->rstd[row] = rstd;
    }
}
static void norm_forward(const void *arguments, int64_t begin, int64_t end) {
    const NormForward *a = arguments;
    if (a->kind == NORM_LAYER)
        WITH_DTYPE(a->dt, forward(DT, NORM_LAYER, a, begin, end));
    else
        WITH_DTYPE(a->dt, forward(DT, NORM_RMS, a, begin, end));
}

// With x̂ = (x - mean)·rstd and dn = dy·weight:
//     dx = rstd·(dn - avg(dn) - x̂·avg(dn·x̂))      (RMSNorm: mean = 0 and no avg(dn))
//     dweight = Σ dy·x̂,  dbias = Σ dy, here over the rows of one block
SIMD void backward(Dtype dt, NormKind kind, const NormBackward *a, int64_t begin, int64_t end) {
    const int64_t C = a->channels;
    for (int64_t block = begin; block < end; block++) {
        float *dweight = a->partials + block * 2 * a->stride, *dbias = dweight + a->stride;
        memset(dweight, 0, (size_t)(2 * a->stride) * sizeof(float));
        int64_t last = (block + 1) * a->block_rows;
        if (last > a->rows)
            last = a->rows;
        for (int64_t row = block * a->block_rows; row < last; row++) {
            const void *dy_row = row_of(dt, a->dy, row, C), *x_row = row_of(dt, a->x, row, C);
            const void *residual = a->residual ? row_of(dt, a->residual, row, C) : NULL;
            void *dx = (void *)row_of(dt, a->dx, row, C);
            f32x16 mean = v_set(kind == NORM_LAYER ? a->mean[row] : 0.0f), rstd = v_set(a->rstd[row]);
            f32x16 sum = v_zero(), dot = v_zero();
            for (int64_t i = 0; i < C; i += 16) {
                f32x16 dy = v_load_to(dt, dy_row, i, C), xhat = (v_load_to(dt, x_row, i, C) - mean) * rstd;
                f32x16 dn = dy * v_load_to(dt, a->weight, i, C);
                dot = v_fma(dn, xhat, dot);
                v_store_fp32(dweight + i, v_fma(dy, xhat, v_load_fp32(dweight + i)));
                if (kind == NORM_LAYER) {
                    sum += dn;
                    v_store_fp32(dbias + i, v_load_fp32(dbias + i) + dy);
                }
            }
            f32x16 avg_dn = v_set(v_sum(sum) / (float)C), avg_dot = v_set(v_sum(dot) / (float)C);
            for (int64_t i = 0; i < C; i += 16) {
                f32x16 xhat = (v_load_to(dt, x_row, i, C) - mean) * rstd;
                f32x16 dn = v_load_to(dt, dy_row, i, C) * v_load_to(dt, a->weight, i, C);
                f32x16 d = rstd * v_fma(-xhat, avg_dot, dn - avg_dn);
                v_store_to(dt, dx, i, C, residual ? d + v_load_to(dt, residual, i, C) : d);
            }
        }
    }
}
static void norm_backward(const void *arguments, int64_t begin, int64_t end) {
    const NormBackward *a = arguments;
    if (a->kind == NORM_LAYER)
        WITH_DTYPE(a->dt, backward(DT, NORM_LAYER, a, begin, end));
    else
        WITH_DTYPE(a->dt, backward(DT, NORM_RMS, a, begin, end));
}

// `to` (+)= the blocks' sums, in block order.
SIMD void sum_blocks(const NormBackward *a, float *to, const float *partials, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += 16) {
        f32x16 sum = v_zero();
        for (int64_t block = 0; block < a->n_blocks; block++)
            sum += v_load_fp32(partials + block * 2 * a->stride + i);
        v_store_to(DTYPE_FP32, to, i, end, a->accumulate ? v_load_to(DTYPE_FP32, to, i, end) + sum : sum);
    }
}
static void norm_sum_partials(const void *arguments, int64_t begin, int64_t end) {
    const NormBackward *a = arguments;
    sum_blocks(a, a->dweight, a->partials, begin, end);
    if (a->dbias)
        sum_blocks(a, a->dbias, a->partials + a->stride, begin, end);
}

const NormKernels ISA_NAME(norm_kernels) = {norm_forward, norm_backward, norm_sum_partials};
