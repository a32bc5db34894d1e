// column_sums: the gradient of a bias, db (out) (+)= Σ over rows of a matrix (rows, out), in one launch and a fixed order.
// For linear.cu, which has the matrix, and activation.cu, which makes it: a Source brings packs of it,
//
//     source(v, row, i)     elements i … i+PACK-1 of a row as fp32, 0 past its end; called once for each pack
//
// The counters and the scratch allow one such sum at a time: on a device's compute stream.
#ifndef LLM_CUDA_COLUMN_SUMS_CUH
#define LLM_CUDA_COLUMN_SUMS_CUH

#include "llm/cuda/vec.cuh"

constexpr int SUM_X = 8, SUM_Y = 32, SUM_COLUMNS = SUM_X * PACK, SUM_ROWS = 8 * SUM_Y, SUM_GROUPS = 4096;

// How many blocks of a group of columns have written their sums.
static __device__ unsigned column_sums_arrived[SUM_GROUPS];

// A block adds SUM_ROWS rows of SUM_COLUMNS columns, each thread every SUM_Y-th row of a pack; the last block of a group
// of columns adds what all have written, in their order.
template <class Source>
__global__ void __launch_bounds__(SUM_X *SUM_Y)
    column_sums(float *db, float *partial, const Source source, int64_t rows, int64_t first_column, int64_t out,
                bool accumulate) {
    SHARED(float, tile, [SUM_Y][SUM_COLUMNS]);
    const int thread = static_cast<int>(threadIdx.y * SUM_X + threadIdx.x);
    const int64_t first = first_column + static_cast<int64_t>(blockIdx.x) * SUM_COLUMNS, mine = first + thread;
    const int64_t begin = static_cast<int64_t>(blockIdx.y) * SUM_ROWS, end = min(begin + SUM_ROWS, rows);
    float sums[PACK] = {};
    for (int64_t row = begin + threadIdx.y; row < end; row += SUM_Y) {
        float v[PACK];
        source(v, row, first + threadIdx.x * PACK);
#pragma unroll
        for (int n = 0; n < PACK; n++)
            sums[n] += v[n];
    }
#pragma unroll
    for (int n = 0; n < PACK; n++)
        tile[threadIdx.y][threadIdx.x * PACK + n] = sums[n];
    __syncthreads();
    const bool adds = thread < SUM_COLUMNS && mine < out;
    float sum = 0.0f;
    for (int y = 0; adds && y < SUM_Y; y++)
        sum += tile[y][thread];
    if (gridDim.y > 1) {
        if (adds)
            partial[blockIdx.y * out + mine] = sum;
        if (!last_to_arrive(&column_sums_arrived[blockIdx.x], gridDim.y))
            return;
        sum = 0.0f;
#pragma unroll 8
        for (unsigned y = 0; y < gridDim.y; y++)
            sum += adds ? partial[y * out + mine] : 0.0f;
    }
    if (adds)
        db[mine] = (accumulate ? db[mine] : 0.0f) + sum;
}

// Scratch bytes for the partial sums.
inline size_t column_sums_bytes(int64_t rows, int64_t out) {
    return static_cast<size_t>(ceil_div(rows, SUM_ROWS) * out) * sizeof(float);
}

template <class Source>
void run_column_sums(cudaStream_t stream, float *db, float *partial, const Source &source, int64_t rows, int64_t out,
                     bool accumulate) {
    const int64_t most = static_cast<int64_t>(SUM_GROUPS) * SUM_COLUMNS;
    for (int64_t i = 0; i < out; i += most) {
        const int64_t len = out - i < most ? out - i : most;
        const dim3 grid(static_cast<unsigned>(ceil_div(len, SUM_COLUMNS)), static_cast<unsigned>(ceil_div(rows, SUM_ROWS)));
        LAUNCH((column_sums<Source>), (grid, dim3(SUM_X, SUM_Y), 0, stream), db, partial, source, rows, i, out, accumulate);
    }
}

#endif
