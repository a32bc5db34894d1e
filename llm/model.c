// The model on one rank: its buffers, made once, and the order of forward and backward. The blocks are in gpt2.c and llama.c.
#include "llm/model.h"

#include <stdlib.h>
#include <string.h>

#include "llm/block_inputs.h"
#include "llm/blocks.h"
#include "llm/rope.h"

// Rows of logits that exist at a time in fp32, and rows of their gradient that the head's weight gradient sums at once.
// The second fixes the order of a sum, so it is a constant; the first changes no bit.
enum { HEAD_CHUNK = 128, HEAD_GRAD_ROWS = 512, GPU_HEAD_CHUNK = 512, GPU_HEAD_GRAD_ROWS = 4096 };

struct Model {
    Device *device;
    const Ops *ops;
    Stream *stream;
    ModelOptions options;
    UnitSpec embedding, block, head;  // the units' tensors; a block's offsets are the same in every layer
    BlockContext context;
    int64_t rows, head_rows, head_chunk, ld_logits;

    int32_t *tokens, *targets;        // (rows)
    void **x;                         // layers+1 pointers: input of each block, then the last block's output
    BlockInputs inputs;               // where x goes from forward to backward
    BlockActs *acts;                  // one a layer; what --recompute does not keep points to the same memory in all
    BlockGrads grads;
    void *x_final;                    // (rows, C) the final norm's output
    float *mean_final, *rstd_final;   // (rows)
    float *losses;                    // (rows)
    float *logits;                    // (head_chunk, ld_logits) fp32
    void *dlogits;                    // (head_rows, ld_logits)
    float *rope;                      // (seq_len, head_dim/2, 2)
    void *kv_cache;                   // (layers, 2, kv_heads, seq_len, head_dim)
    float *rope_host;
    int32_t *decode_token;            // host copy for the upload
};

// ---- buffers: one list, walked to predict bytes and walked to allocate them ----

typedef struct Buffers {
    Device *device;                   // NULL: only add up
    size_t bytes[MEM_CATEGORIES];
    Status status;
} Buffers;

static void buffer(Buffers *b, MemoryCategory category, const char *name, size_t bytes, void *pointer_to_pointer) {
    const size_t most = SIZE_MAX / 16;  // shapes at the edge of what is allowed: their sums stay "too much"
    b->bytes[category] = bytes < most - b->bytes[category] ? b->bytes[category] + bytes : most;
    void *memory = NULL;
    if (b->device && b->status == OK)
        b->status = device_alloc(b->device, category, name, bytes, &memory);
    memcpy(pointer_to_pointer, &memory, sizeof memory);
}

// A block's activations: those of `keep` set get memory of their own, the others come from `shared` (NULL: from memory too).
static void block_buffers(Buffers *b, Model *m, BlockActs *a, const BlockActs *shared, bool keep_cheap, bool keep_rest) {
    const ModelConfig *c = &m->options.config;
    size_t e = dtype_bytes(m->options.dtype), R = (size_t)m->rows;
    size_t C = (size_t)c->channels, A = (size_t)c->heads * (size_t)c->head_dim, F = (size_t)c->ffn;
    size_t fc = c->arch == ARCH_LLAMA ? 2 * F : F;
    bool layer_norm = c->arch == ARCH_GPT2;
    const MemoryCategory cat = MEM_ACTIVATIONS;
    if (shared)
        *a = *shared;
    if (keep_cheap) {
        buffer(b, cat, "norm1", R * C * e, &a->norm1);
        buffer(b, cat, "norm2", R * C * e, &a->norm2);
        buffer(b, cat, "act", R * F * e, &a->act);
        buffer(b, cat, "rstd1", R * 4, &a->rstd1);
        buffer(b, cat, "rstd2", R * 4, &a->rstd2);
        buffer(b, cat, "mean1", layer_norm ? R * 4 : 0, &a->mean1);
        buffer(b, cat, "mean2", layer_norm ? R * 4 : 0, &a->mean2);
    }
    if (keep_rest) {
        buffer(b, cat, "qkv", R * (size_t)qkv_width(c) * e, &a->qkv);
        buffer(b, cat, "att", R * A * e, &a->att);
        buffer(b, cat, "lse", R * (size_t)c->heads * 4, &a->lse);
        buffer(b, cat, "mid", R * C * e, &a->mid);
        buffer(b, cat, "fc", R * fc * e, &a->fc);
    }
}

