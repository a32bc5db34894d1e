// Flat arrays: conversion, addition, sums that go to the host, and the optimizer step.
//
// What is computed here has the same bits on every device: only explicit fused multiply-adds, IEEE division and square
// root, and sums in the order that llm/ops.h words. (nvcc would contract products and sums by itself; there is no place
// here where it could, and the build says -fmad=false as well.) The dtype is an argument of the kernels, not of their
// templates: all threads take the same branch, which costs nothing beside the memory that they wait for.
#include "llm/cuda/ops_cuda.cuh"
#include "llm/cuda/vec.cuh"

extern "C" {
#include "llm/adamw.h"
}

// The packs of this thread: the grid walks over the array.
__device__ inline int64_t first_pack() {
    return (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * PACK;
}
__device__ inline int64_t next_pack(int64_t i) {
    return i + static_cast<int64_t>(gridDim.x) * THREADS * PACK;
}

template <bool ALIGNED>
__global__ void __launch_bounds__(THREADS) convert(void *to, Dtype to_dtype, const void *from, Dtype from_dtype,
                                                   int64_t len) {
    for (int64_t i = first_pack(); i < len; i = next_pack(i)) {
        float v[PACK];
        load_any<ALIGNED>(v, from, from_dtype, i, len);
        store_any<ALIGNED>(to, to_dtype, i, len, v);
    }
}

template <bool ALIGNED>
__global__ void __launch_bounds__(THREADS) add(void *to, Dtype to_dtype, const void *from, Dtype from_dtype,
                                               int64_t len) {
    for (int64_t i = first_pack(); i < len; i = next_pack(i)) {
        float v[PACK], w[PACK];
        load_any<ALIGNED>(v, to, to_dtype, i, len);
        load_any<ALIGNED>(w, from, from_dtype, i, len);
#pragma unroll
        for (int k = 0; k < PACK; k++)
            v[k] += w[k];
        store_any<ALIGNED>(to, to_dtype, i, len, v);
    }
}

// One block. A warp sums a tile of SUMSQ_TILE values one after another in double, as ops.h orders it: its lanes load 128
// values side by side and hand them round. Then the tiles of all warps are added in order. The time is that of 4,096
// dependent additions for every 32 tiles, some ten microseconds once a micro-batch.
template <bool ALIGNED>
__global__ void __launch_bounds__(32 * MAX_WARPS) sum_values(double *sum, const float *values, int64_t len) {
    SHARED(double, tile_sums, [MAX_WARPS]);
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int warps = static_cast<int>(blockDim.x) / 32;
    const int64_t tiles = (len + SUMSQ_TILE - 1) / SUMSQ_TILE;
    double total = 0.0;
    for (int64_t first_tile = 0; first_tile < tiles; first_tile += warps) {
        const int64_t first = (first_tile + warp) * SUMSQ_TILE, end = min(first + SUMSQ_TILE, len);
        double tile_sum = 0.0;
        for (int64_t i = first; i < end; i += 32 * 4) {
            float v[4];
            load<ALIGNED>(v, values, i + 4 * lane, end);
            const int n = static_cast<int>(min(end - i, static_cast<int64_t>(32 * 4)));
            for (int j = 0; j < n; j += 4)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const float x = __shfl_sync(ALL_LANES, v[k], j / 4);
                    if (j + k < n)
                        tile_sum += static_cast<double>(x);
                }
        }
        if (lane == 0)
            tile_sums[warp] = tile_sum;
        __syncthreads();
        if (threadIdx.x == 0)
            for (int w = 0; w < warps && first_tile + w < tiles; w++)
                total += tile_sums[w];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *sum = total;
}

// The tree of ops.h: lane j of 256 takes elements j, j+256, … of the tile; then lanes are added by halves. A warp does a
// tile: each thread is eight neighbouring lanes of the 256, so that it loads packs. A block's tile sums leave for the
// host's memory in one piece.
constexpr int TILES_A_BLOCK = THREADS / 32;
static_assert(SUMSQ_LANES == 32 * PACK, "a warp of packs is the 256 lanes of the tree");

template <bool ALIGNED>
__global__ void __launch_bounds__(THREADS) sum_squares(float *tile_sums, const void *values, Dtype dtype, float divisor,
                                                       int64_t len) {
    SHARED(float, sums, [TILES_A_BLOCK]);
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int64_t tiles = (len + SUMSQ_TILE - 1) / SUMSQ_TILE, step = static_cast<int64_t>(gridDim.x) * TILES_A_BLOCK;
    for (int64_t first = static_cast<int64_t>(blockIdx.x) * TILES_A_BLOCK; first < tiles; first += step) {
        const int64_t begin = (first + warp) * SUMSQ_TILE;
        float squares[PACK] = {};
        for (int64_t i = begin + lane * PACK; i < begin + SUMSQ_TILE; i += SUMSQ_LANES) {
            float v[PACK];
            load_any<ALIGNED>(v, values, dtype, i, len);
#pragma unroll
            for (int k = 0; k < PACK; k++) {
                const float x = __fdiv_rn(v[k], divisor);
                squares[k] = __fmaf_rn(x, x, squares[k]);
            }
        }
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2)
#pragma unroll
            for (int k = 0; k < PACK; k++)
                squares[k] += __shfl_down_sync(ALL_LANES, squares[k], offset);
#pragma unroll
        for (int offset = PACK / 2; offset > 0; offset /= 2)
#pragma unroll
            for (int k = 0; k < offset; k++)
                squares[k] += squares[k + offset];
        if (lane == 0)
            sums[warp] = squares[0];
        __syncthreads();
        if (threadIdx.x < TILES_A_BLOCK && first + threadIdx.x < tiles)
            tile_sums[first + threadIdx.x] = sums[threadIdx.x];
        __syncthreads();
    }
}

