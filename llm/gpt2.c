// One GPT-2 block (Radford et al. 2019): pre-norm attention and feed-forward, each added to the residual stream.
//
//     norm1 = LayerNorm(x)             norm2 = LayerNorm(mid)
//     qkv   = norm1·Wqkvᵀ + b          fc    = norm2·Wfcᵀ + b
//     att   = attention(qkv)           act   = GELU(fc)
//     mid   = att·Wprojᵀ + b + x       out   = act·Wmlpᵀ + b + mid
#include <math.h>

#include "llm/blocks.h"

enum { LN1_W, LN1_B, QKV_W, QKV_B, PROJ_W, PROJ_B, LN2_W, LN2_B, FC_W, FC_B, MLP_W, MLP_B };

void gpt2_block_unit(const ModelConfig *m, int layer, UnitSpec *unit) {
    int64_t C = m->channels, A = (int64_t)m->heads * m->head_dim, F = m->ffn;
    float residual_std = m->init_std / sqrtf(2.0f * (float)m->layers);  // keeps the residual stream's variance with depth
    block_add(unit, layer, "ln_1.weight", C, 0, INIT_ONE, 0);
    block_add(unit, layer, "ln_1.bias", C, 0, INIT_ZERO, 0);
    block_add(unit, layer, "attn.qkv.weight", qkv_width(m), C, INIT_NORMAL, m->init_std);
    block_add(unit, layer, "attn.qkv.bias", qkv_width(m), 0, INIT_ZERO, 0);
    block_add(unit, layer, "attn.proj.weight", C, A, INIT_NORMAL, residual_std);
    block_add(unit, layer, "attn.proj.bias", C, 0, INIT_ZERO, 0);
    block_add(unit, layer, "ln_2.weight", C, 0, INIT_ONE, 0);
    block_add(unit, layer, "ln_2.bias", C, 0, INIT_ZERO, 0);
    block_add(unit, layer, "mlp.fc.weight", F, C, INIT_NORMAL, m->init_std);
    block_add(unit, layer, "mlp.fc.bias", F, 0, INIT_ZERO, 0);
    block_add(unit, layer, "mlp.proj.weight", C, F, INIT_NORMAL, residual_std);
    block_add(unit, layer, "mlp.proj.bias", C, 0, INIT_ZERO, 0);
}

void gpt2_block_forward(const BlockContext *c, const void *params, const BlockActs *a, void *out, ForwardPart part) {
    const Ops *ops = c->ops;
    const ModelConfig *m = c->config;
    Stream *s = c->stream;
    Dtype dt = c->dtype;
    int64_t R = c->rows, C = m->channels, A = (int64_t)m->heads * m->head_dim, F = m->ffn, W = qkv_width(m);
    const void *w[MAX_TENSORS];
    for (int i = 0; i < c->spec->n_tensors; i++)
        w[i] = unit_param(c->spec, dt, params, i);

    ops->norm_forward(s, dt, NORM_LAYER, a->norm1, a->mean1, a->rstd1, a->x, w[LN1_W], w[LN1_B], m->norm_eps, R, C);
    if (part != FORWARD_RECOMPUTE_CHEAP) {
        ops->linear_forward(s, dt, a->qkv, dt, W, a->norm1, w[QKV_W], w[QKV_B], NULL, R, C, W);
        block_attention(c, a);
        ops->linear_forward(s, dt, a->mid, dt, C, a->att, w[PROJ_W], w[PROJ_B], a->x, R, A, C);
    }
    ops->norm_forward(s, dt, NORM_LAYER, a->norm2, a->mean2, a->rstd2, a->mid, w[LN2_W], w[LN2_B], m->norm_eps, R, C);
    if (part != FORWARD_RECOMPUTE_CHEAP)
        ops->linear_forward(s, dt, a->fc, dt, F, a->norm2, w[FC_W], w[FC_B], NULL, R, C, F);
    ops->gelu_forward(s, dt, a->act, a->fc, R * F);
    if (part == FORWARD_ALL)
        ops->linear_forward(s, dt, out, dt, C, a->act, w[MLP_W], w[MLP_B], a->mid, R, F, C);
}

void gpt2_block_backward(const BlockContext *c, const void *params, UnitGrads grads, const BlockActs *a,
                         const BlockGrads *g) {
    const Ops *ops = c->ops;
    const ModelConfig *m = c->config;
    Stream *s = c->stream;
    Dtype dt = c->dtype;
    bool acc = grads.accumulate;
    int64_t R = c->rows, C = m->channels, A = (int64_t)m->heads * m->head_dim, F = m->ffn, W = qkv_width(m);
    const void *w[MAX_TENSORS];
    float *dw[MAX_TENSORS];
    for (int i = 0; i < c->spec->n_tensors; i++) {
        w[i] = unit_param(c->spec, dt, params, i);
        dw[i] = unit_grad(c->spec, grads.unit, i);
    }

    // out = act·Wmlpᵀ + b + mid: g->dx is the gradient of out, and through the residual also reaches mid
    ops->linear_backward_weight(s, dt, dw[MLP_W], dw[MLP_B], g->dx, C, a->act, R, F, C, acc);
    void *dact = a->act;  // act was needed last just now: its memory takes its gradient
    ops->linear_backward_input(s, dt, dact, g->dx, C, w[MLP_W], R, F, C);
    void *dfc = dact;
    ops->gelu_backward(s, dt, dfc, dw[FC_B], dact, a->fc, R, F, acc);
    ops->linear_backward_weight(s, dt, dw[FC_W], NULL, dfc, F, a->norm2, R, C, F, acc);
    ops->linear_backward_input(s, dt, g->dnorm, dfc, F, w[FC_W], R, C, F);
    ops->norm_backward(s, dt, NORM_LAYER, g->dmid, dw[LN2_W], dw[LN2_B], g->dnorm, g->dx, a->mid, a->mean2, a->rstd2,
                       w[LN2_W], R, C, acc);

    // mid = att·Wprojᵀ + b + x
    ops->linear_backward_weight(s, dt, dw[PROJ_W], dw[PROJ_B], g->dmid, C, a->att, R, A, C, acc);
    void *datt = g->dnorm, *dqkv = g->dwide;
    ops->linear_backward_input(s, dt, datt, g->dmid, C, w[PROJ_W], R, A, C);
    ops->attention_backward(s, dt, dqkv, datt, a->qkv, a->att, a->lse, c->attention);
    ops->linear_backward_weight(s, dt, dw[QKV_W], dw[QKV_B], dqkv, W, a->norm1, R, C, W, acc);
    ops->linear_backward_input(s, dt, g->dnorm, dqkv, W, w[QKV_W], R, C, W);
    ops->norm_backward(s, dt, NORM_LAYER, g->dx, dw[LN1_W], dw[LN1_B], g->dnorm, g->dmid, a->x, a->mean1, a->rstd1,
                       w[LN1_W], R, C, acc);
}
