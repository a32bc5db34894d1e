// Softmax cross-entropy and its gradient, one block a row of logits.
//
// The row is read twice: for its maximum and the sum of its exponentials, and for the gradient. A row of 50,257 fp32
// logits (200 KB) does not fit a block's registers, and the second time it comes from the second-level cache: the rows
// that are being worked on are at most a few hundred. A block has as many threads as it may, so that few rows at a time
// (the head works in chunks of them) still fill the device with loads.
#include "llm/cuda/ops_cuda.cuh"
#include "llm/cuda/vec.cuh"

constexpr int ROW_THREADS = 1024;

// Maximum and Σ exp(x - max) of a part of a row; the sum is rescaled when the maximum grows (Milakov & Gimelshein 2018).
// NaN and +inf anywhere make the sum NaN; a part that holds nothing but -inf adds 0.
struct RowSum {
    float max, sum;
};
__device__ inline float exp_below(float x, float max) {
    return __expf(x - (max == -INFINITY ? 0.0f : max));
}

template <bool ALIGNED>
__device__ RowSum row_sum(const float *x, int64_t vocab) {
    SHARED(float, warp_values, [2][ROW_THREADS / 32]);
    RowSum mine = {-INFINITY, 0.0f};
    for (int64_t i = static_cast<int64_t>(threadIdx.x) * PACK; i < vocab; i += ROW_THREADS * PACK) {
        float v[PACK], max = mine.max;
        load<ALIGNED>(v, x, i, vocab);
#pragma unroll
        for (int k = 0; k < PACK; k++)
            max = fmaxf(max, i + k < vocab ? v[k] : -INFINITY);
        mine.sum *= exp_below(mine.max, max);
#pragma unroll
        for (int k = 0; k < PACK; k++)
            mine.sum += i + k < vocab ? exp_below(v[k], max) : 0.0f;
        mine.max = max;
    }
    // Over the block: the maximum first, then the sums to that maximum. Each warp adds up all warps, in order.
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    float max = warp_max(mine.max);
    if (lane == 0)
        warp_values[0][warp] = max;
    __syncthreads();
    max = warp_max(warp_values[0][lane]);
    float sum = warp_sum(mine.sum * __expf(mine.max - max));
    if (lane == 0)
        warp_values[1][warp] = sum;
    __syncthreads();
    return {max, warp_sum(warp_values[1][lane])};
}

// d may lie over the logits of the same row: element i of d never reaches past element i of the row, so a stretch of
// the gradient is written when all threads have read that stretch of the logits.
template <class T, bool ALIGNED>
__global__ void __launch_bounds__(ROW_THREADS) cross_entropy(float *losses, T *dlogits, int64_t ld_d, const float *logits,
                                                             int64_t ld, const int32_t *targets, int64_t vocab,
                                                             float scale) {
    const int64_t row = blockIdx.x;
    const int64_t target = targets[row];
    const float *x = logits + row * ld;
    T *d = dlogits ? dlogits + row * ld_d : NULL;
    const bool valid = target >= 0;
    RowSum r = {0.0f, 1.0f};
    if (valid)
        r = row_sum<ALIGNED>(x, vocab);
    // The target's own numbers in double: exp(shifted) / sum - 1 cancels where the model is sure.
    double shifted = 0.0;
    if (threadIdx.x == 0) {
        if (valid)
            shifted = static_cast<double>(x[target]) - static_cast<double>(r.max);
        losses[row] = valid ? static_cast<float>(log(static_cast<double>(r.sum)) - shifted) : 0.0f;
    }
    if (!d)
        return;
    const float factor = valid ? scale / r.sum : 0.0f;
    for (int64_t first = 0; first < vocab; first += ROW_THREADS * PACK) {
        const int64_t i = first + static_cast<int64_t>(threadIdx.x) * PACK;
        float v[PACK] = {};
        if (valid)
            load<ALIGNED>(v, x, i, vocab);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < PACK; k++)
            v[k] = valid ? __expf(v[k] - r.max) * factor : 0.0f;
        store<ALIGNED>(d, i, vocab, v);
    }
    __syncthreads();
    if (threadIdx.x == 0 && valid)
        d[target] = from_fp32<T>(static_cast<float>((exp(shifted) / static_cast<double>(r.sum) - 1.0) *
                                                    static_cast<double>(scale)));
}

void cuda_cross_entropy(Stream *stream, Dtype dt, float *losses, void *dlogits, int64_t ld_d, const float *logits,
                        int64_t ld, const int32_t *targets, int64_t rows, int64_t vocab, float scale) {
    cudaStream_t s = cuda_begin(stream);
    if (!s || rows == 0)
        return;
    const bool can_align = rows_aligned16(ld, DTYPE_FP32) && rows_aligned16(ld_d, dt) && aligned16(dlogits, logits);
    with_dtype(dt, [&](auto t) {
        using T = decltype(t);
        with_bool(can_align, [&](auto aligned) {
            LAUNCH((cross_entropy<T, decltype(aligned)::value>), (static_cast<unsigned>(rows), ROW_THREADS, 0, s), losses,
                   static_cast<T *>(dlogits), ld_d, logits, ld, targets, vocab, scale);
        });
    });
    cuda_end(stream, "cross_entropy");
}