// One pass over the optimizer's state: weights, moments and gradient are read once, weights, moments and the rounded
// weights written once. The scalars with weight decay; without it, two of them are 0 (adamw_scalars).
typedef struct AdamwWork {
    AdamwArgs args;
    AdamwScalars scalars;
} AdamwWork;

template <bool ALIGNED, bool SGD>
__global__ void __launch_bounds__(THREADS) adamw(const __grid_constant__ AdamwWork work) {
    const AdamwArgs &a = work.args;
    int range = 0;
    for (int64_t i = first_pack(); i < a.len; i = next_pack(i)) {
        float w[PACK], m[PACK], v[PACK], g[PACK];
        load<ALIGNED>(w, a.master, i, a.len);
        load<ALIGNED>(m, a.m, i, a.len);
        if (!SGD)
            load<ALIGNED>(v, a.v, i, a.len);
        load_any<ALIGNED>(g, a.grad, a.grad_dtype, i, a.len);
#pragma unroll
        for (int k = 0; k < PACK; k++) {
            while (range < a.n_ranges - 1 && i + k >= a.range_end[range])
                range++;
            AdamwScalars s = work.scalars;
            if (!a.range_decay[range])
                s.decay = s.lr_decay = 0.0f;
            if (SGD)
                sgd_element(&w[k], &m[k], g[k], &s);
            else
                adamw_element(&w[k], &m[k], &v[k], g[k], &s);
        }
        store<ALIGNED>(a.master, i, a.len, w);
        store<ALIGNED>(a.m, i, a.len, m);
        if (!SGD)
            store<ALIGNED>(a.v, i, a.len, v);
        if (a.param)
            store_any<ALIGNED>(a.param, a.param_dtype, i, a.len, w);
    }
}

void cuda_convert(Stream *stream, void *to, Dtype to_dtype, const void *from, Dtype from_dtype, int64_t len) {
    cudaStream_t s = cuda_begin(stream);
    if (!s || len == 0)
        return;
    with_bool(aligned16(to, from), [&](auto aligned) {
        LAUNCH((convert<decltype(aligned)::value>), (flat_grid(stream, ceil_div(len, PACK)), THREADS, 0, s), to, to_dtype,
               from, from_dtype, len);
    });
    cuda_end(stream, "convert");
}

void cuda_add(Stream *stream, void *to, Dtype to_dtype, const void *from, Dtype from_dtype, int64_t len) {
    cudaStream_t s = cuda_begin(stream);
    if (!s || len == 0)
        return;
    with_bool(aligned16(to, from), [&](auto aligned) {
        LAUNCH((add<decltype(aligned)::value>), (flat_grid(stream, ceil_div(len, PACK)), THREADS, 0, s), to, to_dtype,
               from, from_dtype, len);
    });
    cuda_end(stream, "add");
}

void cuda_sum_to_host(Stream *stream, double *sum, const float *values, int64_t len) {
    cudaStream_t s = cuda_begin(stream);
    if (!s)
        return;
    const int64_t tiles = ceil_div(len, SUMSQ_TILE), warps = tiles < 1 ? 1 : tiles < MAX_WARPS ? tiles : MAX_WARPS;
    with_bool(aligned16(values), [&](auto aligned) {
        LAUNCH((sum_values<decltype(aligned)::value>), (1, static_cast<unsigned>(32 * warps), 0, s), sum, values, len);
    });
    cuda_end(stream, "sum_to_host");
}

void cuda_sumsq_to_host(Stream *stream, float *tile_sums, const void *values, Dtype dtype, float divisor, int64_t len) {
    cudaStream_t s = cuda_begin(stream);
    if (!s || len == 0)
        return;
    const unsigned grid = flat_grid(stream, ceil_div(len, SUMSQ_TILE) * 32);
    with_bool(aligned16(values), [&](auto aligned) {
        LAUNCH((sum_squares<decltype(aligned)::value>), (grid, THREADS, 0, s), tile_sums, values, dtype, divisor, len);
    });
    cuda_end(stream, "sumsq_to_host");
}

void cuda_adamw(Stream *stream, const AdamwArgs *args) {
    cudaStream_t s = cuda_begin(stream);
    if (!s || args->len == 0)
        return;
    const AdamwWork work = {*args, adamw_scalars(args, true)};
    with_bool(aligned16(args->master, args->param, args->grad, args->m, args->v), [&](auto aligned) {
        with_bool(args->kind == OPT_SGD, [&](auto sgd) {
            LAUNCH((adamw<decltype(aligned)::value, decltype(sgd)::value>),
                   (flat_grid(stream, ceil_div(args->len, PACK)), THREADS, 0, s), work);
        });
    });
    cuda_end(stream, "adamw");
}
