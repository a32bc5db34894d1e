// attention: what its kernels share, and the functions by which attention.cu reaches them.
//
//   attention_forward.cu, attention_backward.cu   tensor cores: bf16 and fp16, heads of 64 or 128
//   attention_general.cu                          every dtype and head size, in fp32 on the ordinary cores
//   attention_decode.cu                           one new token
//
// All are FlashAttention-2 (Dao 2023): no T×T matrix in memory, softmax with a running maximum, tiles above the diagonal
// skipped. Backward has two passes: dq over tiles of queries, dk and dv over tiles of keys, where FlashAttention-2 has one
// pass with atomic additions to dq. That costs 7 products a tile instead of 5 and fixes the order of every sum: the bits
// depend on nothing but the arguments.
#ifndef LLM_CUDA_ATTENTION_CUH
#define LLM_CUDA_ATTENTION_CUH

#include "llm/cuda/ops_cuda.cuh"
#include "llm/cuda/vec.cuh"

constexpr float LOG2E = 1.44269504f, LN2 = 0.693147181f;

// Element indices are 64-bit: B·T·heads·head_dim may exceed 2^31. qkv's heads: queries, then keys, then values.
__host__ __device__ inline int64_t qkv_stride(const AttentionShape &s) {
    return static_cast<int64_t>(s.heads + 2 * s.kv_heads) * s.head_dim;
}
__host__ __device__ inline int64_t qkv_at(const AttentionShape &s, int b, int t, int head) {
    return (static_cast<int64_t>(b) * s.seq_len + t) * qkv_stride(s) + static_cast<int64_t>(head) * s.head_dim;
}
__host__ __device__ inline int64_t out_stride(const AttentionShape &s) {
    return static_cast<int64_t>(s.heads) * s.head_dim;
}
__host__ __device__ inline int64_t out_at(const AttentionShape &s, int b, int t, int head) {
    return (static_cast<int64_t>(b) * s.seq_len + t) * out_stride(s) + static_cast<int64_t>(head) * s.head_dim;
}
__host__ __device__ inline int64_t lse_at(const AttentionShape &s, int b, int t, int head) {
    return (static_cast<int64_t>(b) * s.heads + head) * s.seq_len + t;
}
// Heads of qkv, for query head h.
__device__ inline int key_head(const AttentionShape &s, int h) {
    return s.heads + h / (s.heads / s.kv_heads);
}
__device__ inline int value_head(const AttentionShape &s, int h) {
    return key_head(s, h) + s.kv_heads;
}

// `delta`, (B, heads, T) fp32 in the scratch arena, goes from backward's first pass to its second: the sum over a row of
// dout∘out, which is what softmax's gradient subtracts.
template <class T>
void attention_general_forward(cudaStream_t s, T *out, float *lse, const T *qkv, AttentionShape shape);
template <class T>
void attention_general_backward(cudaStream_t s, T *dqkv, float *delta, const T *dout, const T *qkv, const T *out,
                                const float *lse, AttentionShape shape);
template <class T, int D>  // bf16 and fp16; 64 and 128
void attention_mma_forward(cudaStream_t s, T *out, float *lse, const T *qkv, AttentionShape shape);
template <class T, int D>
void attention_mma_backward(cudaStream_t s, T *dqkv, float *delta, const T *dout, const T *qkv, const T *out,
                            const float *lse, AttentionShape shape);

#endif
