// Attention of one new token to all before it (sampling).
//
// A block for each query head. Its warps share out the positions, each with a running maximum, sum and result of its own,
// which are put together in the order of the warps. The new key and value are read where they come from; one block of
// those that share them also appends them to the caches, at a position that nobody else reads.
#include <math.h>

#include "llm/cuda/attention.cuh"

namespace {

constexpr int WARPS = 8;

// Dynamic shared memory: q (head_dim), results (WARPS, head_dim).
template <class T>
__global__ void __launch_bounds__(32 * WARPS) decode(T *out, T *k_cache, T *v_cache, const T *qkv, AttentionShape s,
                                                     float scale, int position, int max_positions) {
    DYN_SHARED(float, q);
    SHARED(float, tops, [WARPS]);
    SHARED(float, sums, [WARPS]);
    const int d = s.head_dim, h = static_cast<int>(blockIdx.x), group = s.heads / s.kv_heads, kv = h / group;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const T *new_k = qkv + static_cast<int64_t>(key_head(s, h)) * d;
    const T *new_v = qkv + static_cast<int64_t>(value_head(s, h)) * d;
    const int64_t cache = static_cast<int64_t>(kv) * max_positions * d;
    float *results = q + d, *mine = results + warp * d;

    for (int c = thread; c < d; c += 32 * WARPS) {
        q[c] = to_fp32(qkv[static_cast<int64_t>(h) * d + c]);
        if (h % group == 0) {
            const int64_t at = cache + static_cast<int64_t>(position) * d + c;
            k_cache[at] = new_k[c];
            v_cache[at] = new_v[c];
        }
    }
    for (int c = lane; c < d; c += 32)
        mine[c] = 0.0f;
    __syncthreads();

    float top = -INFINITY, sum = 0.0f;
    for (int p = warp; p <= position; p += WARPS) {
        const int64_t at = cache + static_cast<int64_t>(p) * d;
        const T *k = p == position ? new_k : k_cache + at, *v = p == position ? new_v : v_cache + at;
        float dot = 0.0f;
        for (int c = lane; c < d; c += 32)
            dot = fmaf(q[c], to_fp32(k[c]), dot);
        const float score = warp_sum(dot) * scale, highest = fmaxf(top, score);
        const float decay = expf(top - highest), weight = expf(score - highest);
        top = highest;
        sum = fmaf(sum, decay, weight);
        for (int c = lane; c < d; c += 32)
            mine[c] = fmaf(mine[c], decay, weight * to_fp32(v[c]));
    }
    if (lane == 0) {
        tops[warp] = top;
        sums[warp] = sum;
    }
    __syncthreads();

    float highest = tops[0];  // of warp 0, which has position 0; warps without a position weigh exp(-inf) = 0
    for (int w = 1; w < WARPS; w++)
        highest = fmaxf(highest, tops[w]);
    float total = 0.0f;
    for (int w = 0; w < WARPS; w++)
        total = fmaf(sums[w], expf(tops[w] - highest), total);
    for (int c = thread; c < d; c += 32 * WARPS) {
        float result = 0.0f;
        for (int w = 0; w < WARPS; w++)
            result = fmaf(results[w * d + c], expf(tops[w] - highest), result);
        out[static_cast<int64_t>(h) * d + c] = from_fp32<T>(result / total);
    }
}

}  // namespace

void cuda_attention_decode(Stream *stream, Dtype dt, void *out, void *k_cache, void *v_cache, const void *qkv,
                           AttentionShape shape, int position, int max_positions) {
    cudaStream_t s = cuda_begin(stream);
    if (!s)
        return;
    const size_t shared_bytes = static_cast<size_t>(1 + WARPS) * static_cast<size_t>(shape.head_dim) * sizeof(float);
    with_dtype(dt, [&](auto type) {
        using T = decltype(type);
        if (shared_bytes > 48 << 10)  // what every launch may have; heads wider than 1,365
            cudaFuncSetAttribute(decode<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes));
        LAUNCH((decode<T>), (static_cast<unsigned>(shape.heads), 32 * WARPS, shared_bytes, s), static_cast<T *>(out),
               static_cast<T *>(k_cache), static_cast<T *>(v_cache), static_cast<const T *>(qkv), shape,
               1.0f / sqrtf(static_cast<float>(shape.head_dim)), position, max_positions);
    });
    cuda_end(stream, "attention_decode");
}
