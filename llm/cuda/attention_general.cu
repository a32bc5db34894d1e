// Attention for every dtype and head size, in fp32 on the ordinary cores: fp32 runs, and heads that the tensor-core
// kernels do not know.
//
// Three kernels out of two products. A block of 128 threads owns 32 rows (queries, or keys for dk and dv) of one head and
// walks over tiles of 32 of the other side:
//
//     Scores   acc(32, 32) = x(32, D)·y(32, D)ᵀ          both sides through shared memory, 32 columns at a time
//     Weighted acc(32, WIDE) += w(32, 32)·y(32, WIDE)     w: probabilities, or the gradients of scores
//
// Results stay in registers, so a block makes at most WIDE columns of them. Wider heads take several blocks, each of
// which forms the scores again: simple, for any size, and no slower for heads up to 128.
//
// Precision: everything is fp32, also the probabilities before P·V; results are rounded once.
#include <math.h>

#include "llm/cuda/attention.cuh"

namespace {

constexpr int TILE = 32;     // rows of a tile, and columns that a step of a product takes
constexpr int WIDE = 128;    // columns of the results of a block
constexpr int LANES = 16;    // threads that share a row
constexpr int ROW_STEP = 8;  // threads that share a column
constexpr int BLOCK = LANES * ROW_STEP;
static_assert(BLOCK == WIDE, "a thread for each column");
constexpr int ROWS = TILE / ROW_STEP;  // of a thread: row + 8·i, columns lane + 16·j

struct Shared {
    float x[TILE][TILE + 1], y[TILE][TILE + 1], w[TILE][TILE + 1], wide[TILE][WIDE];
};

typedef float Square[ROWS][TILE / LANES];  // a thread's part of a (32, 32) tile
typedef float Result[ROWS][WIDE / LANES];  // a thread's part of (32, WIDE)

// Some rows of one head: row i at data + i·stride. Past `rows` and past `columns` everything reads as 0.
template <class T>
struct Rows {
    const T *data;
    int64_t stride;
    int rows, columns;

    __device__ float get(int row, int column) const {
        return row < rows && column < columns ? to_fp32(data[row * stride + column]) : 0.0f;
    }
};

__device__ inline int lane() {
    return static_cast<int>(threadIdx.x) % LANES;
}
__device__ inline int row_of(int i) {
    return static_cast<int>(threadIdx.x) / LANES + ROW_STEP * i;
}

// Over the 16 threads of a row, the same bits in each.
__device__ inline float lanes_sum(float x) {
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}
__device__ inline float lanes_max(float x) {
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, offset));
    return x;
}

template <class T>
__device__ void scores(Square acc, Shared &shared, const Rows<T> &x, const Rows<T> &y) {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < TILE / LANES; j++)
            acc[i][j] = 0.0f;
    for (int c0 = 0; c0 < x.columns; c0 += TILE) {
        __syncthreads();  // who still reads the columns before these
#pragma unroll 4          // more would cost registers
        for (int n = static_cast<int>(threadIdx.x); n < TILE * TILE; n += BLOCK) {
            int row = n / TILE, column = n % TILE;
            shared.x[row][column] = x.get(row, c0 + column);
            shared.y[row][column] = y.get(row, c0 + column);
        }
        __syncthreads();
#pragma unroll 4
        for (int k = 0; k < TILE; k++)
#pragma unroll
            for (int i = 0; i < ROWS; i++)
#pragma unroll
                for (int j = 0; j < TILE / LANES; j++)
                    acc[i][j] = fmaf(shared.x[row_of(i)][k], shared.y[lane() + LANES * j][k], acc[i][j]);
    }
}

// With y's columns from c0 on.
template <class T>
__device__ void add_weighted(Result acc, Shared &shared, const Square w, const Rows<T> &y, int c0) {
    const int columns = min(WIDE, y.columns - c0);
    __syncthreads();  // who still reads the tile before this one
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < TILE / LANES; j++)
            shared.w[row_of(i)][lane() + LANES * j] = w[i][j];
#pragma unroll 4
    for (int row = 0; row < TILE; row++)
        if (static_cast<int>(threadIdx.x) < columns)
            shared.wide[row][threadIdx.x] = y.get(row, c0 + static_cast<int>(threadIdx.x));
    __syncthreads();
#pragma unroll 4
    for (int k = 0; k < TILE; k++)
#pragma unroll
        for (int j = 0; j < WIDE / LANES; j++) {
            if (LANES * j >= columns)  // the same for the whole block
                break;
            const float right = lane() + LANES * j < columns ? shared.wide[k][lane() + LANES * j] : 0.0f;
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                acc[i][j] = fmaf(shared.w[row_of(i)][k], right, acc[i][j]);
        }
}

// Rounds acc·factor, from column c0 of the rows of a head on.
template <class T>
__device__ void store_result(T *to, int64_t stride, int rows, int columns, int c0, const Result acc,
                             const float (&factor)[ROWS]) {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < WIDE / LANES; j++) {
            int column = c0 + lane() + LANES * j;
            if (row_of(i) < rows && column < columns)
                to[row_of(i) * stride + column] = from_fp32<T>(acc[i][j] * factor[i]);
        }
}

