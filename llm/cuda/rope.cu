// Rotary position embedding in place (Su et al. 2021), "rotate half" pairing.
#include "llm/cuda/ops_cuda.cuh"
#include "llm/cuda/vec.cuh"

// Pair (x1, x2) = (x[i], x[i + pairs]) of every query and key head turns by the angle of (position, i). A thread takes a
// pack of pairs of one row through HEADS heads: their angles are read once for all of them. Queries and keys are read
// and written once; values are not touched.
constexpr int HEADS = 8;

template <class T, bool ALIGNED>
__global__ void __launch_bounds__(THREADS) rotate(T *qkv, const float *cos_sin, int64_t rows, int seq_len,
                                                  int first_position, int turned, int64_t width, int pairs, bool inverse) {
    const int packs = (pairs + PACK - 1) / PACK, head0 = static_cast<int>(blockIdx.y) * HEADS;
    const int heads = min(turned - head0, HEADS);
    const int64_t items = rows * packs, step = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t item = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; item < items; item += step) {
        const int64_t row = item / packs, i = (item - row * packs) * PACK;
        const float *angles = cos_sin + (row % seq_len + first_position) * 2 * pairs;
        float turn[2 * PACK];  // cos and sin in turn
        load<ALIGNED>(turn, angles, 2 * i, 2 * pairs);
        T *head = qkv + row * width + static_cast<int64_t>(head0) * 2 * pairs;
        for (int h = 0; h < heads; h++, head += 2 * pairs) {
            float x1[PACK], x2[PACK];
            load<ALIGNED>(x1, head, i, pairs);
            load<ALIGNED>(x2, head + pairs, i, pairs);
#pragma unroll
            for (int k = 0; k < PACK; k++) {
                const float c = turn[2 * k], s = inverse ? -turn[2 * k + 1] : turn[2 * k + 1], a = x1[k], b = x2[k];
                x1[k] = fmaf(a, c, -(b * s));
                x2[k] = fmaf(b, c, a * s);
            }
            store<ALIGNED>(head, i, pairs, x1);
            store<ALIGNED>(head + pairs, i, pairs, x2);
        }
    }
}

void cuda_rope(Stream *stream, Dtype dt, void *qkv, RopeTable table, AttentionShape shape, int first_position,
               bool inverse) {
    cudaStream_t s = cuda_begin(stream);
    const int64_t rows = static_cast<int64_t>(shape.batch) * shape.seq_len;
    if (!s || rows == 0)
        return;
    const int pairs = shape.head_dim / 2, turned = shape.heads + shape.kv_heads;
    const int64_t width = static_cast<int64_t>(turned + shape.kv_heads) * shape.head_dim;
    const dim3 grid(flat_grid(stream, rows * ceil_div(pairs, PACK)), static_cast<unsigned>(ceil_div(turned, HEADS)));
    with_dtype(dt, [&](auto t) {
        using T = decltype(t);
        with_bool(rows_aligned16(pairs, dt) && aligned16(qkv, table.cos_sin), [&](auto aligned) {
            LAUNCH((rotate<T, decltype(aligned)::value>), (grid, THREADS, 0, s), static_cast<T *>(qkv), table.cos_sin,
                   rows, shape.seq_len, first_position, turned, width, pairs, inverse);
        });
    });
    cuda_end(stream, "rope");
}
