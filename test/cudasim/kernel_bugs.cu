// Sums of squares of the rows of a matrix, one block a row, and a copy of the matrix; with one planted bug, by name:
// `kernel_bugs NAME`. "none" is correct. Prints "ok" or "WRONG", which says what the result looks like if nothing stops
// it.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "llm/cuda/launch.cuh"

enum Bug {
    NONE,
    PAST_END,             // one element past a buffer
    PAST_TENSOR,          // one element into the gap before the next tensor of the same allocation
    NO_BARRIER,           // reads what other warps wrote
    NO_TRAILING_BARRIER,  // the next turn of a loop overwrites what slow threads still read
    WRONG_MASK,           // half a warp shuffles with a full mask
    ALIEN_MASK,           // a lane that is not in its own mask
    UNINITIALISED,        // one warp's partial sum is never written
    DIVERGENT_BARRIER,    // warps wait at different barriers
    BARRIER_AND_SHUFFLE,  // half a warp waits at a barrier for the other, which waits in a shuffle for the first
    NO_FENCE,             // the last block adds what other blocks wrote, without __threadfence
    NO_SYNCWARP,          // exchange through shared memory in a warp
    ENDLESS,
    USE_AFTER_FREE,
    HOST_TOUCHES_DEVICE,
    COPY_TOO_LONG,
    STATIC_SHARED_TOO_LARGE,
    DYNAMIC_SHARED_NOT_ALLOWED,
    OUT_OF_MEMORY,
    BUGS
};
const char *const NAMES[BUGS] = {"none",
                                 "past_end",
                                 "past_tensor",
                                 "no_barrier",
                                 "no_trailing_barrier",
                                 "wrong_mask",
                                 "alien_mask",
                                 "uninitialised",
                                 "divergent_barrier",
                                 "barrier_and_shuffle",
                                 "no_fence",
                                 "no_syncwarp",
                                 "endless",
                                 "use_after_free",
                                 "host_touches_device",
                                 "copy_too_long",
                                 "static_shared_too_large",
                                 "dynamic_shared_not_allowed",
                                 "out_of_memory"};

enum { ROWS = 4, COLUMNS = 200, THREADS = 128, WARPS = THREADS / 32 };

__device__ float warp_sum(float s, int lane, Bug bug) {
    if (bug == WRONG_MASK && lane >= 16)
        return s;
    for (int offset = 16; offset; offset /= 2)
        s += __shfl_xor_sync(bug == ALIEN_MASK ? 0xffffu : 0xffffffffu, s, offset);
    return s;
}

