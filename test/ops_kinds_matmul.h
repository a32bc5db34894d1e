// ops_kinds_matmul: the Kinds of linear layers and attention (see ops_kinds.h).
#ifndef TEST_OPS_KINDS_MATMUL_H
#define TEST_OPS_KINDS_MATMUL_H

#include "test/ops_kinds.h"

// ---- linear: rows, in, out, ld of y and dy ----
enum { L_X, L_W, L_BIAS, L_RESIDUAL, L_Y };
static Dtype linear_y_dtype(const Row *r, Dtype dt) {
    return r->flags & LOGITS ? DTYPE_FP32 : dt;
}
static void linear_tensors(const Row *r, Dtype dt, Tensor t[TENSORS]) {
    int64_t rows = r->n[0], in = r->n[1], out = r->n[2];
    t[L_X] = (Tensor){"x", ARG, dt, rows, in, .grad_type = dt};
    t[L_W] = (Tensor){"w", ARG, dt, out, in, .sums = true};
    if (r->flags & BIAS)
        t[L_BIAS] = (Tensor){"bias", ARG, dt, 1, out, .sums = true};
    if (r->flags & RESIDUAL)
        t[L_RESIDUAL] = (Tensor){"residual", IN, dt, rows, out, .ld = r->n[3]};
    t[L_Y] = (Tensor){"y", OUT, linear_y_dtype(r, dt), rows, out, .ld = r->n[3], .grad_type = dt, .grad_ld = r->n[3]};
}
static void linear_forward_call(const Call *c) {
    const Row *r = c->row;
    const void *residual = c->v[L_RESIDUAL];
    if (r->flags & IN_PLACE) {
        place(c, c->v[L_Y], residual, r->n[0] * r->n[3], c->dt);
        residual = c->v[L_Y];
    }
    c->ops->linear_forward(c->stream, c->dt, c->v[L_Y], linear_y_dtype(r, c->dt), r->n[3], c->v[L_X], c->v[L_W],
                           c->v[L_BIAS], residual, r->n[0], r->n[1], r->n[2]);
}
static void linear_backward_call(const Call *c) {
    const int64_t *n = c->row->n;
    c->ops->linear_backward_input(c->stream, c->dt, c->d[L_X], c->d[L_Y], n[3], c->v[L_W], n[0], n[1], n[2]);
    c->ops->linear_backward_weight(c->stream, c->dt, c->d[L_W], c->d[L_BIAS], c->d[L_Y], n[3], c->v[L_X], n[0], n[1],
                                   n[2], c->accumulate);
}
static void linear_forward_reference(const Row *r, double **v) {
    int64_t in = r->n[1], out = r->n[2];
    for (int64_t row = 0; row < r->n[0]; row++)
        for (int64_t o = 0; o < out; o++) {
            double sum = (v[L_BIAS] ? v[L_BIAS][o] : 0) + (v[L_RESIDUAL] ? v[L_RESIDUAL][row * out + o] : 0);
            for (int64_t i = 0; i < in; i++)
                sum += v[L_X][row * in + i] * v[L_W][o * in + i];
            v[L_Y][row * out + o] = sum;
        }
}
static void linear_backward_reference(const Row *r, double **v, double **d) {
    int64_t in = r->n[1], out = r->n[2];
    for (int64_t row = 0; row < r->n[0]; row++)
        for (int64_t o = 0; o < out; o++) {
            double dy = d[L_Y][row * out + o];
            for (int64_t i = 0; i < in; i++) {
                d[L_X][row * in + i] += dy * v[L_W][o * in + i];
                d[L_W][o * in + i] += dy * v[L_X][row * in + i];
            }
            if (d[L_BIAS])
                d[L_BIAS][o] += dy;
        }
}
static size_t linear_scratch_bytes(Device *device, Dtype dt, const Row *r) {
    return device_ops(device)->linear_scratch(device, dt, linear_y_dtype(r, dt), r->n[3], r->n[0], r->n[1], r->n[2],
                                              true);
}
static double linear_flops(const Row *r) {
    return 2.0 * (double)r->n[0] * (double)r->n[1] * (double)r->n[2];
}
static const Kind linear = {"linear",
                            "rows in out ld",
                            linear_tensors,
                            linear_forward_call,
                            linear_backward_call,
                            linear_forward_reference,
                            linear_backward_reference,
                            linear_scratch_bytes,
                            linear_flops,
                            .backward_flops = 2,
                            .tolerance = 5e-6,
                            .why = "fp32 sums in any order",
                            .threads_matter = true};

