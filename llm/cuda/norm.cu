// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019), forward and backward.
//
// A row belongs to blockDim.x threads (a multiple of a warp), each with one pack of N channels in registers from the
// first pass over the row to the last: x, dy and the residual are read once. Narrow rows share a block: threadIdx.y
// says which. Weights stay in registers while a block walks over its rows.
//
// The gradients of weight and bias are sums over all rows, in three levels of a fixed shape: a block sums a range of rows
// that depends on nothing but their number, the last block of a group of blocks adds the group's sums in order, the last
// group those of all groups. All in one launch.
#include "llm/cuda/ops_cuda.cuh"
#include "llm/cuda/vec.cuh"

// Threads for a row, and rows at a time: about 256 threads a block, so that several blocks share a multiprocessor and
// one computes while another waits for memory or for its barrier.
static dim3 norm_block(int64_t channels, int n) {
    const int64_t x = ceil_div(ceil_div(channels, n), 32) * 32;
    return dim3(static_cast<unsigned>(x), static_cast<unsigned>(x < THREADS ? THREADS / x : 1));
}

// Rows of up to 8,192 channels fit a block of 1,024 threads, which leaves each 64 registers: enough for one pack. Wider
// ones take two packs a thread; their registers spill into the first-level cache, which beats reading rows twice.
constexpr int MOST_THREADS = 1024;
constexpr int64_t ONE_PACK = MOST_THREADS * PACK, MOST_CHANNELS = 2 * ONE_PACK;
static bool too_wide(Stream *stream, int64_t channels) {
    if (channels > MOST_CHANNELS)
        stream_fail(stream, fail("norm on CUDA: a row of %lld channels; at most %lld fit the registers of a block",
                                 static_cast<long long>(channels), static_cast<long long>(MOST_CHANNELS)));
    return channels > MOST_CHANNELS;
}

// The variance gets a pass of its own over the registers: exact also where |mean| ≫ deviation.
template <class T, bool LAYER, bool ALIGNED, int N>
__global__ void __launch_bounds__(MOST_THREADS)
    norm_forward(T *y, float *mean_out, float *rstd_out, const T *x, const T *weight, const T *bias, float eps,
                 int64_t rows, int64_t channels) {
    SHARED(float, sums, [2][MAX_WARPS]);
    const int64_t i = static_cast<int64_t>(threadIdx.x) * N, step = static_cast<int64_t>(gridDim.x) * blockDim.y;
    float w[N], b[N] = {};
    load<ALIGNED>(w, weight, i, channels);
    if (LAYER)
        load<ALIGNED>(b, bias, i, channels);
    // All threads of a block go round equally often, for the barriers; those without a row read zeros.
    int turn = 0;
    for (int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.y; first < rows; first += step, turn ^= 1) {
        const int64_t row = first + threadIdx.y, end = row < rows ? channels : 0;
        float v[N], mean[1] = {0.0f}, squares[1] = {0.0f};
        load<ALIGNED>(v, x + row * channels, i, end);
        if (LAYER) {
#pragma unroll
            for (int k = 0; k < N; k++)
                mean[0] += v[k];
            row_sums(mean, sums[0]);
            mean[0] /= static_cast<float>(channels);
        }
#pragma unroll
        for (int k = 0; k < N; k++) {
            v[k] -= mean[0];
            squares[0] = i + k < channels ? fmaf(v[k], v[k], squares[0]) : squares[0];
        }
        row_sums(squares, sums[LAYER ? 1 : turn]);
        const float rstd = 1.0f / sqrtf(squares[0] / static_cast<float>(channels) + eps);
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] = LAYER ? fmaf(v[k] * rstd, w[k], b[k]) : v[k] * rstd * w[k];
        store<ALIGNED>(y + row * channels, i, end, v);
        if (threadIdx.x == 0 && row < rows) {
            if (mean_out)
                mean_out[row] = mean[0];
            if (rstd_out)
                rstd_out[row] = rstd;
        }
    }
}

// Rows that one block sums: at least 16, so that partial sums are an eighth of the traffic at most.
constexpr int64_t LEAST_ROWS = 16, MOST_BLOCKS = 512;
constexpr unsigned GROUP = 16;
// How many blocks of each group, and at the end how many groups, have written their sums. Backward passes of a device run
// one after another on its compute stream.
__device__ unsigned norm_arrived[MOST_BLOCKS / GROUP + 1];

// Σ of `count` rows of (…, columns) at columns i … i+3, in order
__device__ inline void sum_rows(float (&sum)[4], const float *rows, int64_t count, int64_t columns, int i) {
#pragma unroll
    for (int k = 0; k < 4; k++)
        sum[k] = 0.0f;
#pragma unroll 8
    for (int64_t r = 0; r < count; r++) {
        float v[4];
        load<true>(v, rows + r * columns, i, columns);
#pragma unroll
        for (int k = 0; k < 4; k++)
            sum[k] += v[k];
    }
}

