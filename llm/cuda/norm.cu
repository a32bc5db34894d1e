// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019), forward and backward.
//
// A row belongs to blockDim.x threads (a multiple of a warp), each with one pack of N channels in registers from the
// first pass over the row to the last: x, dy and the residual are read once. Narrow rows share a block: threadIdx.y
// says which. Weights stay in registers while a block walks over its rows.
//
// The gradients of weight and bias are sums over all rows. Every block sums a fixed range of rows (it depends on the
// number of rows, not on the device) and writes a partial sum to scratch; a second, small kernel adds those in order.
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

// With x̂ = (x - mean)·rstd and dn = dy·weight:
//     dx = residual + rstd·(dn - avg(dn) - x̂·avg(dn·x̂))      (RMSNorm: mean = 0 and no avg(dn))
//     dweight = Σ dy·x̂,  dbias = Σ dy, here over the rows of one block
// partials (blocks, LAYER ? 2 : 1, blockDim.x·N): dweight, then dbias. The residual may be dx: a thread reads its pack
// before it writes it.
template <class T, bool LAYER, bool ALIGNED, int N>
__global__ void __launch_bounds__(MOST_THREADS)
    norm_backward(T *dx, float *partials, const T *dy, const T *residual, const T *x, const float *mean,
                  const float *rstd, const T *weight, int64_t rows, int64_t channels, int64_t block_rows) {
    SHARED(float, sums, [2][2 * MAX_WARPS]);
    const int64_t i = static_cast<int64_t>(threadIdx.x) * N;
    const int64_t block_first = blockIdx.x * block_rows, block_end = min(block_first + block_rows, rows);
    float w[N], dweight[N] = {}, dbias[N] = {};
    load<ALIGNED>(w, weight, i, channels);
    int turn = 0;
    for (int64_t first = block_first; first < block_end; first += blockDim.y, turn ^= 1) {
        const int64_t row = first + threadIdx.y, end = row < block_end ? channels : 0, at = row * channels;
        const float row_mean = LAYER && end ? mean[row] : 0.0f, row_rstd = end ? rstd[row] : 0.0f;
        float xhat[N], d[N], both[2] = {0.0f, 0.0f};
        load<ALIGNED>(xhat, x + at, i, end);
        load<ALIGNED>(d, dy + at, i, end);
#pragma unroll
        for (int k = 0; k < N; k++) {
            xhat[k] = (xhat[k] - row_mean) * row_rstd;
            dweight[k] = fmaf(d[k], xhat[k], dweight[k]);
            if (LAYER)
                dbias[k] += d[k];
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
    if (blockDim.y > 1) {
        SHARED(float, rows_sums, [2 * PACK][THREADS]);
        const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
        for (int k = 0; k < N; k++) {
            rows_sums[2 * k][thread] = dweight[k];
            if (LAYER)
                rows_sums[2 * k + 1][thread] = dbias[k];
        }
        __syncthreads();
        if (threadIdx.y > 0)
            return;
        for (unsigned r = 1; r < blockDim.y; r++) {
#pragma unroll
            for (int k = 0; k < N; k++) {
                dweight[k] += rows_sums[2 * k][r * blockDim.x + threadIdx.x];
                if (LAYER)
                    dbias[k] += rows_sums[2 * k + 1][r * blockDim.x + threadIdx.x];
            }
        }
    }
    const int64_t stride = static_cast<int64_t>(blockDim.x) * N;
    float *partial = partials + blockIdx.x * (LAYER ? 2 : 1) * stride;
    store<true>(partial, i, stride, dweight);
    if (LAYER)
        store<true>(partial + stride, i, stride, dbias);
}

// dweight and dbias (+)= the columns' sums of partials (n_blocks, columns); `columns` are those of dweight, then dbias,
// each padded to `stride`. A block sums 128 columns: 32 groups of blocks side by side, then the groups in order.
constexpr int SUM_COLUMNS = 128, SUM_GROUPS = 32;
static __global__ void __launch_bounds__(32 * SUM_GROUPS)
    sum_partials(float *dweight, float *dbias, const float *partials, int64_t n_blocks, int64_t columns, int64_t stride,
                 int64_t channels, bool accumulate) {
    SHARED(float, group_sums, [SUM_GROUPS][SUM_COLUMNS]);
    const int64_t first = static_cast<int64_t>(blockIdx.x) * SUM_COLUMNS;
    float sum[4] = {};
    for (int64_t block = threadIdx.y; block < n_blocks; block += SUM_GROUPS) {
        float v[4];
        load<true>(v, partials + block * columns, first + 4 * threadIdx.x, columns);
#pragma unroll
        for (int k = 0; k < 4; k++)
            sum[k] += v[k];
    }
    store<true>(group_sums[threadIdx.y], 4 * threadIdx.x, SUM_COLUMNS, sum);
    __syncthreads();
    const int64_t column = first + threadIdx.y * 32 + threadIdx.x, channel = column % stride;
    if (threadIdx.y >= SUM_COLUMNS / 32 || channel >= channels)
        return;
    float total = 0.0f;
    for (int group = 0; group < SUM_GROUPS; group++)
        total += group_sums[group][column - first];
    float *to = (column < stride ? dweight : dbias) + channel;
    *to = accumulate ? *to + total : total;
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
        const int64_t blocks = ceil_div(rows, block.y), most = flat_grid(stream, rows * block.x);
        const unsigned grid = static_cast<unsigned>(blocks < most ? blocks : most);
        LAUNCH((norm_forward<T, decltype(layer)::value, decltype(aligned)::value, decltype(n)::value>),
               (grid, block, 0, s), static_cast<T *>(y), mean, rstd, static_cast<const T *>(x),
               static_cast<const T *>(weight), static_cast<const T *>(bias), eps, rows, channels);
    });
    cuda_end(stream, "norm_forward");
}