// ---- attention: B, T, heads, kv_heads, head_dim ----
enum { T_QKV, T_OUT, T_LSE, T_K, T_V };
static void attention_tensors(const Row *r, Dtype dt, Tensor t[TENSORS]) {
    int64_t rows = r->n[0] * r->n[1];
    t[T_QKV] = (Tensor){"qkv", ARG, dt, rows, qkv_width(r), .low = -2, .high = 2, .grad_type = dt};
    t[T_OUT] = (Tensor){"out", OUT, dt, rows, r->n[2] * r->n[4], .grad_type = dt};
    t[T_LSE] = (Tensor){"lse", SAVED, DTYPE_FP32, r->n[0] * r->n[2], r->n[1]};
}
static void attention_forward_call(const Call *c) {
    c->ops->attention_forward(c->stream, c->dt, c->v[T_OUT], c->v[T_LSE], c->v[T_QKV], attention_shape(c->row));
}
static void attention_backward_call(const Call *c) {
    c->ops->attention_backward(c->stream, c->dt, c->d[T_QKV], c->d[T_OUT], c->v[T_QKV], c->v[T_OUT], c->v[T_LSE],
                               attention_shape(c->row));
}
// Visits every query (b, h, t): its scores' softmax p over positions 0 … t, and log-sum-exp.
typedef struct Query {
    int64_t q, k, v, out;  // offsets of the query, of key 0, value 0 (stride: width of qkv), and of the output
    int64_t t;
} Query;
static double query_softmax(const Row *r, const double *qkv, Query q, double *p) {
    int64_t D = r->n[4], width = qkv_width(r);
    double max = -INFINITY, sum = 0;
    for (int64_t s = 0; s <= q.t; s++) {
        p[s] = 0;
        for (int64_t i = 0; i < D; i++)
            p[s] += qkv[q.q + i] * qkv[q.k + s * width + i] / sqrt((double)D);
        max = p[s] > max ? p[s] : max;
    }
    for (int64_t s = 0; s <= q.t; s++)
        sum += exp(p[s] - max);
    for (int64_t s = 0; s <= q.t; s++)
        p[s] = exp(p[s] - max) / sum;
    return log(sum) + max;
}
static Query query_at(const Row *r, int64_t b, int64_t h, int64_t t) {
    int64_t T = r->n[1], H = r->n[2], KV = r->n[3], D = r->n[4], width = qkv_width(r), kv = h * KV / H;
    return (Query){(b * T + t) * width + h * D, b * T * width + (H + kv) * D, b * T * width + (H + KV + kv) * D,
                   ((b * T + t) * H + h) * D, t};
}
static void attention_forward_reference(const Row *r, double **v) {
    int64_t T = r->n[1], H = r->n[2], D = r->n[4], width = qkv_width(r);
    double *p = malloc((size_t)T * sizeof *p);
    for (int64_t b = 0; b < r->n[0]; b++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t t = 0; t < T; t++) {
                Query q = query_at(r, b, h, t);
                double lse = query_softmax(r, v[T_QKV], q, p);
                if (v[T_LSE])
                    v[T_LSE][(b * H + h) * T + t] = lse;
                for (int64_t i = 0; i < D; i++) {
                    double sum = 0;
                    for (int64_t s = 0; s <= t; s++)
                        sum += p[s] * v[T_QKV][q.v + s * width + i];
                    v[T_OUT][q.out + i] = sum;
                }
            }
    free(p);
}
static void attention_backward_reference(const Row *r, double **v, double **d) {
    int64_t T = r->n[1], H = r->n[2], D = r->n[4], width = qkv_width(r);
    const double *qkv = v[T_QKV], root = sqrt((double)D);
    double *dqkv = d[T_QKV], *p = malloc((size_t)T * sizeof *p), *dp = malloc((size_t)T * sizeof *dp);
    for (int64_t b = 0; b < r->n[0]; b++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t t = 0; t < T; t++) {
                Query q = query_at(r, b, h, t);
                query_softmax(r, qkv, q, p);
                double dot = 0;
                for (int64_t s = 0; s <= t; s++) {
                    dp[s] = 0;
                    for (int64_t i = 0; i < D; i++) {
                        dp[s] += d[T_OUT][q.out + i] * qkv[q.v + s * width + i];
                        dqkv[q.v + s * width + i] += p[s] * d[T_OUT][q.out + i];
                    }
                    dot += p[s] * dp[s];
                }
                for (int64_t s = 0; s <= t; s++)
                    for (int64_t i = 0; i < D; i++) {
                        double ds = p[s] * (dp[s] - dot) / root;
                        dqkv[q.q + i] += ds * qkv[q.k + s * width + i];
                        dqkv[q.k + s * width + i] += ds * qkv[q.q + i];
                    }
            }
    free(p);
    free(dp);
}
static size_t attention_scratch_bytes(Device *device, Dtype dt, const Row *r) {
    return device_ops(device)->attention_scratch(device, dt, attention_shape(r));
}
static double attention_flops(const Row *r) {  // of the causal half
    return 2.0 * (double)r->n[0] * (double)r->n[2] * (double)r->n[1] * (double)(r->n[1] + 1) * (double)r->n[4];
}
static const Kind attention = {"attention",
                               "B T heads kv_heads head_dim",
                               attention_tensors,
                               attention_forward_call,
                               attention_backward_call,
                               attention_forward_reference,
                               attention_backward_reference,
                               attention_scratch_bytes,
                               attention_flops,
                               .backward_flops = 2.5,
                               .tolerance = 1e-5,
                               .roundings_16 = 8,
                               .why = "softmax over a row; backward reads the rounded output"};