// With x̂ = (x - mean)·rstd and dn = dy·weight:
//     dx = residual + rstd·(dn - avg(dn) - x̂·avg(dn·x̂))      (RMSNorm: mean = 0 and no avg(dn))
//     dweight (+)= Σ dy·x̂,  dbias (+)= Σ dy
// The residual may be dx: a thread reads its pack before it writes it.
// partials (blocks + groups, columns): a row is dweight, then for LayerNorm dbias, each padded to blockDim.x·N.
template <class T, bool LAYER, bool ALIGNED, int N>
__global__ void __launch_bounds__(MOST_THREADS)
    norm_backward(T *dx, float *dweight, float *dbias, float *partials, const T *dy, const T *residual, const T *x,
                  const float *mean, const float *rstd, const T *weight, int64_t rows, int channels,
                  int64_t block_rows, bool accumulate) {
    SHARED(float, sums, [2][2 * MAX_WARPS]);
    const int i = static_cast<int>(threadIdx.x) * N;
    const int64_t block_first = blockIdx.x * block_rows, block_end = min(block_first + block_rows, rows);
    float w[N], dw[N] = {}, db[N] = {};
    load<ALIGNED>(w, weight, i, channels);
    int turn = 0;
    for (int64_t first = block_first; first < block_end; first += blockDim.y, turn ^= 1) {
        const int64_t row = first + threadIdx.y, at = row * channels;
        const int end = row < block_end ? channels : 0;
        const float row_mean = LAYER && end ? mean[row] : 0.0f, row_rstd = end ? rstd[row] : 0.0f;
        float xhat[N], d[N], both[2] = {0.0f, 0.0f};
        load<ALIGNED>(xhat, x + at, i, end);
        load<ALIGNED>(d, dy + at, i, end);
#pragma unroll
        for (int k = 0; k < N; k++) {
            xhat[k] = (xhat[k] - row_mean) * row_rstd;
            dw[k] = fmaf(d[k], xhat[k], dw[k]);
            if (LAYER)
                db[k] += d[k];
            d[k] *= w[k];
            both[0] = fmaf(d[k], xhat[k], both[0]);
            both[1] += d[k];
        }
        row_sums(both, sums[turn]);
        const float avg_dot = both[0] / static_cast<float>(channels);
        const float avg_dn = LAYER ? both[1] / static_cast<float>(channels) : 0.0f;
#pragma unroll
        for (int k = 0; k < N; k++)
            d[k] = row_rstd * fmaf(-xhat[k], avg_dot, d[k] - avg_dn);
        if (residual) {
            load<ALIGNED>(xhat, residual + at, i, end);
#pragma unroll
            for (int k = 0; k < N; k++)
                d[k] += xhat[k];
        }
        store<ALIGNED>(dx + at, i, end, d);
    }

    // The rows that shared the block, in order. Lanes side by side use neighbouring banks of shared memory.
    const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
    if (blockDim.y > 1) {
        SHARED(float, side, [2 * PACK][THREADS]);
#pragma unroll
        for (int k = 0; k < PACK; k++) {
            side[2 * k][thread] = dw[k];
            side[2 * k + 1][thread] = db[k];
        }
        __syncthreads();
        for (unsigned t = thread + blockDim.x; threadIdx.y == 0 && t < blockDim.y * blockDim.x; t += blockDim.x) {
#pragma unroll
            for (int k = 0; k < PACK; k++) {
                dw[k] += side[2 * k][t];
                db[k] += side[2 * k + 1][t];
            }
        }
    }

    // Blocks of a group, then groups: now the columns are spread over all threads.
    const int stride = static_cast<int>(blockDim.x) * N, columns = LAYER ? 2 * stride : stride;
    const unsigned group = blockIdx.x / GROUP, groups = (gridDim.x + GROUP - 1) / GROUP;
    const unsigned members = min(GROUP, gridDim.x - group * GROUP);
    const int first_column = 4 * static_cast<int>(thread), step = 4 * static_cast<int>(blockDim.x * blockDim.y);
    float *group_sums = partials + static_cast<int64_t>(gridDim.x) * columns;
    if (threadIdx.y == 0) {
        store<true>(partials + static_cast<int64_t>(blockIdx.x) * columns, i, columns, dw);
        if (LAYER)
            store<true>(partials + static_cast<int64_t>(blockIdx.x) * columns, stride + i, columns, db);
    }
    if (!last_to_arrive(&norm_arrived[group], members))
        return;
    float sum[4];
    for (int c = first_column; c < columns; c += step) {
        sum_rows(sum, partials + static_cast<int64_t>(group * GROUP) * columns, members, columns, c);
        store<true>(group_sums + static_cast<int64_t>(group) * columns, c, columns, sum);
    }
    if (!last_to_arrive(&norm_arrived[MOST_BLOCKS / GROUP], groups))
        return;
    for (int c = first_column; c < columns; c += step) {
        float *to = c < stride ? dweight : dbias, before[4];
        const int channel = c < stride ? c : c - stride;
        sum_rows(sum, group_sums, groups, columns, c);
        if (accumulate) {
            load<ALIGNED>(before, to, channel, channels);
#pragma unroll
            for (int k = 0; k < 4; k++)
                sum[k] += before[k];
        }
        store<ALIGNED>(to, channel, channels, sum);
    }
}

