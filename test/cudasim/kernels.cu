// Correct kernels that use everything the simulator offers to kernels, each checked against plain host code. Prints a
// line for each that is wrong, and "ok" if none is.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "llm/cuda/launch.cuh"

using bf16 = __nv_bfloat16;
static cudaStream_t stream;

template <class T>
static T *to_device(const std::vector<T> &host) {
    void *memory;
    cudaMalloc(&memory, host.size() * sizeof(T));
    cudaMemcpyAsync(memory, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice, stream);
    return static_cast<T *>(memory);
}
template <class T>
static std::vector<T> to_host(const T *device, size_t n) {
    std::vector<T> host(n);
    cudaMemcpyAsync(host.data(), device, n * sizeof(T), cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    return host;
}
static int expect(bool holds, const char *what) {
    if (!holds)
        printf("WRONG: %s\n", what);
    return !holds;
}

// ---- C(M,N) = A(M,K) · B(N,K)ᵀ with mma; operands through shared memory, by cp.async and ldmatrix ----

enum { M = 32, N = 24, K = 48, PADDED = 24 };  // rows of 16 values, padded to 48 bytes

template <class T>
__device__ void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    if constexpr (sizeof(T) == 2 && std::is_same_v<T, bf16>)
        cudasim::mma_m16n8k16_bf16(d, a, b, d);
    else
        cudasim::mma_m16n8k16_fp16(d, a, b, d);
}

// One warp a block, a 16 × 8 tile of C. The next tiles of A and B are on their way while these are multiplied.
template <class T, bool TRANSPOSED>
__global__ void __launch_bounds__(32, 2) matmul(float *c, const T *a, const T *b) {
    SHARED(T, a_tile, [2][16][PADDED]);
    SHARED(T, b_tile, [2][16][PADDED]);  // rows of B: n; transposed: rows k, 8 columns n
    int lane = threadIdx.x, m0 = blockIdx.y * 16, n0 = blockIdx.x * 8;
    auto fetch = [&](int k0, int buffer) {
        int row = lane / 2, half_row = lane % 2 * 8;
        cudasim::cp_async(&a_tile[buffer][row][half_row], a + (m0 + row) * K + k0 + half_row, 16, 16);
        if (!TRANSPOSED && row < 8)
            cudasim::cp_async(&b_tile[buffer][row][half_row], b + (n0 + row) * K + k0 + half_row, 16, 16);
        if (TRANSPOSED && half_row == 0)
            cudasim::cp_async(&b_tile[buffer][row][0], b + (k0 + row) * N + n0, 16, 16);
        cudasim::cp_async_commit();
    };
    float d[4] = {0, 0, 0, 0};
    fetch(0, 0);
    for (int k0 = 0; k0 < K; k0 += 16) {
        int buffer = k0 / 16 % 2;
        if (k0 + 16 < K)
            fetch(k0 + 16, 1 - buffer);
        cudasim::cp_async_wait(k0 + 16 < K ? 1 : 0);
        __syncwarp();
        uint32_t a_part[4], b_part[2];
        cudasim::ldmatrix_x4(a_part, &a_tile[buffer][lane % 16][lane / 16 * 8]);
        if (TRANSPOSED)
            cudasim::ldmatrix_x2_trans(b_part, &b_tile[buffer][lane % 16][0]);
        else
            cudasim::ldmatrix_x2(b_part, &b_tile[buffer][lane % 8][lane / 8 % 2 * 8]);
        multiply<T>(d, a_part, b_part);
        __syncwarp();
    }
    for (int r = 0; r < 4; r++)
        c[(m0 + lane / 4 + 8 * (r >> 1)) * N + n0 + 2 * (lane % 4) + (r & 1)] = d[r];
}