static size_t max_size(size_t a, size_t b) {
    return a > b ? a : b;
}

// The largest scratch of any operation; building what the device caches for the shapes on the way.
static size_t scratch_bytes(Model *m, Device *device) {
    const ModelConfig *c = &m->options.config;
    const Ops *ops = m->ops;
    Dtype dt = m->options.dtype;
    bool train = m->options.training;
    int64_t C = c->channels, A = (int64_t)c->heads * c->head_dim, F = c->ffn, W = qkv_width(c), V = c->vocab_size;
    int64_t fc = c->arch == ARCH_LLAMA ? 2 * F : F;
    size_t most = max_size(ops->norm_scratch(device, m->rows, C), ops->attention_scratch(device, dt, m->context.attention));
    int64_t row_counts[] = {m->rows, 1};
    for (int i = 0; i < (m->options.sampling ? 2 : 1); i++) {
        int64_t R = row_counts[i];
        bool backward = train && i == 0;
        most = max_size(most, ops->linear_scratch(device, dt, dt, W, R, C, W, backward));
        most = max_size(most, ops->linear_scratch(device, dt, dt, C, R, A, C, backward));
        most = max_size(most, ops->linear_scratch(device, dt, dt, fc, R, C, fc, backward));
        most = max_size(most, ops->linear_scratch(device, dt, dt, C, R, F, C, backward));
    }
    // The head works on pieces of head_rows rows, and on chunks of a piece
    int64_t pieces[] = {m->head_rows, m->rows % m->head_rows};
    for (int i = 0; i < 2; i++) {
        if (pieces[i] == 0)
            continue;
        if (train)
            most = max_size(most, ops->linear_scratch(device, dt, dt, m->ld_logits, pieces[i], C, V, true));
        int64_t chunks[] = {pieces[i] < m->head_chunk ? pieces[i] : m->head_chunk, pieces[i] % m->head_chunk};
        for (int k = 0; k < 2; k++)
            if (chunks[k])
                most = max_size(most, ops->linear_scratch(device, dt, DTYPE_FP32, m->ld_logits, chunks[k], C, V, false));
    }
    if (m->options.sampling)
        most = max_size(most, ops->linear_scratch(device, dt, DTYPE_FP32, m->ld_logits, 1, C, V, false));
    return most;
}

// Without training nobody looks back at a block's input, and an offloaded one comes back: two buffers in turn.
static bool has_own_input(const Model *m, int l) {
    return (m->options.training && !m->options.offload_inputs) || l < INPUT_BUFFERS;
}

