// vec: how kernels touch memory, and sums across threads in a fixed order.
//
// A GPU moves memory fastest when each thread of a warp moves 16 bytes that lie side by side. So a thread works on N
// consecutive elements, its *pack* (8 as a rule: 16 bytes of bf16 or fp16, twice 16 of fp32), as fp32 numbers in
// registers. load and store take the end of the array: elements past it read as 0 and are not written. Where addresses
// or row lengths are not multiples of 16 bytes, the kernel is launched with ALIGNED = false and goes element by element.
//
// Conversions have the bits of llm/dtype.h, also for NaN, whose payload the hardware's instructions drop.
#ifndef LLM_CUDA_VEC_CUH
#define LLM_CUDA_VEC_CUH

#include <stdint.h>

#include <type_traits>

#include "llm/cuda/cuda.cuh"

typedef __nv_bfloat16 bf16;
typedef __half fp16;

constexpr int PACK = 8;
constexpr unsigned ALL_LANES = 0xffffffffu;

// ---- one element ----

__device__ inline float to_fp32(float x) {
    return x;
}
__device__ inline float to_fp32(bf16 x) {
    return __uint_as_float(static_cast<uint32_t>(__bfloat16_as_ushort(x)) << 16);
}
__device__ inline float to_fp32(fp16 x) {
    uint32_t h = __half_as_ushort(x);
    uint32_t nan = (h & 0x8000) << 16 | 0x7fc00000 | (h & 0x3ff) << 13;
    return (h & 0x7fff) > 0x7c00 ? __uint_as_float(nan) : __half2float(x);
}

template <class T>
__device__ T from_fp32(float x);
template <>
__device__ inline float from_fp32(float x) {
    return x;
}
template <>
__device__ inline bf16 from_fp32(float x) {
    uint32_t nan = __float_as_uint(x) >> 16 | 0x40;
    return isnan(x) ? __ushort_as_bfloat16(static_cast<unsigned short>(nan)) : __float2bfloat16_rn(x);
}
template <>
__device__ inline fp16 from_fp32(float x) {
    uint32_t bits = __float_as_uint(x), nan = (bits >> 16 & 0x8000) | 0x7e00 | (bits >> 13 & 0x3ff);
    return isnan(x) ? __ushort_as_half(static_cast<unsigned short>(nan)) : __float2half_rn(x);
}

// ---- 16 bytes: one instruction (the simulator's race build sees one access of this width) ----

struct Words {
    uint32_t w[4];
};
#ifdef CUDASIM
typedef uint32_t Vector16 __attribute__((vector_size(16)));
#endif

__device__ inline Words load16(const void *p) {
#ifdef CUDASIM
    Vector16 v = *static_cast<const Vector16 *>(p);
    return {{v[0], v[1], v[2], v[3]}};
#else
    uint4 v = *static_cast<const uint4 *>(p);
    return {{v.x, v.y, v.z, v.w}};
#endif
}
__device__ inline void store16(void *p, Words words) {
#ifdef CUDASIM
    *static_cast<Vector16 *>(p) = Vector16{words.w[0], words.w[1], words.w[2], words.w[3]};
#else
    *static_cast<uint4 *>(p) = make_uint4(words.w[0], words.w[1], words.w[2], words.w[3]);
#endif
}

__device__ inline bf16 from_bits(bf16, uint32_t bits) {
    return __ushort_as_bfloat16(static_cast<unsigned short>(bits));
}
__device__ inline fp16 from_bits(fp16, uint32_t bits) {
    return __ushort_as_half(static_cast<unsigned short>(bits));
}
__device__ inline uint32_t to_bits(bf16 x) {
    return __bfloat16_as_ushort(x);
}
__device__ inline uint32_t to_bits(fp16 x) {
    return __half_as_ushort(x);
}

// ---- a pack: elements i … i+N-1 of the array p that ends at `end` ----

template <bool ALIGNED, class T, int N>
__device__ inline void load(float (&v)[N], const T *p, int64_t i, int64_t end) {
    constexpr int EACH = 16 / sizeof(T);  // elements in 16 bytes
    static_assert(N % EACH == 0, "a pack is a multiple of 16 bytes");
    if (ALIGNED && i + N <= end) {
#pragma unroll
        for (int k = 0; k < N; k += EACH) {
            Words words = load16(p + i + k);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if constexpr (sizeof(T) == 4) {
                    v[k + j] = __uint_as_float(words.w[j]);
                } else {
                    v[k + 2 * j] = to_fp32(from_bits(T(), words.w[j] & 0xffff));
                    v[k + 2 * j + 1] = to_fp32(from_bits(T(), words.w[j] >> 16));
                }
            }
        }
    } else {
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] = i + k < end ? to_fp32(p[i + k]) : 0.0f;
    }
}

template <bool ALIGNED, class T, int N>
__device__ inline void store(T *p, int64_t i, int64_t end, const float (&v)[N]) {
    constexpr int EACH = 16 / sizeof(T);
    static_assert(N % EACH == 0, "a pack is a multiple of 16 bytes");
    if (ALIGNED && i + N <= end) {
#pragma unroll
        for (int k = 0; k < N; k += EACH) {
            Words words;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if constexpr (sizeof(T) == 4)
                    words.w[j] = __float_as_uint(v[k + j]);
                else
                    words.w[j] = to_bits(from_fp32<T>(v[k + 2 * j])) | to_bits(from_fp32<T>(v[k + 2 * j + 1])) << 16;
            }
            store16(p + i + k, words);
        }
    } else {
#pragma unroll
        for (int k = 0; k < N; k++)
            if (i + k < end)
                p[i + k] = from_fp32<T>(v[k]);
    }
}

