// mma: tensor cores and the copies that feed them, as PTX, each with a body for the simulator (dev/cudasim/ptx.h, which
// also draws the layouts of fragments). PTX ISA: "Matrix Fragments for mma.m16n8k16", "ldmatrix", "cp.async". sm_80.
#ifndef LLM_CUDA_MMA_CUH
#define LLM_CUDA_MMA_CUH

#include <string.h>

#include "llm/cuda/vec.cuh"

// Where something lies in shared memory, as a number to calculate with.
#ifdef CUDASIM
typedef uintptr_t SharedAddress;
#else
typedef uint32_t SharedAddress;
#endif

__device__ inline SharedAddress shared_address(const void *shared) {
#ifdef CUDASIM
    return reinterpret_cast<SharedAddress>(shared);
#else
    return static_cast<SharedAddress>(__cvta_generic_to_shared(shared));
#endif
}

// Two neighbours of a fragment, rounded to nearest even.
template <class T>
__device__ uint32_t pack(float low, float high);
template <>
__device__ inline uint32_t pack<bf16>(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
}
template <>
__device__ inline uint32_t pack<fp16>(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
}

// d(16, 8) += a(16, 16)·b(16, 8), d in fp32; b is two registers, as half an ldmatrix_x4 has them.
template <class T>
__device__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ inline void mma<bf16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef CUDASIM
    const uint32_t b[2] = {b0, b1};
    cudasim::mma_m16n8k16_bf16(d, a, b, d);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}
template <>
__device__ inline void mma<fp16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef CUDASIM
    const uint32_t b[2] = {b0, b1};
    cudasim::mma_m16n8k16_fp16(d, a, b, d);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// Four 8×8 matrices of 16-bit elements; lane 8m + i gives the address of row i of matrix m.
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], SharedAddress row) {
#ifdef CUDASIM
    cudasim::ldmatrix_x4(r, reinterpret_cast<const void *>(row));
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row));
#endif
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], SharedAddress row) {
#ifdef CUDASIM
    cudasim::ldmatrix_x4_trans(r, reinterpret_cast<const void *>(row));
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row));
#endif
}

// From device to shared memory, past the registers: 16 bytes, or zeros where !valid. Done when this thread has waited for
// the group; seen by others after a barrier behind that.
__device__ inline void cp_async_16(SharedAddress to, const void *from, bool valid) {
#ifdef CUDASIM
    cudasim::cp_async(reinterpret_cast<void *>(to), from, 16, valid ? 16 : 0);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
#endif
}
__device__ inline void cp_async_4(SharedAddress to, const void *from, bool valid) {
#ifdef CUDASIM
    cudasim::cp_async(reinterpret_cast<void *>(to), from, 4, valid ? 4 : 0);
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0) : "memory");
#endif
}
__device__ inline void cp_async_commit() {
#ifdef CUDASIM
    cudasim::cp_async_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int PENDING>  // groups that may still be under way
__device__ inline void cp_async_wait() {
#ifdef CUDASIM
    cudasim::cp_async_wait(PENDING);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// 2^x to 2 ulp in one instruction; 2^-inf = 0, results below 2^-126 are 0.
__device__ inline float exp2_fast(float x) {
#ifdef CUDASIM
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

#endif
