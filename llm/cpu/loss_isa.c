// Softmax cross-entropy and its gradient, a row of logits at a time.
#include "llm/cpu/kernels.h"
#include "llm/cpu/simd.h"

// Columns whose maximum is found before their exponentials are summed: they are still in the first-level cache then, so
// a row comes from memory once. The sum so far is rescaled when the maximum grows (Milakov & Gimelshein 2018).
enum { COLUMNS = 1024 };

typedef struct RowSum {
    float max;
    double sum;  // Σ exp(x - max). NaN and +inf in the row make it NaN.
} RowSum;

SIMD RowSum row_sum(const float *x, int64_t vocab) {
    RowSum r = {-INFINITY, 0.0};
    for (int64_t begin = 0; begin < vocab; begin += COLUMNS) {
        int64_t end = begin + COLUMNS < vocab ? begin + COLUMNS : vocab, whole = begin + (end - begin) / 16 * 16;
        f32x16 lanes = v_set(r.max), sum = v_zero();
        for (int64_t i = begin; i < whole; i += 16)
            lanes = v_max(lanes, v_load_fp32(x + i));
        float max = v_max_lane(lanes);
        for (int64_t i = whole; i < end; i++)
            max = x[i] > max ? x[i] : max;
        for (int64_t i = begin; i < whole; i += 16)
            sum += v_exp(v_load_fp32(x + i) - v_set(max));
        if (whole < end)
            sum += v_first(v_exp(v_load_to(DTYPE_FP32, x, whole, end) - v_set(max)), end - whole);
        if (max > r.max)
            r.sum *= exp((double)r.max - (double)max);
        r.max = max;
        r.sum += (double)v_sum(sum);
    }
    return r;
}

SIMD void cross_entropy_dt(Dtype dt, const CrossEntropy *a, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        const float *x = a->logits + row * a->ld;
        const int32_t target = a->targets[row];
        char *d = a->dlogits ? (char *)a->dlogits + row * a->ld_d * (int64_t)dtype_bytes(dt) : NULL;
        if (target < 0) {
            a->losses[row] = 0.0f;
            if (d)
                memset(d, 0, (size_t)a->vocab * dtype_bytes(dt));
            continue;
        }
        const RowSum r = row_sum(x, a->vocab);
        const double shifted = (double)x[target] - (double)r.max;
        a->losses[row] = (float)(log(r.sum) - shifted);
        if (!d)
            continue;
        // d may lie over x: element i of d never reaches past element i of x, so only what was read is overwritten.
        const f32x16 max = v_set(r.max), factor = v_set((float)((double)a->scale / r.sum));
        for (int64_t i = 0; i < a->vocab; i += 16)
            v_store_to(dt, d, i, a->vocab, v_exp(v_load_to(DTYPE_FP32, x, i, a->vocab) - max) * factor);
        dtype_store(dt, d, (size_t)target, (float)((exp(shifted) / r.sum - 1.0) * (double)a->scale));
    }
}
static void cross_entropy(const void *arguments, int64_t begin, int64_t end) {
    const CrossEntropy *a = arguments;
    WITH_DTYPE(a->dt, cross_entropy_dt(DT, a, begin, end));
}

const LossKernels ISA_NAME(loss_kernels) = {cross_entropy};