template <class T, bool TRANSPOSED>
static int check_matmul(const char *what) {
    std::vector<T> a(M * K), b(N * K);
    std::vector<float> c(M * N, 0.0f);
    for (int i = 0; i < M * K; i++)
        a[i] = static_cast<T>(sinf(0.37f * i));
    for (int i = 0; i < N * K; i++)
        b[i] = static_cast<T>(cosf(0.11f * i));
    float *d_c = to_device(c);
    LAUNCH((matmul<T, TRANSPOSED>), (dim3(N / 8, M / 16), 32, 0, stream), d_c, to_device(a), to_device(b));
    c = to_host(d_c, c.size());
    double error = 0;
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            double sum = 0;
            for (int k = 0; k < K; k++)
                sum += static_cast<double>(static_cast<float>(a[m * K + k])) *
                       static_cast<double>(static_cast<float>(b[TRANSPOSED ? k * N + n : n * K + k]));
            error = fmax(error, fabs(sum - static_cast<double>(c[m * N + n])));
        }
    return expect(error < 1e-4, what);
}

// ---- warps, barriers, atomics ----

enum { RESULTS = 10 };

// A block of 80 threads: the last warp is half full. out(RESULTS, 80).
__global__ void primitives(int *out) {
    int t = threadIdx.x, lane = t % 32, n = blockDim.x;
    uint32_t mask = t < 64 ? 0xffffffffu : 0xffffu;
    out[0 * n + t] = __shfl_sync(mask, t, 3);
    out[1 * n + t] = __shfl_up_sync(mask, t, 1);
    out[2 * n + t] = __shfl_down_sync(mask, t, 2, 8);
    out[3 * n + t] = __shfl_xor_sync(mask, t, 5, 16);
    out[4 * n + t] = static_cast<int>(__ballot_sync(mask, lane % 3 == 0) & 0xffff);
    out[5 * n + t] = __any_sync(mask, t == 70) * 2 + __all_sync(mask, t < 64);
    if (lane < 8)  // part of a warp, by its mask
        out[6 * n + t] = __shfl_xor_sync(0xffu, lane, 7);
    else
        out[6 * n + t] = -1;
    out[7 * n + t] = __syncthreads_count(t % 2);
    out[8 * n + t] = __syncthreads_or(t == 79) * 2 + __syncthreads_and(t >= 0);
    if (t >= 40)
        return;  // the rest meets without those that have ended
    __syncthreads();
    out[9 * n + t] = static_cast<int>(__popc(0xf0u)) + max(t, 39) + min(0, t);
}

static int check_primitives() {
    enum { T = 80 };
    std::vector<int> want(RESULTS * T, 0), out;
    for (int t = 0; t < T; t++) {
        int warp = t / 32 * 32, lane = t % 32, size = t < 64 ? 32 : 16, expected[RESULTS];
        expected[0] = warp + 3;
        expected[1] = lane == 0 ? t : t - 1;
        expected[2] = lane % 8 + 2 < 8 ? t + 2 : t;
        expected[3] = t ^ 5;
        expected[4] = size == 32 ? 0x9249 : 0x9249;  // lanes 0, 3, …, 15
        expected[5] = (t >= 64) * 2 + (t < 64);
        expected[6] = lane < 8 ? 7 - lane : -1;
        expected[7] = T / 2;
        expected[8] = 3;
        expected[9] = t < 40 ? 4 + 39 : 0;
        for (int r = 0; r < RESULTS; r++)
            want[r * T + t] = expected[r];
    }
    int *d_out = to_device(std::vector<int>(RESULTS * T, 0));
    LAUNCH((primitives), (1, T, 0, stream), d_out);
    out = to_host(d_out, want.size());
    return expect(out == want, "warp and block primitives");
}

