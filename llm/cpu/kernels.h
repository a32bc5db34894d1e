// kernels: what the …_isa.c files of this backend export and ops_cpu.c calls.
//
// A kernel works in the calling thread on the part [begin, end) of its rows, elements, channels or tiles; ops_cpu.c
// cuts parts over threads. `arguments` points to the struct named in the comment. Where results could depend on the
// cuts (sums over rows) the kernel works on blocks of a size that does not depend on threads.
#ifndef LLM_CPU_KERNELS_H
#define LLM_CPU_KERNELS_H

#include "llm/cpu/cpu.h"

typedef void CpuKernel(const void *arguments, int64_t begin, int64_t end);

// ---- embedding_isa.c ----
typedef struct EmbeddingForward {
    Dtype dt;
    void *x;
    const void *token_table, *position_table;
    const int32_t *tokens;
    int seq_len, first_position;
    int64_t channels;
} EmbeddingForward;

typedef struct EmbeddingBackward {
    Dtype dt;
    float *dtoken_table, *dposition_table;
    const void *dx;
    const int32_t *tokens;
    int64_t rows;
    int seq_len;
    int64_t channels;
} EmbeddingBackward;

typedef struct Rope {
    Dtype dt;
    void *qkv;
    RopeTable table;
    AttentionShape shape;
    int first_position;
    bool inverse;
} Rope;

typedef struct EmbeddingKernels {
    CpuKernel *forward;   // EmbeddingForward; rows
    CpuKernel *backward;  // EmbeddingBackward; channels, cut at multiples of 16
    CpuKernel *rope;      // Rope; rows
} EmbeddingKernels;
ISA_DECLARE(EmbeddingKernels, embedding_kernels);

// ---- norm_isa.c ----
typedef struct NormForward {
    Dtype dt;
    NormKind kind;
    void *y;
    float *mean, *rstd;
    const void *x, *weight, *bias;
    float eps;
    int64_t channels;
} NormForward;

typedef struct NormBackward {
    Dtype dt;
    NormKind kind;
    void *dx;
    float *dweight, *dbias;
    const void *dy, *residual, *x;
    const float *mean, *rstd;
    const void *weight;
    int64_t rows, channels;
    bool accumulate;
    int64_t block_rows, n_blocks;  // rows are summed in blocks, then blocks in order
    float *partials;               // (n_blocks, 2, stride): dweight and dbias of a block
    int64_t stride;                // channels rounded up to 16
} NormBackward;

typedef struct NormKernels {
    CpuKernel *forward;       // NormForward; rows
    CpuKernel *backward;      // NormBackward; blocks
    CpuKernel *sum_partials;  // NormBackward; channels, cut at multiples of 16
} NormKernels;
ISA_DECLARE(NormKernels, norm_kernels);

// ---- activation_isa.c ----
typedef struct Activation {
    Dtype dt;
    void *y;         // forward: result; backward: gradient of x
    const void *dy;  // backward only
    const void *x;   // GELU's input, or gate and up (rows, 2F)
    int64_t ffn;     // F of SwiGLU
} Activation;

typedef struct ActivationKernels {
    CpuKernel *gelu_forward, *gelu_backward;      // Activation; elements
    CpuKernel *swiglu_forward, *swiglu_backward;  // Activation; rows
} ActivationKernels;
ISA_DECLARE(ActivationKernels, activation_kernels);

// ---- loss_isa.c ----
typedef struct CrossEntropy {
    Dtype dt;
    float *losses;
    void *dlogits;
    int64_t ld_d;
    const float *logits;
    int64_t ld;
    const int32_t *targets;
    int64_t vocab;
    float scale;
} CrossEntropy;

typedef struct LossKernels {
    CpuKernel *cross_entropy;  // CrossEntropy; rows
} LossKernels;
ISA_DECLARE(LossKernels, loss_kernels);

// ---- flat_isa.c ----
typedef struct Flat {
    void *to;
    Dtype to_dtype;
    const void *from;
    Dtype from_dtype;
    int64_t len;
    float divisor;  // sumsq only
} Flat;

typedef struct FlatKernels {
    CpuKernel *convert, *add;  // Flat; elements
    CpuKernel *sumsq;          // Flat; tiles of SUMSQ_TILE elements
    CpuKernel *adamw;          // AdamwArgs; elements
} FlatKernels;
ISA_DECLARE(FlatKernels, flat_kernels);

#endif