// The same with the dtype as an argument, for kernels that combine several: all threads take the same branch.
template <bool ALIGNED, int N>
__device__ inline void load_any(float (&v)[N], const void *p, Dtype dt, int64_t i, int64_t end) {
    if (dt == DTYPE_FP32)
        load<ALIGNED>(v, static_cast<const float *>(p), i, end);
    else if (dt == DTYPE_BF16)
        load<ALIGNED>(v, static_cast<const bf16 *>(p), i, end);
    else
        load<ALIGNED>(v, static_cast<const fp16 *>(p), i, end);
}
template <bool ALIGNED, int N>
__device__ inline void store_any(void *p, Dtype dt, int64_t i, int64_t end, const float (&v)[N]) {
    if (dt == DTYPE_FP32)
        store<ALIGNED>(static_cast<float *>(p), i, end, v);
    else if (dt == DTYPE_BF16)
        store<ALIGNED>(static_cast<bf16 *>(p), i, end, v);
    else
        store<ALIGNED>(static_cast<fp16 *>(p), i, end, v);
}

// ---- sums across threads: a tree inside a warp, then the warps in order ----

// Every lane gets the same bits: at each level both lanes of a pair add the same two numbers.
__device__ inline float warp_sum(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, offset));
    return x;
}

// For blocks of (32·warps, rows) threads: each x[n] summed over the threads of the same threadIdx.y, to all of them.
// `shared` holds N floats for each warp of the block. One barrier: whoever calls this twice alternates between two.
constexpr int MAX_WARPS = 32;
template <int N>
__device__ inline void row_sums(float (&x)[N], float *shared) {
#pragma unroll
    for (int n = 0; n < N; n++)
        x[n] = warp_sum(x[n]);
    const int warps = static_cast<int>(blockDim.x) / 32;
    if (warps == 1)
        return;
    float *mine = shared + static_cast<int>(threadIdx.y) * warps * N;
    if (threadIdx.x % 32 == 0)
#pragma unroll
        for (int n = 0; n < N; n++)
            mine[threadIdx.x / 32 * N + n] = x[n];
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N; n++)
        x[n] = 0.0f;
    for (int w = 0; w < warps; w++)
#pragma unroll
        for (int n = 0; n < N; n++)
            x[n] += mine[w * N + n];
}

// ---- sums across blocks ----

// Hand-off without a second launch: blocks write partial sums, then come here; the last of `members` sees what all have
// written and adds it up, in an order that does not depend on who is last. `counter` starts and ends at 0.
// For all threads of a block together.
__device__ inline bool last_to_arrive(unsigned *counter, unsigned members) {
    SHARED(bool, last, [1]);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0)
        last[0] = atomicInc(counter, members - 1) == members - 1;
    __syncthreads();
    __threadfence();
    return last[0];
}

// ---- host: which instance of a kernel, and how many blocks ----

// f(T()) with the element type of dt.
template <class F>
void with_dtype(Dtype dt, F f) {
    switch (dt) {
        case DTYPE_BF16: f(bf16()); break;
        case DTYPE_FP16: f(fp16()); break;
        default: f(float());
    }
}
// f(std::true_type()) or f(std::false_type())
template <class F>
void with_bool(bool value, F f) {
    if (value)
        f(std::true_type());
    else
        f(std::false_type());
}

// Are all these addresses multiples of 16? NULL is.
template <class... Pointers>
bool aligned16(Pointers... pointers) {
    return (... | reinterpret_cast<uintptr_t>(pointers)) % 16 == 0;
}
// And is every row of `columns` elements of dt, one behind the other?
inline bool rows_aligned16(int64_t columns, Dtype dt) {
    return columns * static_cast<int64_t>(dtype_bytes(dt)) % 16 == 0;
}

inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// Blocks of THREADS threads for kernels that walk over `items` with the whole grid as their stride: twice as many as
// run at a time, so that the end of the work is spread evenly.
constexpr int THREADS = 256;
inline unsigned flat_grid(const Stream *stream, int64_t items) {
    const int64_t most = 16 * static_cast<int64_t>(cuda_multiprocessors(stream)), blocks = ceil_div(items, THREADS);
    return static_cast<unsigned>(blocks < most ? blocks : most);
}

// For matrices: a warp on 32 neighbouring packs of a row, 8 rows a block. No division finds row and column.
// Kernels walk over rows with the grid as their stride, as gridDim.y ends at 65,535.
inline dim3 matrix_block() {
    return dim3(32, THREADS / 32);
}
inline dim3 matrix_grid(int64_t rows, int64_t columns, int pack) {
    const int64_t y = ceil_div(rows, THREADS / 32);
    return dim3(static_cast<unsigned>(ceil_div(columns, 32 * pack)), static_cast<unsigned>(y < 65535 ? y : 65535));
}

#endif