// ---- decoding, a token at a time, must equal attention over the sequence: 1, T, heads, kv_heads, head_dim, positions
// ----
static void decode_tensors(const Row *r, Dtype dt, Tensor t[TENSORS]) {
    t[T_QKV] = (Tensor){"qkv", IN, dt, r->n[1], qkv_width(r), .low = -2, .high = 2};
    t[T_OUT] = (Tensor){"out", OUT, dt, r->n[1], r->n[2] * r->n[4]};
    t[T_K] = (Tensor){"k cache", SCRATCH, dt, r->n[3] * r->n[5], r->n[4]};
    t[T_V] = (Tensor){"v cache", SCRATCH, dt, r->n[3] * r->n[5], r->n[4]};
}
static void decode_call(const Call *c) {
    const Row *r = c->row;
    AttentionShape shape = attention_shape(r);
    shape.seq_len = 1;
    for (int64_t t = 0; t < r->n[1]; t++)
        c->ops->attention_decode(c->stream, c->dt,
                                 (char *)c->v[T_OUT] + t * r->n[2] * r->n[4] * (int64_t)dtype_bytes(c->dt), c->v[T_K],
                                 c->v[T_V], (char *)c->v[T_QKV] + t * qkv_width(r) * (int64_t)dtype_bytes(c->dt), shape,
                                 (int)t, (int)r->n[5]);
}
static const Kind decode = {"attention decode",
                            "B T heads kv_heads head_dim positions",
                            decode_tensors,
                            decode_call,
                            NULL,
                            attention_forward_reference,
                            NULL,
                            attention_scratch_bytes,
                            .tolerance = 1e-5,
                            .why = "softmax over a row"};

#endif
