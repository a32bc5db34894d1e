// ops: the arithmetic that a transformer needs. One interface; llm/cpu and llm/cuda implement it, and one table of
// operations in test/test_ops.c checks every implementation against a plain double-precision reference.
//
// Conventions
//   dt      dtype of parameters and activations (fp32, bf16, fp16). Sums, norms, softmax and products are formed in fp32
//           and rounded once when they are stored. Gradients of parameters are always fp32 here; what they become
//           afterwards is zero/'s business.
//   rows    B·T, the tokens of a micro-batch. Matrices are row-major and dense unless a leading dimension (ld_…, in
//           elements) is given. Weights are (out, in), as PyTorch's nn.Linear stores them.
//   d…      the gradient of …
//   accumulate   false: the gradient is overwritten (first micro-batch). true: added to.
//   All functions only enqueue on `stream`; errors stick to the stream (llm/device.h). Results do not depend on anything
//   but the arguments, the thread count and the device model: no atomics on floats, no races, fixed order of every sum.
//   Nothing is allocated: scratch comes from device_scratch, sized by the …_scratch functions, which are pure functions of
//   their arguments and the device's thread count. They also let an implementation build what it caches for that shape (matmul primitives).
#ifndef LLM_OPS_H
#define LLM_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "llm/device.h"
#include "llm/dtype.h"

typedef enum NormKind { NORM_LAYER, NORM_RMS } NormKind;

// Attention's view of one micro-batch. qkv is (B, T, heads + 2·kv_heads, head_dim): queries, then keys, then values.
typedef struct AttentionShape {
    int batch, seq_len;            // B, T
    int heads, kv_heads, head_dim; // heads % kv_heads == 0 (grouped-query attention: query head h uses kv head h·kv_heads/heads)
} AttentionShape;

// Rotary position embedding, "rotate half" pairing (i, i + head_dim/2), as Hugging Face's LLaMA stores its weights.
// cos_sin is (positions, head_dim/2, 2) fp32 on the device, made by llm/rope.
typedef struct RopeTable {
    const float *cos_sin;
    int positions;
} RopeTable;

// One flat piece of optimizer state: `len` consecutive elements of a unit. Everything here is fp32 but `grad` and `param`.
enum { ADAMW_MAX_RANGES = 24 };
typedef enum OptKind { OPT_ADAMW, OPT_ADAM, OPT_SGD } OptKind;
typedef struct AdamwArgs {
    int64_t len;
    float *master;        // (len) weights to update; in fp32 runs these are the parameters themselves
    void *param;          // (len) rounded copy in dt to refresh, or NULL in fp32 runs
    Dtype param_dtype;
    const void *grad;     // (len)
    Dtype grad_dtype;
    float *m, *v;         // (len) moments; SGD uses m as momentum, v = NULL
    float grad_divisor;   // the loss scale that backward used
    float grad_factor;    // min(1, clip / (norm + 1e-6))
    float lr, beta1, beta2, eps, weight_decay, momentum;
    float bias_correction1, bias_correction2;  // 1 - beta^t, formed in double on the host
    OptKind kind;
    // Weight decay applies to elements [range_end[i-1], range_end[i]) where range_decay[i]; range_end[n_ranges-1] == len.
    int n_ranges;
    int64_t range_end[ADAMW_MAX_RANGES];
    bool range_decay[ADAMW_MAX_RANGES];
} AdamwArgs;