static void all_buffers(Buffers *b, Model *m) {
    const ModelConfig *c = &m->options.config;
    size_t e = dtype_bytes(m->options.dtype), R = (size_t)m->rows, L = (size_t)c->layers;
    size_t C = (size_t)c->channels, A = (size_t)c->heads * (size_t)c->head_dim, W = (size_t)qkv_width(c);
    Recompute recompute = m->options.training ? m->options.recompute : RECOMPUTE_FULL;

    buffer(b, MEM_DATA, "tokens", R * 4, &m->tokens);
    buffer(b, MEM_DATA, "targets", R * 4, &m->targets);
    for (size_t l = 0; l <= L; l++) {
        if (has_own_input(m, (int)l))
            buffer(b, MEM_ACTIVATIONS, "block input", R * C * e, &m->x[l]);
        else
            m->x[l] = m->x[l - INPUT_BUFFERS];
    }
    BlockActs shared = {0};
    block_buffers(b, m, &shared, NULL, recompute != RECOMPUTE_NONE, recompute == RECOMPUTE_FULL);
    for (size_t l = 0; l < L; l++) {
        block_buffers(b, m, &m->acts[l], &shared, recompute == RECOMPUTE_NONE, recompute != RECOMPUTE_FULL);
        m->acts[l].x = m->x[l];
    }
    buffer(b, MEM_ACTIVATIONS, "final norm", R * C * e, &m->x_final);
    buffer(b, MEM_ACTIVATIONS, "final mean", c->arch == ARCH_GPT2 ? R * 4 : 0, &m->mean_final);
    buffer(b, MEM_ACTIVATIONS, "final rstd", R * 4, &m->rstd_final);
    buffer(b, MEM_ACTIVATIONS, "losses", R * 4, &m->losses);
    if (m->options.training) {
        size_t wide = c->arch == ARCH_LLAMA ? max_size(W, 2 * (size_t)c->ffn) : W;
        buffer(b, MEM_ACTIVATIONS, "dx", R * C * e, &m->grads.dx);
        buffer(b, MEM_ACTIVATIONS, "dmid", R * C * e, &m->grads.dmid);
        buffer(b, MEM_ACTIVATIONS, "dwide", R * wide * e, &m->grads.dwide);
        buffer(b, MEM_ACTIVATIONS, "dnorm", R * max_size(C, A) * e, &m->grads.dnorm);
    }
    size_t ld = (size_t)m->ld_logits;
    buffer(b, MEM_WORKSPACE, "logits", (size_t)m->head_chunk * ld * 4, &m->logits);
    buffer(b, MEM_WORKSPACE, "dlogits", m->options.training ? (size_t)m->head_rows * ld * e : 0, &m->dlogits);
    if (c->arch == ARCH_LLAMA)
        buffer(b, MEM_WORKSPACE, "rope", (size_t)m->options.seq_len * (size_t)c->head_dim * 4, &m->rope);
    if (m->options.sampling)
        buffer(b, MEM_WORKSPACE, "kv cache",
               L * 2 * (size_t)c->kv_heads * (size_t)m->options.seq_len * (size_t)c->head_dim * e, &m->kv_cache);
}

static Status prepare(Device *device, Stream *stream, const ModelOptions *options, Model **model_out) {
    const ModelConfig *c = &options->config;
    TRY(model_config_check(c));
    Model *m = calloc(1, sizeof *m);
    if (!m)
        return fail("out of host memory");
    *model_out = m;
    m->x = calloc((size_t)c->layers + 1, sizeof *m->x);
    m->acts = calloc((size_t)c->layers, sizeof *m->acts);
    if (!m->x || !m->acts)
        return fail("out of host memory");
    m->device = device;
    m->ops = device_ops(device);
    m->stream = stream;
    m->options = *options;
    m->rows = (int64_t)options->batch * options->seq_len;
    bool gpu = device_kind(device) == DEVICE_CUDA;
    m->head_rows = gpu ? GPU_HEAD_GRAD_ROWS : HEAD_GRAD_ROWS;
    m->head_rows = m->rows < m->head_rows ? m->rows : m->head_rows;
    m->head_chunk = options->head_chunk > 0 ? options->head_chunk : gpu ? GPU_HEAD_CHUNK : HEAD_CHUNK;
    if (m->head_chunk > m->head_rows)
        m->head_chunk = m->head_rows;
    m->ld_logits = (c->vocab_size + TENSOR_ALIGN - 1) / TENSOR_ALIGN * TENSOR_ALIGN;
    model_unit(c, 0, &m->embedding);
    model_unit(c, 1, &m->block);
    model_unit(c, c->layers + 1, &m->head);
    m->context = (BlockContext){
        .config = &m->options.config, .spec = &m->block, .ops = m->ops, .stream = stream, .dtype = options->dtype,
        .attention = {options->batch, options->seq_len, c->heads, c->kv_heads, c->head_dim}, .rows = m->rows};
    return OK;
}

static void forget(Model *m) {
    free(m->x);
    free(m->acts);
    free(m);
}