// Rows that one block sums: at least 16, so that partial sums are an eighth of the traffic at most; at most 512 blocks.
static int64_t rows_a_block(int64_t rows) {
    const int64_t least = 16, most_blocks = 512, block_rows = ceil_div(rows, most_blocks);
    return block_rows < least ? least : block_rows;
}
static int64_t padded(int64_t channels) {
    const int n = channels <= ONE_PACK ? PACK : 2 * PACK;
    return static_cast<int64_t>(norm_block(channels, n).x) * n;
}

size_t cuda_norm_scratch(Device *, int64_t rows, int64_t channels) {
    return static_cast<size_t>(ceil_div(rows, rows_a_block(rows)) * 2 * padded(channels)) * sizeof(float);
}

void cuda_norm_backward(Stream *stream, Dtype dt, NormKind kind, void *dx, float *dweight, float *dbias, const void *dy,
                        const void *residual, const void *x, const float *mean, const float *rstd, const void *weight,
                        int64_t rows, int64_t channels, bool accumulate) {
    cudaStream_t s = cuda_begin(stream);
    if (!s || too_wide(stream, channels))
        return;
    float *partials = static_cast<float *>(cuda_scratch(stream, cuda_norm_scratch(NULL, rows, channels)));
    if (!partials)
        return;
    const int64_t block_rows = rows_a_block(rows), n_blocks = ceil_div(rows, block_rows), stride = padded(channels);
    const int64_t columns = kind == NORM_LAYER ? 2 * stride : stride;
    with_norm(dt, kind, aligned16(dx, dy, residual, x, weight), channels, [&](auto t, auto layer, auto aligned, auto n) {
        using T = decltype(t);
        LAUNCH((norm_backward<T, decltype(layer)::value, decltype(aligned)::value, decltype(n)::value>),
               (static_cast<unsigned>(n_blocks), norm_block(channels, n), 0, s), static_cast<T *>(dx), partials,
               static_cast<const T *>(dy), static_cast<const T *>(residual), static_cast<const T *>(x), mean, rstd,
               static_cast<const T *>(weight), rows, channels, block_rows);
    });
    LAUNCH((sum_partials), (static_cast<unsigned>(columns / SUM_COLUMNS), dim3(32, SUM_GROUPS), 0, s), dweight, dbias,
           partials, n_blocks, columns, stride, channels, accumulate);
    cuda_end(stream, "norm_backward");
}