// Sum by blocks; the last block to finish adds the blocks' sums, whatever the order of blocks.
__global__ void sum_all(double *total, double *parts, unsigned *done, const int *x, int n) {
    DYN_SHARED(double, tree);  // (blockDim.x)
    SHARED(bool, is_last, );
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tree[threadIdx.x] = i < n ? x[i] : 0;
    __syncthreads();
    for (unsigned half_size = blockDim.x / 2; half_size; half_size /= 2) {
        if (threadIdx.x < half_size)
            tree[threadIdx.x] += tree[threadIdx.x + half_size];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = tree[0];
        __threadfence();
        is_last = atomicAdd(done, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last || threadIdx.x != 0)
        return;
    double sum = 0;
    for (unsigned b = 0; b < gridDim.x; b++)
        sum += parts[b];
    *total = sum;
}

static int check_sum() {
    enum { COUNT = 1000, BLOCKS = 16 };
    std::vector<int> x(COUNT);
    double want = 0;
    for (int i = 0; i < COUNT; i++)
        want += x[i] = i * i % 31;
    double *total = to_device(std::vector<double>(1)), *parts = to_device(std::vector<double>(BLOCKS));
    unsigned *done = to_device(std::vector<unsigned>(1));
    LAUNCH((sum_all), (BLOCKS, 64, 64 * sizeof(double), stream), total, parts, done, to_device(x), COUNT);
    return expect(to_host(total, 1)[0] == want, "sum by the last block");
}

// Copies of 16 bytes, with a part that is filled with zeros.
__global__ void ragged_copy(float4 *out, const float4 *in, int n_floats) {
    SHARED(float4, row, [32]);
    int t = threadIdx.x, left = n_floats - 4 * t;
    cudasim::cp_async(&row[t], left > 0 ? in + t : in, 16, left <= 0 ? 0 : left < 4 ? 4 * left : 16);
    cudasim::cp_async_wait_all();
    __syncthreads();
    __stcs(out + t, row[31 - t]);
}
static int check_ragged() {
    std::vector<float4> in(32), out;
    for (int i = 0; i < 128; i++)
        reinterpret_cast<float *>(in.data())[i] = static_cast<float>(i + 1);
    float4 *d_out = to_device(in);
    LAUNCH((ragged_copy), (1, 32, 0, stream), d_out, to_device(in), 70);
    out = to_host(d_out, out.size() + 32);
    bool ok = true;
    for (int i = 0; i < 128; i++)
        ok = ok && reinterpret_cast<float *>(&out[31 - i / 4])[i % 4] == (i < 70 ? static_cast<float>(i + 1) : 0.0f);
    return expect(ok, "cp.async with a ragged end");
}

// What product kernels take from the CUDA headers: constants, vector loads, pairs of 16-bit floats, more than 48 KiB.
struct Scale {
    float factor;
};
__constant__ float table[2] = {1.0f, 0.25f};
static __device__ __forceinline__ float2 rounded(float x, float y) {
    return __bfloat1622float2(__floats2bfloat162_rn(x, y));
}
__global__ void language(float4 *__restrict__ out, const float4 *__restrict__ in, const __grid_constant__ Scale scale) {
    DYN_SHARED(float4, row);
    row[threadIdx.x] = __ldcs(in + threadIdx.x);
    float4 v = row[threadIdx.x];
    float2 low = rounded(v.x, v.y);
    float2 high = __half22float2(__floats2half2_rn(v.z, v.w));
    float factor = isfinite(v.x) ? scale.factor * table[1] * rsqrtf(4.0f) * exp2f(3.0f) : 0.0f;
    __stcs(out + threadIdx.x, make_float4(factor * low.x, factor * low.y, factor * high.x, factor * high.y));
}
static int check_language() {
    std::vector<float4> in(32);
    for (int i = 0; i < 128; i++)
        reinterpret_cast<float *>(in.data())[i] = static_cast<float>(i);
    float4 *d_in = to_device(in), *d_out = to_device(in);
    enum { SHARED_BYTES = 100 << 10 };
    cudaFuncSetAttribute(language, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    LAUNCH((language), (1, 32, SHARED_BYTES, stream), d_out, d_in, Scale{2.0f});
    std::vector<float4> out = to_host(d_out, 32);
    bool ok = cudaGetLastError() == cudaSuccess;
    for (int i = 0; i < 128; i++)
        ok = ok && reinterpret_cast<float *>(out.data())[i] == 2.0f * static_cast<float>(i);
    return expect(ok, "vector types, constants, large shared memory");
}

int main() {
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    int wrong = check_matmul<bf16, false>("mma, bf16") + check_matmul<__half, false>("mma, fp16") +
                check_matmul<bf16, true>("mma, bf16, transposed") + check_primitives() + check_sum() + check_ragged() +
                check_language();
    if (!wrong)
        printf("ok\n");
    return wrong != 0;
}
