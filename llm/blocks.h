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

// Buffers of the backward pass, shared by all layers. Backward also overwrites act: nobody needs it afterwards.
typedef struct BlockGrads {
    void *dx;                       // (rows, C) in: gradient of the block's output; out: of its input
    void *dmid;                     // (rows, C)
    void *dwide;                    // (rows, QKV width); LLaMA also (rows, 2F): gradient of qkv, of gate and up
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
    // Decoding one token with a KV cache: rows = 1, and the attention reads and extends this layer's caches.
    void *k_cache, *v_cache;        // (kv_heads, cache_len, head_dim); NULL while training
    int cache_len, position;
} BlockContext;

typedef enum ForwardPart {
    FORWARD_ALL,                    // x → all of BlockActs, and `out`
    FORWARD_RECOMPUTE_CHEAP,        // selective: norm1, norm2, act from x, mid, fc
    FORWARD_RECOMPUTE_ALL,          // full: everything but `out`
} ForwardPart;

void gpt2_block_unit(const ModelConfig *config, int layer, UnitSpec *unit);
void gpt2_block_forward(const BlockContext *c, const void *params, const BlockActs *a, void *out, ForwardPart part);
void gpt2_block_backward(const BlockContext *c, const void *params, UnitGrads grads, const BlockActs *a, const BlockGrads *g);

void llama_block_unit(const ModelConfig *config, int layer, UnitSpec *unit);
void llama_block_forward(const BlockContext *c, const void *params, const BlockActs *a, void *out, ForwardPart part);
void llama_block_backward(const BlockContext *c, const void *params, UnitGrads grads, const BlockActs *a, const BlockGrads *g);

// Append a tensor (out, in) to a unit's specification; in = 0: a vector of `out` elements, which weight decay leaves alone.
void unit_add(UnitSpec *unit, const char *name, int64_t out, int64_t in, InitKind init, float init_std);
// The same for a block's tensor: its name is "h.<layer>.<suffix>".
void block_add(UnitSpec *unit, int layer, const char *suffix, int64_t out, int64_t in, InitKind init, float init_std);

// Tensor number `tensor` inside a unit's parameter or gradient array.
const void *unit_param(const UnitSpec *spec, Dtype dtype, const void *unit, int tensor);
float *unit_grad(const UnitSpec *spec, float *unit, int tensor);

// Attention of the block: over the whole micro-batch, or one new token against the cache.
void block_attention(const BlockContext *c, const BlockActs *a);

static inline int64_t qkv_width(const ModelConfig *m) {
    return (int64_t)(m->heads + 2 * m->kv_heads) * m->head_dim;
}

#endif
