// Attention's forward on tensor cores: FlashAttention-2, algorithm 1 (Dao 2023).
//
// A block of 4 warps owns 128 queries of one head, 32 a warp, and walks over tiles of keys (64, or 32 for heads of 128) up
// to its diagonal. With 32 rows a warp uses each fragment of K and V twice: with 16, reading shared memory would take as
// long as multiplying. K and V tiles come in turns through a ring of three, so that while one is multiplied the next two
// are under way, with one barrier a product.
//
// Precision: scores, softmax and sums fp32. Probabilities, at most 1, are rounded to T for P·V, as everywhere; their sum
// is of the unrounded ones. Results are divided by the sum and rounded once.
//
// Resources: shared memory 40 KiB (D = 64) or 56 KiB (D = 128); 250 to 255 registers and no spills, so 2 blocks or 8 warps
// a multiprocessor. Results and scores of 32 rows are 128 to 160 of the registers: more warps would mean fewer rows each,
// and more reads of shared memory for each product.
#include "llm/cuda/attention_tile.cuh"

namespace {

constexpr int M = 2, QUERIES = 16 * M * WARPS, RING = 3;
// Rows of a tile of keys. Results of heads of 128 leave registers for fewer.
template <int D>
constexpr int KEYS_OF = D == 64 ? 64 : 32;

template <int D>
constexpr int SHARED_BYTES = (QUERIES + RING * KEYS_OF<D>)*Tile<D>::ROW_BYTES;

// Of the rows of this thread: [m][i] is row 16m + lane/4 + 8i of the warp.
typedef float PerRow[M][2];

// Scores become probabilities relative to the new running maximum `top`; what was summed so far decays to it.
// key0 - query0 is where the tile lies: masked tells whether any of it is above the diagonal.
template <int D, int KEYS>
__device__ void online_softmax(float (&p)[M][KEYS / 8][4], float (&acc)[M][D / 8][4], PerRow &top, PerRow &sum,
                               int key0, int query0, bool masked) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int first = query0 + 16 * m + lane_id() / 4 + 8 * i - key0 - lane_id() % 4 * 2;
            float highest = top[m][i];
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    float &score = p[m][n][2 * i + j];
                    if (masked && 8 * n + j > first)
                        score = -INFINITY;
                    highest = fmaxf(highest, score);
                }
            highest = quad_max(highest);
            const float decay = exp2_fast((top[m][i] - highest) * SCALE2<D>), offset = highest * SCALE2<D>;
            top[m][i] = highest;
            sum[m][i] *= decay;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    float &score = p[m][n][2 * i + j];
                    score = exp2_fast(fmaf(score, SCALE2<D>, -offset));
                    sum[m][i] += score;
                }
#pragma unroll
            for (int n = 0; n < D / 8; n++)
#pragma unroll
                for (int j = 0; j < 2; j++)
                    acc[m][n][2 * i + j] *= decay;
        }
}

// Grid: (tiles of queries, heads, batch). Late tiles see the most keys: they start first.
template <class T, int D>
__global__ void __launch_bounds__(THREADS_MMA) flash_forward(T *out, float *lse, const T *qkv, AttentionShape s) {
    DYN_SHARED(char, memory);  // (QUERIES, D), then RING times (KEYS, D)
    constexpr int ROW_BYTES = Tile<D>::ROW_BYTES, KEYS = KEYS_OF<D>;
    const int q0 = static_cast<int>(gridDim.x - 1 - blockIdx.x) * QUERIES, h = static_cast<int>(blockIdx.y);
    const int b = static_cast<int>(blockIdx.z), query0 = q0 + warp_id() * 16 * M;  // the warp's first
    const int64_t stride = qkv_stride(s);
    char *my_rows = memory + warp_id() * 16 * M * ROW_BYTES;
    const SharedAddress ring = shared_address(memory) + QUERIES * ROW_BYTES;
    const int steps = 2 * ((min(q0 + QUERIES, s.seq_len) + KEYS - 1) / KEYS);  // K, V, K, V, …
    auto slot = [&](int step) { return ring + static_cast<SharedAddress>(step % RING * KEYS * ROW_BYTES); };
    auto fetch = [&](int step) {
        if (step < steps) {
            const int k0 = step / 2 * KEYS, head = step % 2 ? value_head(s, h) : key_head(s, h);
            load_tile<D, KEYS>(slot(step), qkv + qkv_at(s, b, k0, head), stride, s.seq_len - k0);
        }
        cp_async_commit();
    };

    load_tile<D, QUERIES>(shared_address(memory), qkv + qkv_at(s, b, q0, h), stride, s.seq_len - q0);
    fetch(0);
    fetch(1);
    RowFragments<D, M, D == 64> q(shared_address(my_rows));
    float acc[M][D / 8][4] = {};
    PerRow top, sum = {};
#pragma unroll
    for (int m = 0; m < M; m++)
        top[m][0] = top[m][1] = -INFINITY;

    for (int step = 0; step < steps; step += 2) {
        const int k0 = step / 2 * KEYS;
        const bool visible = k0 < query0 + 16 * M;  // to any query of this warp
        float p[M][KEYS / 8][4];
        cp_async_wait<1>();
        __syncthreads();  // the tile of this step is there, and nobody reads the one before any more
        fetch(step + 2);
        if (step == 0)
            q.hold();
        if (visible) {
            multiply_rows<T>(p, q, slot(step));
            online_softmax<D, KEYS>(p, acc, top, sum, k0, query0, k0 + KEYS - 1 > query0);
        }
        cp_async_wait<1>();
        __syncthreads();
        fetch(step + 3);
        if (visible)
            add_weighted_rows<T, D>(acc, p, slot(step + 1));
    }

    PerRow factor;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int t = query0 + 16 * m + lane_id() / 4 + 8 * i;
            const float total = quad_sum(sum[m][i]);
            factor[m][i] = 1.0f / total;
            if (lane_id() % 4 == 0 && t < s.seq_len)
                lse[lse_at(s, b, t, h)] = fmaf(top[m][i], SCALE<D>, logf(total));
        }
    store_rows<T, D>(out + out_at(s, b, query0, h), out_stride(s), s.seq_len - query0, acc, factor, my_rows);
}

}  // namespace

template <class T, int D>
void attention_mma_forward(cudaStream_t stream, T *out, float *lse, const T *qkv, AttentionShape s) {
    const dim3 grid(static_cast<unsigned>(ceil_div(s.seq_len, QUERIES)), static_cast<unsigned>(s.heads),
                    static_cast<unsigned>(s.batch));
    allow_shared_bytes<flash_forward<T, D>>(SHARED_BYTES<D>);
    LAUNCH((flash_forward<T, D>), (grid, THREADS_MMA, SHARED_BYTES<D>, stream), out, lse, qkv, s);
}

#define INSTANCE(T, D) template void attention_mma_forward<T, D>(cudaStream_t, T *, float *, const T *, AttentionShape);
INSTANCE(bf16, 64)
INSTANCE(bf16, 128)
INSTANCE(fp16, 64)
INSTANCE(fp16, 128)