// ---- host ----

// f(T(), layer, aligned, packs): the instance of a kernel for these rows.
template <class F>
static void with_norm(Dtype dt, NormKind kind, bool aligned, int64_t channels, F f) {
    with_dtype(dt, [&](auto t) {
        with_bool(kind == NORM_LAYER, [&](auto layer) {
            with_bool(aligned && rows_aligned16(channels, dt), [&](auto a) {
                if (channels <= ONE_PACK)
                    f(t, layer, a, std::integral_constant<int, PACK>());
                else
                    f(t, layer, a, std::integral_constant<int, 2 * PACK>());
            });
        });
    });
}

void cuda_norm_forward(Stream *stream, Dtype dt, NormKind kind, void *y, float *mean, float *rstd, const void *x,
                       const void *weight, const void *bias, float eps, int64_t rows, int64_t channels) {
    cudaStream_t s = cuda_begin(stream);
    if (!s || rows == 0 || too_wide(stream, channels))
        return;
    with_norm(dt, kind, aligned16(y, x, weight, bias), channels, [&](auto t, auto layer, auto aligned, auto n) {
        using T = decltype(t);
        const dim3 block = norm_block(channels, n);
        // No more blocks than run at a time: each reads the weights.
        const int64_t blocks = ceil_div(rows, block.y), most = 4 * static_cast<int64_t>(cuda_multiprocessors(stream));
        const unsigned grid = static_cast<unsigned>(blocks < most ? blocks : most);
        LAUNCH((norm_forward<T, decltype(layer)::value, decltype(aligned)::value, decltype(n)::value>),
               (grid, block, 0, s), static_cast<T *>(y), mean, rstd, static_cast<const T *>(x),
               static_cast<const T *>(weight), static_cast<const T *>(bias), eps, rows, channels);
    });
    cuda_end(stream, "norm_forward");
}

static int64_t rows_a_block(int64_t rows) {
    const int64_t block_rows = ceil_div(rows, MOST_BLOCKS);
    return block_rows < LEAST_ROWS ? LEAST_ROWS : block_rows;
}

size_t cuda_norm_scratch(Device *, int64_t rows, int64_t channels) {
    const int n = channels <= ONE_PACK ? PACK : 2 * PACK;
    const int64_t blocks = ceil_div(rows, rows_a_block(rows)), stride = static_cast<int64_t>(norm_block(channels, n).x) * n;
    return static_cast<size_t>((blocks + ceil_div(blocks, GROUP)) * 2 * stride) * sizeof(float);
}

void cuda_norm_backward(Stream *stream, Dtype dt, NormKind kind, void *dx, float *dweight, float *dbias, const void *dy,
                        const void *residual, const void *x, const float *mean, const float *rstd, const void *weight,
                        int64_t rows, int64_t channels, bool accumulate) {
    cudaStream_t s = cuda_begin(stream);
    if (!s || rows == 0 || too_wide(stream, channels))
        return;
    float *partials = static_cast<float *>(cuda_scratch(stream, cuda_norm_scratch(NULL, rows, channels)));
    if (!partials)
        return;
    const int64_t block_rows = rows_a_block(rows);
    const unsigned blocks = static_cast<unsigned>(ceil_div(rows, block_rows));
    const bool aligned = aligned16(dx, dweight, dbias, dy, residual, x, weight);
    with_norm(dt, kind, aligned, channels, [&](auto t, auto layer, auto a, auto n) {
        using T = decltype(t);
        LAUNCH((norm_backward<T, decltype(layer)::value, decltype(a)::value, decltype(n)::value>),
               (blocks, norm_block(channels, n), 0, s), static_cast<T *>(dx), dweight, dbias, partials,
               static_cast<const T *>(dy), static_cast<const T *>(residual), static_cast<const T *>(x), mean, rstd,
               static_cast<const T *>(weight), rows, static_cast<int>(channels), block_rows, accumulate);
    });
    cuda_end(stream, "norm_backward");
}
