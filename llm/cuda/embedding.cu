// Token and position embeddings.
#include "llm/cuda/ops_cuda.cuh"
#include "llm/cuda/vec.cuh"

// x(row, C) = token_table[tokens[row]] + position_table[row % seq_len + first_position]
template <class T, bool ALIGNED>
__global__ void __launch_bounds__(THREADS) embed(T *x, const T *token_table, const T *position_table,
                                                 const int32_t *tokens, int64_t rows, int seq_len, int first_position,
                                                 int64_t C) {
    const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * PACK;
    const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.y;
    if (i >= C)
        return;
    for (int64_t row = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows; row += step) {
        float v[PACK];
        load<ALIGNED>(v, token_table + tokens[row] * C, i, C);
        if (position_table) {
            float p[PACK];
            load<ALIGNED>(p, position_table + (row % seq_len + first_position) * C, i, C);
#pragma unroll
            for (int k = 0; k < PACK; k++)
                v[k] += p[k];
        }
        store<ALIGNED>(x + row * C, i, C, v);
    }
}

// dtoken_table[tokens[row]] += dx[row], over equal tokens in row order.
//
// The first row that holds a token owns it: its block looks for the other rows of that token, in order, and adds them in
// registers, so a table row is read and written once and dx is read once. Nothing is sorted and no scratch is needed.
// What it costs is that owners look through all tokens: unique tokens · rows comparisons. The tokens (64 KiB for 16,384
// rows) stay in the first-level cache, and the other blocks stop at the previous row with their token, which is near
// when the token is frequent. A block of 128 threads covers 1,024 channels; blockIdx.y the next 1,024.
constexpr int OWNER_THREADS = 128, WINDOW = 4 * OWNER_THREADS, MASKS = WINDOW / 32;

template <class T, bool ALIGNED>
__global__ void __launch_bounds__(OWNER_THREADS, 8)
    token_gradient(float *dtoken_table, const T *dx, const int32_t *tokens, int64_t rows, int64_t C, bool accumulate) {
    SHARED(uint32_t, masks, [MASKS]);  // bit l of masks[w]: row 32·w + l of the window holds the token
    SHARED(int, matches, [WINDOW]);    // those rows in order
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    const int64_t i = (static_cast<int64_t>(blockIdx.y) * OWNER_THREADS + thread) * PACK;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const int32_t token = tokens[row];
        int earlier = 0;
        for (int64_t end = row; end > 0 && !earlier; end -= WINDOW) {
            bool found = false;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int64_t r = end - 1 - k * OWNER_THREADS - thread;
                found |= r >= 0 && tokens[r] == token;
            }
            earlier = __syncthreads_or(found);
        }
        if (earlier)
            continue;

        float sum[PACK] = {};
        if (accumulate)
            load<ALIGNED>(sum, dtoken_table + token * C, i, C);
        for (int64_t first = row; first < rows; first += WINDOW) {
            uint32_t found[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int64_t r = first + k * OWNER_THREADS + thread;
                found[k] = __ballot_sync(ALL_LANES, r < rows && tokens[r] == token);
            }
            if (!__syncthreads_or((found[0] | found[1] | found[2] | found[3]) != 0))
                continue;
            if (lane == 0)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    masks[(k * OWNER_THREADS + thread) / 32] = found[k];
            __syncthreads();
            // A match's place in the list: how many are before it.
            int n_matches = 0;
            for (int w = 0; w < MASKS; w++) {
                if (w % (OWNER_THREADS / 32) == thread / 32 && masks[w] >> lane & 1)
                    matches[n_matches + __popc(masks[w] & ((1u << lane) - 1))] = 32 * w + lane;
                n_matches += __popc(masks[w]);
            }
            __syncthreads();
#pragma unroll 4
            for (int m = 0; m < n_matches; m++) {
                float d[PACK];
                load<ALIGNED>(d, dx + (first + matches[m]) * C, i, C);
#pragma unroll
                for (int k = 0; k < PACK; k++)
                    sum[k] += d[k];
            }
        }
        store<ALIGNED>(dtoken_table + token * C, i, C, sum);
    }
}

// dposition_table[t] (+)= Σ over sequences of dx[sequence·T + t], in their order
template <class T, bool ALIGNED>
__global__ void __launch_bounds__(THREADS) position_gradient(float *dposition_table, const T *dx, int64_t rows,
                                                             int seq_len, int64_t C, bool accumulate) {
    const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * PACK;
    const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.y;
    if (i >= C)
        return;
    for (int64_t t = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; t < seq_len; t += step) {
        float sum[PACK] = {};
        if (accumulate)
            load<ALIGNED>(sum, dposition_table + t * C, i, C);
#pragma unroll 4
        for (int64_t row = t; row < rows; row += seq_len) {
            float d[PACK];
            load<ALIGNED>(d, dx + row * C, i, C);
#pragma unroll
            for (int k = 0; k < PACK; k++)
                sum[k] += d[k];
        }
        store<ALIGNED>(dposition_table + t * C, i, C, sum);
    }
}

void cuda_embedding_forward(Stream *stream, Dtype dt, void *x, const void *token_table, const void *position_table,
                            const int32_t *tokens, int64_t rows, int seq_len, int first_position, int64_t channels) {
    cudaStream_t s = cuda_begin(stream);
    if (!s || rows == 0)
        return;
    with_dtype(dt, [&](auto t) {
        using T = decltype(t);
        with_bool(rows_aligned16(channels, dt) && aligned16(x, token_table, position_table), [&](auto aligned) {
            LAUNCH((embed<T, decltype(aligned)::value>), (matrix_grid(rows, channels, PACK), matrix_block(), 0, s),
                   static_cast<T *>(x), static_cast<const T *>(token_table), static_cast<const T *>(position_table),
                   tokens, rows, seq_len, first_position, channels);
        });
    });
    cuda_end(stream, "embedding_forward");
}

void cuda_embedding_backward(Stream *stream, Dtype dt, float *dtoken_table, float *dposition_table, const void *dx,
                             const int32_t *tokens, int64_t rows, int seq_len, int64_t channels, int64_t vocab,
                             int64_t positions, bool accumulate_tokens, bool accumulate_positions) {
    if (!accumulate_tokens)
        stream_zero(stream, dtoken_table, static_cast<size_t>(vocab * channels) * sizeof(float));
    if (dposition_table && !accumulate_positions && positions > seq_len)
        stream_zero(stream, dposition_table + seq_len * channels,
                    static_cast<size_t>((positions - seq_len) * channels) * sizeof(float));
    cudaStream_t s = cuda_begin(stream);
    if (!s || rows == 0)
        return;
    const int64_t chunks = ceil_div(channels, OWNER_THREADS * PACK), most = 1 << 20;
    const dim3 owners(static_cast<unsigned>(rows < most ? rows : most), static_cast<unsigned>(chunks));
    with_dtype(dt, [&](auto t) {
        using T = decltype(t);
        const bool can_align = rows_aligned16(channels, dt) && aligned16(dtoken_table, dposition_table, dx);
        with_bool(can_align, [&](auto aligned) {
            LAUNCH((token_gradient<T, decltype(aligned)::value>), (owners, OWNER_THREADS, 0, s), dtoken_table,
                   static_cast<const T *>(dx), tokens, rows, channels, accumulate_tokens);
            if (dposition_table)
                LAUNCH((position_gradient<T, decltype(aligned)::value>),
                       (matrix_grid(seq_len, channels, PACK), matrix_block(), 0, s), dposition_table,
                       static_cast<const T *>(dx), rows, seq_len, channels, accumulate_positions);
        });
    });
    cuda_end(stream, "embedding_backward");
}