typedef struct Ops {
    const char *name;  // "cpu", "cuda"

    // ---- linear layers: y(rows, out) = x(rows, in) · w(out, in)ᵀ + bias(out) + residual(rows, out), rounded once ----
    // bias and residual may be NULL; residual may be y itself. y_dtype is dt, or fp32 (logits). ld_y >= out.
    void (*linear_forward)(Stream *stream, Dtype dt, void *y, Dtype y_dtype, int64_t ld_y, const void *x, const void *w,
                           const void *bias, const void *residual, int64_t rows, int64_t in, int64_t out);
    // dx(rows, in) = dy(rows, out) · w(out, in)
    void (*linear_backward_input)(Stream *stream, Dtype dt, void *dx, const void *dy, int64_t ld_dy, const void *w,
                                  int64_t rows, int64_t in, int64_t out);
    // dw(out, in) (+)= dy(rows, out)ᵀ · x(rows, in);  db(out) (+)= column sums of dy. db may be NULL. fp32 results.
    void (*linear_backward_weight)(Stream *stream, Dtype dt, float *dw, float *db, const void *dy, int64_t ld_dy,
                                   const void *x, int64_t rows, int64_t in, int64_t out, bool accumulate);
    // Scratch bytes that the three functions above need for this shape (the largest of them).
    size_t (*linear_scratch)(Device *device, Dtype dt, Dtype y_dtype, int64_t ld_y, int64_t rows, int64_t in, int64_t out,
                             bool with_backward);

    // ---- embedding: x(rows, C) = token_table[tokens] + position_table[t], t = row % seq_len + first_position ----
    // position_table may be NULL (LLaMA). tokens are int32, already checked against the vocabulary.
    void (*embedding_forward)(Stream *stream, Dtype dt, void *x, const void *token_table, const void *position_table,
                              const int32_t *tokens, int64_t rows, int seq_len, int first_position, int64_t channels);
    // Token gradient is added or, when !accumulate_tokens, stored after clearing all `vocab` rows; likewise positions
    // (of `positions` rows). The order of the sum over equal tokens is the row order.
    void (*embedding_backward)(Stream *stream, Dtype dt, float *dtoken_table, float *dposition_table, const void *dx,
                               const int32_t *tokens, int64_t rows, int seq_len, int64_t channels, int64_t vocab,
                               int64_t positions, bool accumulate_tokens, bool accumulate_positions);

    // ---- norms (Ba et al. 2016; Zhang & Sennrich 2019), over the last dimension ----
    // LayerNorm: y = (x - mean) · rstd · weight + bias.  RMSNorm: y = x · rstd · weight (bias and mean unused, NULL).
    // mean, rstd: (rows) fp32 kept for backward; both may be NULL when there is no backward.
    void (*norm_forward)(Stream *stream, Dtype dt, NormKind kind, void *y, float *mean, float *rstd, const void *x,
                         const void *weight, const void *bias, float eps, int64_t rows, int64_t channels);
    // dx = residual + norm's gradient, rounded once (residual may be NULL, and may be dx itself); dweight, dbias as accumulate says.
    void (*norm_backward)(Stream *stream, Dtype dt, NormKind kind, void *dx, float *dweight, float *dbias, const void *dy,
                          const void *residual, const void *x, const float *mean, const float *rstd, const void *weight,
                          int64_t rows, int64_t channels, bool accumulate);
    size_t (*norm_scratch)(Device *device, int64_t rows, int64_t channels);

    // ---- causal self-attention, softmax(q·kᵀ/√head_dim)·v, never a T×T matrix in memory (Dao 2023, FlashAttention-2) ----
    // out (B, T, heads, head_dim); lse (B, heads, T) fp32: log-sum-exp of the scaled scores, for backward.
    void (*attention_forward)(Stream *stream, Dtype dt, void *out, float *lse, const void *qkv, AttentionShape shape);
    void (*attention_backward)(Stream *stream, Dtype dt, void *dqkv, const void *dout, const void *qkv, const void *out,
                               const float *lse, AttentionShape shape);
    size_t (*attention_scratch)(Device *device, Dtype dt, AttentionShape shape);
    // One new token of one sequence: q, k, v in qkv (heads + 2·kv_heads, head_dim); k, v are appended at `position` of the
    // caches (kv_heads, max_positions, head_dim), then q attends to positions 0 … position. out (heads, head_dim).
    void (*attention_decode)(Stream *stream, Dtype dt, void *out, void *k_cache, void *v_cache, const void *qkv,
                             AttentionShape shape, int position, int max_positions);

    // ---- rotary embedding in place on the queries and keys of qkv; `inverse` rotates back (backward) ----
    // Row r is at position r % seq_len + first_position.
    void (*rope)(Stream *stream, Dtype dt, void *qkv, RopeTable table, AttentionShape shape, int first_position, bool inverse);

    // ---- activations, elementwise over rows × F ----
    // GELU, tanh form (Hendrycks & Gimpel 2016): y = 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
    void (*gelu_forward)(Stream *stream, Dtype dt, void *y, const void *x, int64_t len);
    // dx may be dy. db(F) (+)= column sums of dx as it is stored: the gradient of the bias that was added to x. Needs the
    // scratch of the linear layer whose output is x (rows, F).
    void (*gelu_backward)(Stream *stream, Dtype dt, void *dx, float *db, const void *dy, const void *x, int64_t rows,
                          int64_t ffn, bool accumulate);
    // SwiGLU (Shazeer 2020): gate_up is (rows, 2F), gate then up; y(rows, F) = silu(gate)·up
    void (*swiglu_forward)(Stream *stream, Dtype dt, void *y, const void *gate_up, int64_t rows, int64_t ffn);
    void (*swiglu_backward)(Stream *stream, Dtype dt, void *dgate_up, const void *dy, const void *gate_up, int64_t rows,
                            int64_t ffn);

    // ---- loss: softmax cross-entropy over `vocab` columns of logits (rows, ld) fp32 ----
    // losses[r] = log Σ exp(logits[r]) - logits[r, target], 0 where target < 0 (not valid).
    // dlogits (rows, ld_d) in dt = (softmax - onehot)·scale, 0 where target < 0; NULL: loss only.
    // Columns vocab … ld_d-1 of dlogits are left alone. dlogits may start where logits start if ld_d bytes fit ld bytes
    // (row r of dlogits inside row r of logits): each row is read to its end before it is written.
    void (*cross_entropy)(Stream *stream, Dtype dt, float *losses, void *dlogits, int64_t ld_d, const float *logits, int64_t ld,
                          const int32_t *targets, int64_t rows, int64_t vocab, float scale);

    // ---- reductions with a fixed order ----
    // *sum = Σ values[i] (fp32 values, double sum in index order of fixed tiles); sum is host memory (device_host_alloc).
    void (*sum_to_host)(Stream *stream, double *sum, const float *values, int64_t len);
    // tile_sums[k] = Σ (values[i]/divisor)² over tile k of SUMSQ_TILE elements, in fp32 with a fixed tree:
    // lane j of 256 adds its elements j, j+256, … in order with fma, then lanes are added by halves (128, 64, …, 1).
    // Elements past len count as 0. tile_sums is host memory of ceil(len / SUMSQ_TILE) floats.
    void (*sumsq_to_host)(Stream *stream, float *tile_sums, const void *values, Dtype dtype, float divisor, int64_t len);

    // ---- flat arrays ----
    // to[i] = round(from[i]); and  to[i] = round(to[i] + from[i]) with the sum in fp32
    void (*convert)(Stream *stream, void *to, Dtype to_dtype, const void *from, Dtype from_dtype, int64_t len);
    void (*add)(Stream *stream, void *to, Dtype to_dtype, const void *from, Dtype from_dtype, int64_t len);
    // One optimizer step over a flat piece, in one pass (llm/adamw.h holds the arithmetic, the same on every device).
    void (*adamw)(Stream *stream, const AdamwArgs *args);
} Ops;

enum { SUMSQ_TILE = 4096, SUMSQ_LANES = 256 };

extern const Ops cpu_ops, cuda_ops;

#endif
