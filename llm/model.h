// model: the tensors of a transformer, grouped into units, and the order of its forward and backward pass on one rank.
//
// Units (the pieces that ZeRO gathers, reduces and shards): unit 0 the embeddings, units 1…L the blocks, unit L+1 the
// final norm and the head. A unit is one flat array of elements: its tensors in a fixed order, each start aligned to 64
// elements. Where the head is tied it has no weight of its own: unit L+1 is the norm alone and uses unit 0's token table.
//
// The model does not own parameters or gradients. The caller hands in the unit's array (UnitParams, UnitGrads), whatever
// it did to bring it there; that is all the model knows of ZeRO. One micro-batch of training is
//
//     for u = 0 … L:     model_forward(m, u, params(u))
//     model_loss(m, params(L+1), &grads(L+1), scale)            loss and the head's backward together, in row chunks
//     for u = L … 0:     model_backward(m, u, params(u), grads(u))
//
// Activations are allocated once, by model_open. --recompute decides what is kept from forward to backward:
//     none        everything
//     selective   block input, QKV, attention output and log-sum-exp, the sum after the attention's projection, and the
//                 first feed-forward product; norms and GELU/SwiGLU are computed again
//     full        the block input alone; the block's forward runs again. It may leave the device (llm/block_inputs.h)
// A value from which a recompute starts is stored, rounded, before its first use in every mode, so all three give the same bits.
#ifndef LLM_MODEL_H
#define LLM_MODEL_H

#include "llm/config.h"
#include "llm/device.h"
#include "llm/ops.h"

enum { TENSOR_ALIGN = 64, MAX_TENSORS = 16 };  // elements; tensors of one unit

typedef enum InitKind { INIT_ZERO, INIT_ONE, INIT_NORMAL } InitKind;

typedef struct TensorSpec {
    char name[40];      // GPT-2: "wte", "h.3.attn.qkv.weight"; the name that hashes, checkpoints and messages use
    int n_dims;         // 1 or 2
    int64_t shape[2];   // (out, in) for weights
    int64_t len;        // elements
    int64_t offset;     // in the unit, in elements, a multiple of TENSOR_ALIGN
    bool decay;         // weight decay applies (two or more dimensions)
    InitKind init;
    float init_std;
} TensorSpec;

typedef struct UnitSpec {
    int n_tensors;
    TensorSpec tensors[MAX_TENSORS];
    int64_t len;        // elements including the gaps between tensors: end of the last tensor, rounded up to TENSOR_ALIGN
} UnitSpec;

// The tensors of unit `u` (0 … layers+1) of a model. Pure arithmetic.
void model_unit(const ModelConfig *config, int u, UnitSpec *unit);
int model_n_units(const ModelConfig *config);              // layers + 2
int64_t model_n_params(const ModelConfig *config);         // Ψ: elements without gaps and padding
const TensorSpec *unit_find(const UnitSpec *unit, const char *name);

// Initial values of elements [begin, begin+len) of a unit (in unit order, gaps zero) as fp32 on the host: a pure function of
// (seed, tensor name, element), with our own log, sine and cosine, the same on every machine, rank and stage.
void model_init(const UnitSpec *unit, uint64_t seed, int64_t begin, int64_t len, float *values);

// FLOPs of forward + backward of one token at sequence length T: 6 · (matmul parameters) + causal attention 6·L·T·heads·head_dim.
// (2 a multiply-add; backward twice forward; the T×T/2 scores that causality leaves; recompute is not counted.)
double model_flops_per_token(const ModelConfig *config, int seq_len);

// The parameters and gradients of a unit, as the caller lends them.
typedef struct UnitParams {
    const void *unit;   // unit array in the compute dtype
    const void *tied;   // unit 0's array, for a tied head (u == L+1); else NULL
} UnitParams;

typedef struct UnitGrads {
    float *unit;        // unit array, fp32
    float *tied;        // unit 0's array for a tied head, else NULL
    bool accumulate;    // false: unit (and tied) hold nothing yet and are overwritten. A tied head's token gradient is
                        // written by model_loss and always added to by model_backward(0).
} UnitGrads;

typedef struct Model Model;

typedef struct ModelOptions {
    ModelConfig config;
    Dtype dtype;
    int batch, seq_len;     // B, T of a micro-batch
    Recompute recompute;
    int64_t head_chunk;     // rows of logits at a time; 0: default
    bool sampling;          // allocate the KV cache
    bool training;          // false: forward only
    bool offload_inputs;    // training with RECOMPUTE_FULL: block inputs spend the time until backward in host memory
    Stream *down, *up;      // for that: streams that copy
} ModelOptions;

// Device bytes that model_open will ask for, by category (activations, workspace, data). Allocates nothing on the device.
Status model_plan(Device *device, const ModelOptions *options, size_t bytes[MEM_CATEGORIES]);

size_t model_host_bytes(const ModelOptions *options);  // that are offloaded (MEM_ACTIVATIONS)

Status model_open(Device *device, Stream *compute, const ModelOptions *options, Model **model);
void model_close(Model *model);  // NULL is fine

// Bytes of activations that went to host memory, and came back, since the last call.
void model_take_offloaded(Model *model, int64_t *down, int64_t *up);

// Upload a micro-batch: tokens and targets (B·T) host int32; a negative target is not counted.
void model_set_batch(Model *model, const int32_t *tokens, const int32_t *targets);

void model_forward(Model *model, int u, UnitParams params);                    // u = 0 … L
// u = L+1. With grads: also the head's backward; dloss/dlogit = (softmax - onehot) · scale. grads NULL: loss only.
// The sum of the rows' losses (not scaled) arrives in *loss_sum (device_host_alloc memory) in stream order.
void model_loss(Model *model, UnitParams params, const UnitGrads *grads, float scale, double *loss_sum);
void model_backward(Model *model, int u, UnitParams params, UnitGrads grads);  // u = L … 0; params unused for u = 0

// Sampling with a KV cache: one token of one sequence at `position`; u = 0 … L, then the logits (V fp32, device_host_alloc memory).
void model_decode(Model *model, int u, UnitParams params, int32_t token, int position);
void model_decode_logits(Model *model, UnitParams params, float *logits);

#endif