// The tile of rows that starts at t0, of a head of qkv or of a tensor shaped like out.
template <class T>
__device__ Rows<T> qkv_rows(const T *qkv, const AttentionShape &s, int b, int t0, int head) {
    return {qkv + qkv_at(s, b, t0, head), qkv_stride(s), min(TILE, s.seq_len - t0), s.head_dim};
}
template <class T>
__device__ Rows<T> out_rows(const T *out, const AttentionShape &s, int b, int t0, int head) {
    return {out + out_at(s, b, t0, head), out_stride(s), min(TILE, s.seq_len - t0), s.head_dim};
}

// Grid: (tiles of rows, heads · chunks of WIDE columns, batch). Late tiles of queries see the most keys: they start first.
__device__ inline int chunks(const AttentionShape &s) {
    return (s.head_dim + WIDE - 1) / WIDE;
}
__device__ inline int my_head(const AttentionShape &s) {
    return static_cast<int>(blockIdx.y) / chunks(s);
}
__device__ inline int my_column(const AttentionShape &s) {
    return static_cast<int>(blockIdx.y) % chunks(s) * WIDE;
}

template <class T>
__global__ void __launch_bounds__(BLOCK)
    general_forward(T *out, float *lse, const T *qkv, AttentionShape s, float scale) {
    SHARED(Shared, shared, [1]);
    const int q0 = static_cast<int>(gridDim.x - 1 - blockIdx.x) * TILE, h = my_head(s), c0 = my_column(s);
    const int b = static_cast<int>(blockIdx.z);
    const Rows<T> q = qkv_rows(qkv, s, b, q0, h);
    Result acc = {};
    float top[ROWS], sum[ROWS] = {};  // running maximum of the scaled scores, and sum of exp(score - top)
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        top[i] = -INFINITY;

    for (int k0 = 0; k0 <= q0; k0 += TILE) {
        Square p;
        scores(p, shared[0], q, qkv_rows(qkv, s, b, k0, key_head(s, h)));
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float highest = top[i], tile_sum = 0.0f;
#pragma unroll
            for (int j = 0; j < TILE / LANES; j++) {
                bool visible = k0 + lane() + LANES * j <= q0 + row_of(i);
                p[i][j] = visible ? p[i][j] * scale : -INFINITY;
                highest = fmaxf(highest, p[i][j]);
            }
            highest = lanes_max(highest);
            float decay = expf(top[i] - highest);  // of what was summed relative to the old maximum
            top[i] = highest;
#pragma unroll
            for (int j = 0; j < TILE / LANES; j++)
                tile_sum += p[i][j] = expf(p[i][j] - highest);
            sum[i] = fmaf(sum[i], decay, lanes_sum(tile_sum));
#pragma unroll
            for (int j = 0; j < WIDE / LANES; j++)
                acc[i][j] *= decay;
        }
        add_weighted(acc, shared[0], p, qkv_rows(qkv, s, b, k0, value_head(s, h)), c0);
    }

    float factor[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        factor[i] = 1.0f / sum[i];
        if (c0 == 0 && lane() == 0 && row_of(i) < q.rows)
            lse[lse_at(s, b, q0 + row_of(i), h)] = top[i] + logf(sum[i]);
    }
    store_result(out + out_at(s, b, q0, h), out_stride(s), q.rows, s.head_dim, c0, acc, factor);
}

// dq, and delta for the pass after it. The compiler's own choice, 4 blocks, would spill.
template <class T>
__global__ void __launch_bounds__(BLOCK, 3)
    general_backward_queries(T *dqkv, float *delta, const T *dout, const T *qkv, const T *out, const float *lse,
                             AttentionShape s, float scale) {
    SHARED(Shared, shared, [1]);
    const int q0 = static_cast<int>(gridDim.x - 1 - blockIdx.x) * TILE, h = my_head(s), c0 = my_column(s);
    const int b = static_cast<int>(blockIdx.z);
    const Rows<T> q = qkv_rows(qkv, s, b, q0, h), dout_tile = out_rows(dout, s, b, q0, h);
    const Rows<T> out_tile = out_rows(out, s, b, q0, h);
    Result acc = {};
    float row_lse[ROWS], row_delta[ROWS], factor[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int row = row_of(i);
        float dot = 0.0f;
        for (int c = lane(); c < s.head_dim; c += LANES)
            dot = fmaf(dout_tile.get(row, c), out_tile.get(row, c), dot);
        row_delta[i] = lanes_sum(dot);
        row_lse[i] = row < q.rows ? lse[lse_at(s, b, q0 + row, h)] : 0.0f;
        factor[i] = scale;
        if (c0 == 0 && lane() == 0 && row < q.rows)
            delta[lse_at(s, b, q0 + row, h)] = row_delta[i];
    }

    for (int k0 = 0; k0 <= q0; k0 += TILE) {
        const Rows<T> k = qkv_rows(qkv, s, b, k0, key_head(s, h));
        Square p, dp;
        scores(p, shared[0], q, k);
        scores(dp, shared[0], dout_tile, qkv_rows(qkv, s, b, k0, value_head(s, h)));
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < TILE / LANES; j++) {
                bool visible = k0 + lane() + LANES * j <= q0 + row_of(i);
                float prob = expf(fmaf(p[i][j], scale, -row_lse[i]));
                dp[i][j] = visible ? prob * (dp[i][j] - row_delta[i]) : 0.0f;  // the gradient of the score
            }
        add_weighted(acc, shared[0], dp, k, c0);
    }
    store_result(dqkv + qkv_at(s, b, q0, h), qkv_stride(s), q.rows, s.head_dim, c0, acc, factor);
}