// sums(ROWS), total(1), copy(ROWS, COLUMNS) from in(ROWS, COLUMNS). `done` counts the blocks that have stored their
// sum.
__global__ void square_rows(float *sums, float *total, float *copy, const float *in, unsigned *done, Bug bug) {
    SHARED(float, parts, [WARPS]);
    SHARED(float, turned, [THREADS]);
    SHARED(bool, is_last, );
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int turn = 0; turn < 2; turn++) {
        float s = 0;
        for (int i = threadIdx.x; i < COLUMNS; i += THREADS) {
            float v = in[blockIdx.x * COLUMNS + i];
            s += v * v;
            copy[blockIdx.x * COLUMNS + i] = v;
            if ((bug == PAST_END || bug == PAST_TENSOR) && blockIdx.x == ROWS - 1 && i == COLUMNS - 1)
                copy[blockIdx.x * COLUMNS + i + 1] = v;
        }
        turned[threadIdx.x] = s;  // the sum does not depend on which lane has which part
        if (bug != NO_SYNCWARP)
            __syncwarp();
        s = warp_sum(turned[warp * 32 + 31 - lane], lane, bug);
        if (bug != NO_SYNCWARP)
            __syncwarp();
        if (lane == 0 && !(bug == UNINITIALISED && warp == 3))
            parts[warp] = s;
        if (bug == BARRIER_AND_SHUFFLE && lane < 16)
            s += __shfl_xor_sync(0xffffffffu, s, 1);
        if (bug == DIVERGENT_BARRIER && warp < 2)
            __syncthreads();
        else if (bug != NO_BARRIER)
            __syncthreads();
        float sum = 0;
        for (int w = 0; w < WARPS; w++)
            sum += parts[w];
        if (threadIdx.x == THREADS - 1)
            sums[blockIdx.x] = sum;
        if (bug != NO_TRAILING_BARRIER)
            __syncthreads();
    }
    while (bug == ENDLESS)
        copy[0] = in[0];
    if (threadIdx.x == THREADS - 1) {
        if (bug != NO_FENCE)
            __threadfence();
        is_last = atomicAdd(done, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (is_last && threadIdx.x == 0) {
        *total = 0;
        for (unsigned row = 0; row < gridDim.x; row++)
            *total += sums[row];
    }
}

__global__ void hoard() {
    SHARED(float, tile, [13000]);
    tile[threadIdx.x] = 0;
}
__global__ void hold(float *x) {
    DYN_SHARED(float, row);
    row[threadIdx.x] = 1;
    x[threadIdx.x] = row[threadIdx.x];
}

static int check(cudaError_t error) {
    if (error != cudaSuccess)
        printf("%s\n", cudaGetErrorName(error));
    return error != cudaSuccess;
}

int main(int n_arguments, char **arguments) {
    int bug = 0;
    while (n_arguments == 2 && bug < BUGS && strcmp(arguments[1], NAMES[bug]) != 0)
        bug++;
    if (n_arguments != 2 || bug == BUGS)
        return 2;

    std::vector<float> in(ROWS * COLUMNS), copy(in.size());
    double want = 0, found = 0;
    for (size_t i = 0; i < in.size(); i++) {
        in[i] = sinf(static_cast<float>(i));
        want += static_cast<double>(in[i]) * in[i];
    }
    size_t bytes = in.size() * sizeof in[0];
    cudaStream_t s;
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    float *d_in, *pool, *d_sums, *d_total;
    unsigned *d_done;
    cudaMalloc(reinterpret_cast<void **>(&d_in), bytes);
    cudaMalloc(reinterpret_cast<void **>(&d_sums), ROWS * sizeof(float));
    cudaMalloc(reinterpret_cast<void **>(&d_total), sizeof(float));
    cudaMalloc(reinterpret_cast<void **>(&d_done), sizeof(unsigned));
    // Two tensors cut from one allocation, a gap between them.
    size_t gap = CUDASIM_GUARD_BYTES, second = bytes + gap, pool_bytes = second + bytes;
    cudaMalloc(reinterpret_cast<void **>(&pool), pool_bytes);
    cudasim_guard(reinterpret_cast<char *>(pool) + bytes, gap);
    float *first_tensor = pool, *second_tensor = reinterpret_cast<float *>(reinterpret_cast<char *>(pool) + second);
    float *d_copy = bug == PAST_TENSOR ? first_tensor : second_tensor;

    cudaMemsetAsync(d_done, 0, sizeof(unsigned), s);
    cudaMemcpyAsync(d_in, in.data(), bytes, cudaMemcpyHostToDevice, s);
    if (bug == OUT_OF_MEMORY) {
        void *rest;
        return check(cudaMalloc(&rest, 1 << 20));
    }
    if (bug == STATIC_SHARED_TOO_LARGE)
        LAUNCH((hoard), (1, 32, 0, s));
    if (bug == DYNAMIC_SHARED_NOT_ALLOWED) {
        LAUNCH((hold), (1, 32, 64 << 10, s), d_copy);
        return check(cudaGetLastError());
    }
    if (bug == USE_AFTER_FREE)
        cudaFree(d_in);
    LAUNCH((square_rows), (ROWS, THREADS, 0, s), d_sums, d_total, d_copy, d_in, d_done, static_cast<Bug>(bug));
    if (bug == HOST_TOUCHES_DEVICE) {
        volatile float *p = d_in;
        found = static_cast<double>(p[0]);
    }
    float total = 0;
    cudaMemcpyAsync(&total, d_total, sizeof total, cudaMemcpyDeviceToHost, s);
    cudaMemcpyAsync(copy.data(), d_copy, bytes, cudaMemcpyDeviceToHost, s);
    if (bug == COPY_TOO_LONG)
        cudaMemsetAsync(d_sums, 0, ROWS * sizeof(float) + 4, s);
    cudaStreamSynchronize(s);
    found = static_cast<double>(total);
    bool ok = fabs(found - want) < 1e-3 * want && memcmp(copy.data(), in.data(), bytes) == 0;
    printf("%s\n", ok ? "ok" : "WRONG");
    for (void *p : {static_cast<void *>(d_in), static_cast<void *>(d_sums), static_cast<void *>(d_total),
                    static_cast<void *>(d_done), static_cast<void *>(pool)})
        cudaFree(p);
    cudaStreamDestroy(s);
    return !ok;
}