Status model_plan(Device *device, const ModelOptions *options, size_t bytes[MEM_CATEGORIES]) {
    Model *m = NULL;
    Status status = prepare(device, NULL, options, &m);
    if (status == OK) {
        Buffers b = {0};
        all_buffers(&b, m);
        b.bytes[MEM_WORKSPACE] += scratch_bytes(m, device);
        memcpy(bytes, b.bytes, sizeof b.bytes);
    }
    if (m)
        forget(m);
    return status;
}

static size_t input_bytes(const ModelOptions *o) {
    return (size_t)o->batch * (size_t)o->seq_len * (size_t)o->config.channels * dtype_bytes(o->dtype);
}

size_t model_host_bytes(const ModelOptions *o) {
    return o->offload_inputs ? block_inputs_host_bytes(o->config.layers, input_bytes(o)) : 0;
}

void model_take_offloaded(Model *m, int64_t *down, int64_t *up) {
    *down = m->inputs.bytes_down;
    *up = m->inputs.bytes_up;
    m->inputs.bytes_down = m->inputs.bytes_up = 0;
}

Status model_open(Device *device, Stream *compute, const ModelOptions *options, Model **model_out) {
    *model_out = NULL;
    Model *m = NULL;
    Status status = prepare(device, compute, options, &m);
    if (status != OK)
        goto failed;
    Buffers b = {.device = device};
    all_buffers(&b, m);
    TRY_GOTO(b.status, failed);
    if (options->offload_inputs)
        TRY_GOTO(block_inputs_open(device, compute, options->down, options->up, options->config.layers, input_bytes(options),
                                   &m->inputs), failed);
    TRY_GOTO(device_reserve_scratch(device, scratch_bytes(m, device)), failed);
    TRY_GOTO(device_host_alloc(device, "decoded token", sizeof *m->decode_token, (void **)&m->decode_token), failed);
    if (m->rope) {
        size_t bytes = (size_t)options->seq_len * (size_t)options->config.head_dim * 4;
        TRY_GOTO(device_host_alloc(device, "rope", bytes, (void **)&m->rope_host), failed);
        rope_table(&m->options.config, options->seq_len, m->rope_host);
        stream_copy(compute, m->rope, m->rope_host, bytes);
        m->context.rope = (RopeTable){m->rope, options->seq_len};
    }
    *model_out = m;
    return OK;
failed:
    model_close(m);
    return status;
}

static void free_block(Device *device, BlockActs *a, const BlockActs *except) {
    void *pointers[] = {a->norm1, a->norm2, a->act, a->rstd1, a->rstd2, a->mean1, a->mean2, a->qkv, a->att, a->lse, a->mid, a->fc};
    const void *kept[] = {except->norm1, except->norm2, except->act, except->rstd1, except->rstd2, except->mean1,
                          except->mean2, except->qkv, except->att, except->lse, except->mid, except->fc};
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++)
        if (pointers[i] != kept[i])
            device_free(device, pointers[i]);
}

void model_close(Model *m) {
    if (!m)
        return;
    Device *d = m->device;
    static const BlockActs nothing;
    for (int l = m->options.config.layers - 1; m->acts && l >= 0; l--)  // what a layer shares with layer 0 is freed with layer 0
        free_block(d, &m->acts[l], l ? &m->acts[0] : &nothing);
    for (int l = 0; m->x && l <= m->options.config.layers; l++)
        if (has_own_input(m, l))
            device_free(d, m->x[l]);
    void *rest[] = {m->tokens, m->targets, m->x_final, m->mean_final, m->rstd_final, m->losses, m->grads.dx, m->grads.dmid,
                    m->grads.dwide, m->grads.dnorm, m->logits, m->dlogits, m->rope, m->kv_cache};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        device_free(d, rest[i]);
    block_inputs_close(&m->inputs);
    device_host_free(d, m->decode_token);
    device_host_free(d, m->rope_host);
    forget(m);
}

// ---- forward and backward ----

void model_set_batch(Model *m, const int32_t *tokens, const int32_t *targets) {
    stream_copy(m->stream, m->tokens, tokens, (size_t)m->rows * sizeof *tokens);
    stream_copy(m->stream, m->targets, targets, (size_t)m->rows * sizeof *targets);
}