// dk and dv: over the query heads that share them, then over tiles of queries. Rows are keys here, columns queries.
template <class T>
__global__ void __launch_bounds__(BLOCK, 2)  // its results take 128 registers: no more than 2 or 3 blocks fit
    general_backward_keys(T *dqkv, const float *delta, const T *dout, const T *qkv, const float *lse, AttentionShape s,
                          float scale) {
    SHARED(Shared, shared, [1]);
    const int k0 = static_cast<int>(blockIdx.x) * TILE, kv = my_head(s), c0 = my_column(s);
    const int b = static_cast<int>(blockIdx.z), group = s.heads / s.kv_heads;
    const Rows<T> k = qkv_rows(qkv, s, b, k0, s.heads + kv), v = qkv_rows(qkv, s, b, k0, s.heads + s.kv_heads + kv);
    Result dk = {}, dv = {};
    float one[ROWS], factor[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        one[i] = 1.0f, factor[i] = scale;

    for (int h = kv * group; h < (kv + 1) * group; h++)
        for (int q0 = k0; q0 < s.seq_len; q0 += TILE) {
            const Rows<T> q = qkv_rows(qkv, s, b, q0, h), dout_tile = out_rows(dout, s, b, q0, h);
            Square p, dp;
            scores(p, shared[0], k, q);
            scores(dp, shared[0], v, dout_tile);
#pragma unroll
            for (int j = 0; j < TILE / LANES; j++) {
                const int t = q0 + lane() + LANES * j;
                const int64_t at = lse_at(s, b, min(t, s.seq_len - 1), h);
                const float query_lse = lse[at], query_delta = delta[at];
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    bool visible = k0 + row_of(i) <= t && t < s.seq_len;
                    p[i][j] = visible ? expf(fmaf(p[i][j], scale, -query_lse)) : 0.0f;
                    dp[i][j] = visible ? p[i][j] * (dp[i][j] - query_delta) : 0.0f;
                }
            }
            add_weighted(dv, shared[0], p, dout_tile, c0);
            add_weighted(dk, shared[0], dp, q, c0);
        }
    store_result(dqkv + qkv_at(s, b, k0, s.heads + kv), qkv_stride(s), k.rows, s.head_dim, c0, dk, factor);
    store_result(dqkv + qkv_at(s, b, k0, s.heads + s.kv_heads + kv), qkv_stride(s), k.rows, s.head_dim, c0, dv, one);
}

dim3 grid_of(const AttentionShape &s, int heads) {
    return dim3(static_cast<unsigned>(ceil_div(s.seq_len, TILE)),
                static_cast<unsigned>(heads * ceil_div(s.head_dim, WIDE)), static_cast<unsigned>(s.batch));
}

float scale_of(const AttentionShape &s) {
    return 1.0f / sqrtf(static_cast<float>(s.head_dim));
}

}  // namespace

template <class T>
void attention_general_forward(cudaStream_t stream, T *out, float *lse, const T *qkv, AttentionShape s) {
    LAUNCH((general_forward<T>), (grid_of(s, s.heads), BLOCK, 0, stream), out, lse, qkv, s, scale_of(s));
}

template <class T>
void attention_general_backward(cudaStream_t stream, T *dqkv, float *delta, const T *dout, const T *qkv, const T *out,
                                const float *lse, AttentionShape s) {
    LAUNCH((general_backward_queries<T>), (grid_of(s, s.heads), BLOCK, 0, stream), dqkv, delta, dout, qkv, out, lse, s,
           scale_of(s));
    LAUNCH((general_backward_keys<T>), (grid_of(s, s.kv_heads), BLOCK, 0, stream), dqkv, delta, dout, qkv, lse, s,
           scale_of(s));
}

#define INSTANCE(T)                                                                                       \
    template void attention_general_forward(cudaStream_t, T *, float *, const T *, AttentionShape);       \
    template void attention_general_backward(cudaStream_t, T *, float *, const T *, const T *, const T *, \
                                             const float *, AttentionShape);
INSTANCE(float)
INSTANCE(bf16)
INSTANCE(fp16)
