// One LLaMA block (Touvron et al. 2023): pre-norm grouped-query attention with rotary positions, and SwiGLU.
//
//     norm1 = RMSNorm(x)               norm2   = RMSNorm(mid)
//     qkv   = RoPE(norm1·Wqkvᵀ [+ b])  gate_up = norm2·Wguᵀ
//     att   = attention(qkv)           act     = silu(gate)·up
//     mid   = att·Wprojᵀ + x           out     = act·Wdownᵀ + mid
//
// The bias of QKV exists for Qwen2 only; it is the unit's last tensor.
#include <math.h>

#include "llm/blocks.h"

enum { NORM1_W, QKV_W, PROJ_W, NORM2_W, GATE_UP_W, DOWN_W, QKV_B };

void llama_block_unit(const ModelConfig *m, int layer, UnitSpec *unit) {
    int64_t C = m->channels, A = (int64_t)m->heads * m->head_dim, F = m->ffn;
    float residual_std = m->init_std / sqrtf(2.0f * (float)m->layers);
    block_add(unit, layer, "norm_1.weight", C, 0, INIT_ONE, 0);
    block_add(unit, layer, "attn.qkv.weight", qkv_width(m), C, INIT_NORMAL, m->init_std);
    block_add(unit, layer, "attn.proj.weight", C, A, INIT_NORMAL, residual_std);
    block_add(unit, layer, "norm_2.weight", C, 0, INIT_ONE, 0);
    block_add(unit, layer, "mlp.gate_up.weight", 2 * F, C, INIT_NORMAL, m->init_std);
    block_add(unit, layer, "mlp.down.weight", C, F, INIT_NORMAL, residual_std);
    if (m->qkv_bias)
        block_add(unit, layer, "attn.qkv.bias", qkv_width(m), 0, INIT_ZERO, 0);
}

void llama_block_forward(const BlockContext *c, const void *params, const BlockActs *a, void *out, ForwardPart part) {
    const Ops *ops = c->ops;
    const ModelConfig *m = c->config;
    Stream *s = c->stream;
    Dtype dt = c->dtype;
    int64_t R = c->rows, C = m->channels, A = (int64_t)m->heads * m->head_dim, F = m->ffn, W = qkv_width(m);
    const void *w[MAX_TENSORS] = {0};
    for (int i = 0; i < c->spec->n_tensors; i++)
        w[i] = unit_param(c->spec, dt, params, i);

    ops->norm_forward(s, dt, NORM_RMS, a->norm1, NULL, a->rstd1, a->x, w[NORM1_W], NULL, m->norm_eps, R, C);
    if (part != FORWARD_RECOMPUTE_CHEAP) {
        ops->linear_forward(s, dt, a->qkv, dt, W, a->norm1, w[QKV_W], w[QKV_B], NULL, R, C, W);
        ops->rope(s, dt, a->qkv, c->rope, c->attention, c->position, false);
        block_attention(c, a);
        ops->linear_forward(s, dt, a->mid, dt, C, a->att, w[PROJ_W], NULL, a->x, R, A, C);
    }
    ops->norm_forward(s, dt, NORM_RMS, a->norm2, NULL, a->rstd2, a->mid, w[NORM2_W], NULL, m->norm_eps, R, C);
    if (part != FORWARD_RECOMPUTE_CHEAP)
        ops->linear_forward(s, dt, a->fc, dt, 2 * F, a->norm2, w[GATE_UP_W], NULL, NULL, R, C, 2 * F);
    ops->swiglu_forward(s, dt, a->act, a->fc, R, F);
    if (part == FORWARD_ALL)
        ops->linear_forward(s, dt, out, dt, C, a->act, w[DOWN_W], NULL, a->mid, R, F, C);
}

void llama_block_backward(const BlockContext *c, const void *params, UnitGrads grads, const BlockActs *a,
                          const BlockGrads *g) {
    const Ops *ops = c->ops;
    const ModelConfig *m = c->config;
    Stream *s = c->stream;
    Dtype dt = c->dtype;
    bool acc = grads.accumulate;
    int64_t R = c->rows, C = m->channels, A = (int64_t)m->heads * m->head_dim, F = m->ffn, W = qkv_width(m);
    const void *w[MAX_TENSORS] = {0};
    float *dw[MAX_TENSORS] = {0};
    for (int i = 0; i < c->spec->n_tensors; i++) {
        w[i] = unit_param(c->spec, dt, params, i);
        dw[i] = unit_grad(c->spec, grads.unit, i);
    }

    // out = act·Wdownᵀ + mid: g->dx is the gradient of out, and through the residual also reaches mid
    ops->linear_backward_weight(s, dt, dw[DOWN_W], NULL, g->dx, C, a->act, R, F, C, acc);
    void *dact = a->act, *dgate_up = g->dwide;  // act was needed last just now: its memory takes its gradient
    ops->linear_backward_input(s, dt, dact, g->dx, C, w[DOWN_W], R, F, C);
    ops->swiglu_backward(s, dt, dgate_up, dact, a->fc, R, F);
    ops->linear_backward_weight(s, dt, dw[GATE_UP_W], NULL, dgate_up, 2 * F, a->norm2, R, C, 2 * F, acc);
    ops->linear_backward_input(s, dt, g->dnorm, dgate_up, 2 * F, w[GATE_UP_W], R, C, 2 * F);
    ops->norm_backward(s, dt, NORM_RMS, g->dmid, dw[NORM2_W], NULL, g->dnorm, g->dx, a->mid, NULL, a->rstd2,
                       w[NORM2_W], R, C, acc);

    // mid = att·Wprojᵀ + x
    ops->linear_backward_weight(s, dt, dw[PROJ_W], NULL, g->dmid, C, a->att, R, A, C, acc);
    void *datt = g->dnorm, *dqkv = g->dwide;
    ops->linear_backward_input(s, dt, datt, g->dmid, C, w[PROJ_W], R, A, C);
    ops->attention_backward(s, dt, dqkv, datt, a->qkv, a->att, a->lse, c->attention);
    ops->rope(s, dt, dqkv, c->rope, c->attention, 0, true);
    ops->linear_backward_weight(s, dt, dw[QKV_W], dw[QKV_B], dqkv, W, a->norm1, R, C, W, acc);
    ops->linear_backward_input(s, dt, g->dnorm, dqkv, W, w[QKV_W], R, C, W);
    ops->norm_backward(s, dt, NORM_RMS, g->dx, dw[NORM1_W], NULL, g->dnorm, g->dmid, a->x, NULL, a->rstd1, w[NORM1_W], R,
                       C, acc);
}