void block_attention(const BlockContext *c, const BlockActs *a) {
    if (c->k_cache)
        c->ops->attention_decode(c->stream, c->dtype, a->att, c->k_cache, c->v_cache, a->qkv, c->attention, c->position,
                                 c->cache_len);
    else
        c->ops->attention_forward(c->stream, c->dtype, a->att, a->lse, a->qkv, c->attention);
}

static void embedding_forward(Model *m, const BlockContext *c, UnitParams params, void *x, int seq_len) {
    const void *wpe = m->embedding.n_tensors > 1 ? unit_param(&m->embedding, c->dtype, params.unit, 1) : NULL;
    c->ops->embedding_forward(c->stream, c->dtype, x, unit_param(&m->embedding, c->dtype, params.unit, 0), wpe, m->tokens,
                              c->rows, seq_len, c->position, m->options.config.channels);
}

static void block_forward(const BlockContext *c, const void *params, const BlockActs *a, void *out, ForwardPart part) {
    if (c->config->arch == ARCH_GPT2)
        gpt2_block_forward(c, params, a, out, part);
    else
        llama_block_forward(c, params, a, out, part);
}

void model_forward(Model *m, int u, UnitParams params) {
    block_inputs_write(&m->inputs, u);
    if (u == 0)
        embedding_forward(m, &m->context, params, m->x[0], m->options.seq_len);
    else
        block_forward(&m->context, params.unit, &m->acts[u - 1], m->x[u], FORWARD_ALL);
    block_inputs_made(&m->inputs, m->x, u);
}

static void final_norm(Model *m, const BlockContext *c, UnitParams params, const void *x) {
    const ModelConfig *config = &m->options.config;
    bool layer_norm = config->arch == ARCH_GPT2;
    c->ops->norm_forward(c->stream, c->dtype, layer_norm ? NORM_LAYER : NORM_RMS, m->x_final, m->mean_final, m->rstd_final,
                         x, unit_param(&m->head, c->dtype, params.unit, 0),
                         layer_norm ? unit_param(&m->head, c->dtype, params.unit, 1) : NULL, config->norm_eps, c->rows,
                         config->channels);
}

// The head's weight: the last tensor of unit L+1, or unit 0's token table.
static const void *head_weight(const Model *m, UnitParams params) {
    return m->options.config.tied ? unit_param(&m->embedding, m->options.dtype, params.tied, 0)
                                  : unit_param(&m->head, m->options.dtype, params.unit, m->head.n_tensors - 1);
}

void model_loss(Model *m, UnitParams params, const UnitGrads *grads, float scale, double *loss_sum) {
    const ModelConfig *config = &m->options.config;
    const Ops *ops = m->ops;
    Stream *s = m->stream;
    Dtype dt = m->options.dtype;
    size_t e = dtype_bytes(dt);
    int64_t C = config->channels, V = config->vocab_size, ld = m->ld_logits;
    const void *w = head_weight(m, params);
    float *dw = !grads ? NULL : config->tied ? unit_grad(&m->embedding, grads->tied, 0)
                                             : unit_grad(&m->head, grads->unit, m->head.n_tensors - 1);
    void *dx_final = m->grads.dnorm;

    final_norm(m, &m->context, params, m->x[config->layers]);
    for (int64_t piece = 0; piece < m->rows; piece += m->head_rows) {
        int64_t n = m->rows - piece < m->head_rows ? m->rows - piece : m->head_rows;
        char *x = (char *)m->x_final + (size_t)(piece * C) * e;
        for (int64_t r = 0; r < n; r += m->head_chunk) {
            int64_t k = n - r < m->head_chunk ? n - r : m->head_chunk;
            ops->linear_forward(s, dt, m->logits, DTYPE_FP32, ld, x + (size_t)(r * C) * e, w, NULL, NULL, k, C, V);
            ops->cross_entropy(s, dt, m->losses + piece + r, grads ? (char *)m->dlogits + (size_t)(r * ld) * e : NULL, ld,
                               m->logits, ld, m->targets + piece + r, k, V, scale);
        }
        if (grads) {
            ops->linear_backward_input(s, dt, (char *)dx_final + (size_t)(piece * C) * e, m->dlogits, ld, w, n, C, V);
            ops->linear_backward_weight(s, dt, dw, NULL, m->dlogits, ld, x, n, C, V, grads->accumulate || piece > 0);
        }
    }
    ops->sum_to_host(s, loss_sum, m->losses, m->rows);
    if (grads) {
        bool layer_norm = config->arch == ARCH_GPT2;
        ops->norm_backward(s, dt, layer_norm ? NORM_LAYER : NORM_RMS, m->grads.dx, unit_grad(&m->head, grads->unit, 0),
                           layer_norm ? unit_grad(&m->head, grads->unit, 1) : NULL, dx_final, NULL, m->x[config->layers],
                           m->mean_final, m->rstd_final, unit_param(&m->head, dt, params.unit, 0), m->rows, C,
                           grads->accumulate);
    }
}

