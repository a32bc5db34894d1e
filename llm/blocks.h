// blocks: what model.c and the two block files share. gpt2.c and llama.c each hold one block, forward and backward,
// written in ops; model.c owns the buffers and calls them.
#ifndef LLM_BLOCKS_H
#define LLM_BLOCKS_H

#include "llm/model.h"

// Activations of one block, in the compute dtype unless noted. Rows = B·T. Which of them exist for every layer and which
// are shared by all layers (and so must be recomputed) is decided by --recompute; the block code does not care.
typedef struct BlockActs {
    void *x;                        // (rows, C) block input; always kept
    void *norm1;                    // (rows, C)
    void *qkv;                      // (rows, (heads + 2·kv_heads)·head_dim), after RoPE
    void *att;                      // (rows, heads·head_dim)
    float *lse;                     // (B, heads, T) fp32
    void *mid;                      // (rows, C) x + attention projection
    void *norm2;                    // (rows, C)
    void *fc;                       // GPT-2 (rows, F); LLaMA gate and up (rows, 2F)
    void *act;                      // (rows, F) GELU or SwiGLU of fc
    float *mean1, *rstd1, *mean2, *rstd2;  // (rows) fp32; means only for LayerNorm
} BlockActs;

// Buffers of the backward pass, shared by all layers.
typedef struct BlockGrads {
    void *dx;                       // (rows, C) in: gradient of the block's output; out: of its input
    void *dmid;                     // (rows, C)
    void *dwide;                    // (rows, max of F, 2F, QKV width): dact, dfc, dqkv in turn
    void *dwide2;                   // the same size: dact while dgate_up is formed, …
    void *dnorm;                    // (rows, max(C, heads·head_dim)) gradient of a norm's output or of the attention's output
} BlockGrads;

typedef struct BlockContext {
    const ModelConfig *config;
    const UnitSpec *spec;           // of this block's unit
    const Ops *ops;
    Stream *stream;
    Dtype dtype;
    AttentionShape attention;       // batch, seq_len of what is computed now
    RopeTable rope;
    int64_t rows;
} BlockContext;

typedef enum ForwardPart {
    FORWARD_ALL,                    // x → all of BlockActs, and `out`
    FORWARD_RECOMPUTE_CHEAP,        // selective: norm1, norm2, act from x, mid, fc
    FORWARD_RECOMPUTE_ALL,          // full: everything but `out`
} ForwardPart;

void gpt2_block_unit(const ModelConfig *config, int layer, UnitSpec *unit);
void gpt2_block_forward(const BlockContext *c, const void *params, BlockActs *a, void *out, ForwardPart part);
void gpt2_block_backward(const BlockContext *c, const void *params, UnitGrads grads, const BlockActs *a, const BlockGrads *g);

void llama_block_unit(const ModelConfig *config, int layer, UnitSpec *unit);
void llama_block_forward(const BlockContext *c, const void *params, BlockActs *a, void *out, ForwardPart part);
void llama_block_backward(const BlockContext *c, const void *params, UnitGrads grads, const BlockActs *a, const BlockGrads *g);

// Append a tensor to a unit's specification; helpers of the …_unit functions. `suffix` follows "h.<layer>." in the name.
void unit_add(UnitSpec *unit, const char *name, int64_t out, int64_t in, InitKind init, float init_std);

// Pointers to a tensor inside a unit's parameter or gradient array.
const void *block_param(const BlockContext *c, const void *unit, int tensor);
float *block_grad(const BlockContext *c, UnitGrads grads, int tensor);

#endif