void model_backward(Model *m, int u, UnitParams params, UnitGrads grads) {
    const ModelConfig *config = &m->options.config;
    if (u == 0) {
        bool gpt2 = config->arch == ARCH_GPT2;
        // A tied head has already put its part into the token gradient.
        m->ops->embedding_backward(m->stream, m->options.dtype, unit_grad(&m->embedding, grads.unit, 0),
                                   gpt2 ? unit_grad(&m->embedding, grads.unit, 1) : NULL, m->grads.dx, m->tokens, m->rows,
                                   m->options.seq_len, config->channels, config->vocab_size, gpt2 ? config->max_seq_len : 0,
                                   config->tied || grads.accumulate, grads.accumulate);
        return;
    }
    BlockActs *a = &m->acts[u - 1];
    block_inputs_need(&m->inputs, m->x, u - 1);
    if (m->options.recompute == RECOMPUTE_SELECTIVE)
        block_forward(&m->context, params.unit, a, NULL, FORWARD_RECOMPUTE_CHEAP);
    else if (m->options.recompute == RECOMPUTE_FULL)
        block_forward(&m->context, params.unit, a, NULL, FORWARD_RECOMPUTE_ALL);
    if (config->arch == ARCH_GPT2)
        gpt2_block_backward(&m->context, params.unit, grads, a, &m->grads);
    else
        llama_block_backward(&m->context, params.unit, grads, a, &m->grads);
}

// ---- sampling: rows = 1, buffers of the training pass reused between steps ----

static BlockContext decode_context(const Model *m, int layer, int position) {
    const ModelConfig *config = &m->options.config;
    BlockContext c = m->context;
    c.rows = 1;
    c.attention.batch = c.attention.seq_len = 1;
    c.position = position;
    c.cache_len = m->options.seq_len;
    if (layer >= 0) {
        size_t cache = (size_t)config->kv_heads * (size_t)c.cache_len * (size_t)config->head_dim * dtype_bytes(c.dtype);
        c.k_cache = (char *)m->kv_cache + (size_t)(2 * layer) * cache;
        c.v_cache = (char *)c.k_cache + cache;
    }
    return c;
}

void model_decode(Model *m, int u, UnitParams params, int32_t token, int position) {
    BlockContext c = decode_context(m, u - 1, position);
    if (u == 0) {
        *m->decode_token = token;
        stream_copy(m->stream, m->tokens, m->decode_token, sizeof token);
        embedding_forward(m, &c, params, m->x[0], 1);
    } else {
        block_forward(&c, params.unit, &m->acts[u - 1], m->x[u], FORWARD_ALL);
    }
}

void model_decode_logits(Model *m, UnitParams params, float *logits) {
    const ModelConfig *config = &m->options.config;
    BlockContext c = decode_context(m, -1, 0);
    final_norm(m, &c, params, m->x[config->layers]);
    m->ops->linear_forward(m->stream, c.dtype, m->logits, DTYPE_FP32, m->ld_logits, m->x_final, head_weight(m, params), NULL,
                           NULL, 1, config->channels, config->vocab_size);
    stream_copy(m->stream, logits, m->logits, (size_t)config->vocab_size * sizeof *logits);
}
