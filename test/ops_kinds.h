// ops_kinds: what the table in test_ops.c is made of. A Kind is one operation of llm/ops.h: the tensors it works on,
// how it is called, and what it should compute, as plain loops in double precision. A Row is a Kind with a shape.
//
// References read and write dense arrays of doubles, v[t] for tensor t and d[t] for its gradient. They are checked
// themselves: the backward ones against finite differences of the forward ones.
#ifndef TEST_OPS_KINDS_H
#define TEST_OPS_KINDS_H

#include <math.h>

#include "llm/ops.h"

#pragma GCC diagnostic ignored "-Wmissing-field-initializers"  // what a row leaves out is 0

enum { TENSORS = 8 };

enum { TYPE_INT32 = 3, TYPE_DOUBLE = 4 };  // element types; 0 … 2 are Dtype

typedef enum Role {
    ABSENT,
    IN,       // read; has no gradient
    ARG,      // read; backward computes its gradient
    OUT,      // written by forward; backward reads its gradient
    SAVED,    // written by forward, read by backward
    INOUT,    // read and updated
    SCRATCH,  // neither set nor compared
} Role;

typedef struct Tensor {
    const char *name;
    Role role;
    int type;  // element type
    int64_t rows, cols;
    int64_t ld;        // leading dimension on the device; 0: cols
    double low, high;  // inputs are uniform in [low, high); both 0: [-1, 1)
    int grad_type;     // ARG: fp32 gradients of weights (`sums`) accumulate, others overwrite
    bool sums;
    int64_t grad_ld;       // 0: cols
    double constant_grad;  // OUT: its gradient is this number, handed over as a scalar
    bool host;             // lives in device_host_alloc memory
    int64_t touched;       // elements that one call moves, for timing; 0: all
} Tensor;

enum {
    RMS = 1,
    RESIDUAL = 2,
    IN_PLACE = 4,
    BIAS = 8,
    NO_POSITIONS = 16,
    LOGITS = 32,
    ADAM = 64,
    SGD = 128,
    FORWARD_ONLY = 256,
    TIMED = 512,  // too large for the reference: runs only with --time
};

typedef struct Row {
    const struct Kind *kind;
    int64_t n[6];  // shape, in the order of the kind's `shape`
    unsigned flags;
    Dtype other;       // second dtype (convert, add)
    double tolerance;  // 0: the kind's
} Row;

typedef struct Call {
    const Row *row;
    const Ops *ops;
    Stream *stream;
    Dtype dt;
    void *v[TENSORS], *d[TENSORS];
    bool accumulate;
} Call;

typedef struct Kind {
    const char *name, *shape;
    void (*tensors)(const Row *row, Dtype dt, Tensor t[TENSORS]);
    void (*forward)(const Call *c);
    void (*backward)(const Call *c);
    void (*reference_forward)(const Row *row, double **v);
    void (*reference_backward)(const Row *row, double **v, double **d);
    size_t (*scratch)(Device *device, Dtype dt, const Row *row);
    double (*flops)(const Row *row);  // of forward; timing is in GFLOP/s then, else in GB/s
    double backward_flops;            // times forward's
    unsigned backward_reads;          // bit t: backward reads tensor t's values (timing)
    // Largest |a-b| / (|b| + rms(b)) of fp32 results; roundings to a 16-bit dt that may add to it, besides that of the
    // result, which is always allowed.
    double tolerance, roundings_16;
    const char *why;
    bool flat;            // may run on a background stream
    bool threads_matter;  // bits may depend on the number of threads
} Kind;

// Bring what an operation works on in place to that place; not part of the operation, so timing leaves it out.
static void place(const Call *c, void *to, const void *from, int64_t elements, Dtype dtype) {
    if (!(c->row->flags & TIMED))
        stream_copy(c->stream, to, from, (size_t)elements * dtype_bytes(dtype));
}

// ---- embedding: B, T, C, V, positions, first position ----
enum { E_TOKENS, E_WTE, E_WPE, E_X };
static void embedding_tensors(const Row *r, Dtype dt, Tensor t[TENSORS]) {
    int64_t rows = r->n[0] * r->n[1], C = r->n[2], V = r->n[3];
    t[E_TOKENS] = (Tensor){"tokens", IN, TYPE_INT32, rows, 1, .high = (double)V};
    t[E_WTE] = (Tensor){"token table", ARG, dt, V, C, .sums = true, .touched = rows * C};
    if (!(r->flags & NO_POSITIONS))
        t[E_WPE] = (Tensor){"position table", ARG, dt, r->n[4], C, .sums = true, .touched = r->n[1] * C};
    t[E_X] = (Tensor){"x", OUT, dt, rows, C, .grad_type = dt};
}
static void embedding_forward_call(const Call *c) {
    const int64_t *n = c->row->n;
    c->ops->embedding_forward(c->stream, c->dt, c->v[E_X], c->v[E_WTE], c->v[E_WPE], c->v[E_TOKENS], n[0] * n[1],
                              (int)n[1], (int)n[5], n[2]);
}
static void embedding_backward_call(const Call *c) {
    const int64_t *n = c->row->n;
    c->ops->embedding_backward(c->stream, c->dt, c->d[E_WTE], c->d[E_WPE], c->d[E_X], c->v[E_TOKENS], n[0] * n[1],
                               (int)n[1], n[2], n[3], n[4], c->accumulate, c->accumulate);
}
static void embedding_forward_reference(const Row *r, double **v) {
    int64_t T = r->n[1], C = r->n[2];
    for (int64_t row = 0; row < r->n[0] * T; row++)
        for (int64_t i = 0; i < C; i++)
            v[E_X][row * C + i] =
                v[E_WTE][(int64_t)v[E_TOKENS][row] * C + i] + (v[E_WPE] ? v[E_WPE][(row % T + r->n[5]) * C + i] : 0);
}
static void embedding_backward_reference(const Row *r, double **v, double **d) {
    int64_t T = r->n[1], C = r->n[2];
    for (int64_t row = 0; row < r->n[0] * T; row++)
        for (int64_t i = 0; i < C; i++) {
            d[E_WTE][(int64_t)v[E_TOKENS][row] * C + i] += d[E_X][row * C + i];
            if (d[E_WPE])
                d[E_WPE][row % T * C + i] += d[E_X][row * C + i];
        }
}
static const Kind embedding = {"embedding",
                               "B T C V positions first",
                               embedding_tensors,
                               embedding_forward_call,
                               embedding_backward_call,
                               embedding_forward_reference,
                               embedding_backward_reference,
                               .tolerance = 1e-6,
                               .why = "sums of a few rows"};

// ---- norm: rows, C. RESIDUAL: the gradient that goes past the norm, as the gradient of a copy of x ----
enum { N_X, N_WEIGHT, N_BIAS, N_Y, N_MEAN, N_RSTD, N_SKIP };
static const float norm_eps = 1e-5f;
static void norm_tensors(const Row *r, Dtype dt, Tensor t[TENSORS]) {
    int64_t rows = r->n[0], C = r->n[1];
    t[N_X] = (Tensor){"x", ARG, dt, rows, C, .low = -1, .high = 1.5, .grad_type = dt};
    t[N_WEIGHT] = (Tensor){"weight", ARG, dt, 1, C, .low = 0.5, .high = 1.5, .sums = true};
    t[N_Y] = (Tensor){"y", OUT, dt, rows, C, .grad_type = dt};
    t[N_RSTD] = (Tensor){"rstd", SAVED, DTYPE_FP32, rows, 1};
    if (!(r->flags & RMS)) {
        t[N_BIAS] = (Tensor){"bias", ARG, dt, 1, C, .sums = true};
        t[N_MEAN] = (Tensor){"mean", SAVED, DTYPE_FP32, rows, 1};
    }
    if (r->flags & RESIDUAL)
        t[N_SKIP] = (Tensor){"residual", OUT, dt, rows, C, .grad_type = dt};
}
static void norm_forward_call(const Call *c) {
    int64_t rows = c->row->n[0], C = c->row->n[1];
    c->ops->norm_forward(c->stream, c->dt, c->row->flags & RMS ? NORM_RMS : NORM_LAYER, c->v[N_Y], c->v[N_MEAN],
                         c->v[N_RSTD], c->v[N_X], c->v[N_WEIGHT], c->v[N_BIAS], norm_eps, rows, C);
    if (c->v[N_SKIP])
        place(c, c->v[N_SKIP], c->v[N_X], rows * C, c->dt);
}
static void norm_backward_call(const Call *c) {
    int64_t rows = c->row->n[0], C = c->row->n[1];
    const void *residual = c->d[N_SKIP];
    if (c->row->flags & IN_PLACE) {
        place(c, c->d[N_X], residual, rows * C, c->dt);
        residual = c->d[N_X];
    }
    c->ops->norm_backward(c->stream, c->dt, c->row->flags & RMS ? NORM_RMS : NORM_LAYER, c->d[N_X], c->d[N_WEIGHT],
                          c->d[N_BIAS], c->d[N_Y], residual, c->v[N_X], c->v[N_MEAN], c->v[N_RSTD], c->v[N_WEIGHT],
                          rows, C, c->accumulate);
}
static void norm_forward_reference(const Row *r, double **v) {
    int64_t C = r->n[1];
    for (int64_t row = 0; row < r->n[0]; row++) {
        const double *x = v[N_X] + row * C;
        double mean = 0, square = 0;
        for (int64_t i = 0; i < C && v[N_MEAN]; i++)
            mean += x[i] / (double)C;
        for (int64_t i = 0; i < C; i++)
            square += (x[i] - mean) * (x[i] - mean) / (double)C;
        double rstd = 1 / sqrt(square + (double)norm_eps);
        for (int64_t i = 0; i < C; i++) {
            v[N_Y][row * C + i] = (x[i] - mean) * rstd * v[N_WEIGHT][i] + (v[N_BIAS] ? v[N_BIAS][i] : 0);
            if (v[N_SKIP])
                v[N_SKIP][row * C + i] = x[i];
        }
        v[N_RSTD][row] = rstd;
        if (v[N_MEAN])
            v[N_MEAN][row] = mean;
    }
}
static void norm_backward_reference(const Row *r, double **v, double **d) {
    int64_t C = r->n[1];
    for (int64_t row = 0; row < r->n[0]; row++) {
        const double *x = v[N_X] + row * C, *dy = d[N_Y] + row * C, mean = v[N_MEAN] ? v[N_MEAN][row] : 0,
                     rstd = v[N_RSTD][row];
        double avg = 0, dot = 0;
        for (int64_t i = 0; i < C; i++) {
            double xhat = (x[i] - mean) * rstd;
            avg += v[N_MEAN] ? dy[i] * v[N_WEIGHT][i] / (double)C : 0;
            dot += dy[i] * v[N_WEIGHT][i] * xhat / (double)C;
            d[N_WEIGHT][i] += dy[i] * xhat;
            if (d[N_BIAS])
                d[N_BIAS][i] += dy[i];
        }
        for (int64_t i = 0; i < C; i++)
            d[N_X][row * C + i] = rstd * (dy[i] * v[N_WEIGHT][i] - avg - (x[i] - mean) * rstd * dot) +
                                  (d[N_SKIP] ? d[N_SKIP][row * C + i] : 0);
    }
}
static size_t norm_scratch_bytes(Device *device, Dtype dt, const Row *r) {
    (void)dt;
    return device_ops(device)->norm_scratch(device, r->n[0], r->n[1]);
}
static const Kind norm = {"norm",
                          "rows C",
                          norm_tensors,
                          norm_forward_call,
                          norm_backward_call,
                          norm_forward_reference,
                          norm_backward_reference,
                          norm_scratch_bytes,
                          .backward_reads = 1 << N_X | 1 << N_WEIGHT | 1 << N_MEAN | 1 << N_RSTD,
                          .tolerance = 3e-6,
                          .why = "sums over a row, differences that cancel"};

// ---- rope: B, T, heads, kv_heads, head_dim, first position. Backward is the inverse turn ----
enum { R_QKV, R_TABLE, R_OUT };
static AttentionShape attention_shape(const Row *r) {
    return (AttentionShape){(int)r->n[0], (int)r->n[1], (int)r->n[2], (int)r->n[3], (int)r->n[4]};
}
static int64_t qkv_width(const Row *r) {
    return (r->n[2] + 2 * r->n[3]) * r->n[4];
}
static void rope_tensors(const Row *r, Dtype dt, Tensor t[TENSORS]) {
    int64_t rows = r->n[0] * r->n[1], touched = rows * (r->n[2] + r->n[3]) * r->n[4];
    t[R_QKV] = (Tensor){"qkv", ARG, dt, rows, qkv_width(r), .grad_type = dt, .touched = touched};
    t[R_TABLE] = (Tensor){"table", IN, DTYPE_FP32, r->n[1] + r->n[5], r->n[4]};
    t[R_OUT] = (Tensor){"turned", OUT, dt, rows, qkv_width(r), .grad_type = dt, .touched = touched};
}
static void rope_call(const Call *c, void *to, const void *from, bool inverse) {
    const Row *r = c->row;
    place(c, to, from, r->n[0] * r->n[1] * qkv_width(r), c->dt);
    c->ops->rope(c->stream, c->dt, to, (RopeTable){c->v[R_TABLE], (int)(r->n[1] + r->n[5])}, attention_shape(r),
                 (int)r->n[5], inverse);
}
static void rope_forward_call(const Call *c) {
    rope_call(c, c->v[R_OUT], c->v[R_QKV], false);
}
static void rope_backward_call(const Call *c) {
    rope_call(c, c->d[R_QKV], c->d[R_OUT], true);
}
static void rope_reference(const Row *r, double *to, const double *from, const double *table, double sign) {
    int64_t half = r->n[4] / 2, heads = r->n[2] + 2 * r->n[3];
    for (int64_t row = 0; row < r->n[0] * r->n[1]; row++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < half; i++) {
                const double *angle = table + (row % r->n[1] + r->n[5]) * r->n[4] + 2 * i;
                int64_t first = row * qkv_width(r) + h * r->n[4] + i, second = first + half;
                bool turns = h < r->n[2] + r->n[3];
                double c = turns ? angle[0] : 1, s = turns ? sign * angle[1] : 0;
                to[first] = from[first] * c - from[second] * s;
                to[second] = from[second] * c + from[first] * s;
            }
}
static void rope_forward_reference(const Row *r, double **v) {
    rope_reference(r, v[R_OUT], v[R_QKV], v[R_TABLE], 1);
}
static void rope_backward_reference(const Row *r, double **v, double **d) {
    rope_reference(r, d[R_QKV], d[R_OUT], v[R_TABLE], -1);
}
static const Kind rope = {"rope",
                          "B T heads kv_heads head_dim first",
                          rope_tensors,
                          rope_forward_call,
                          rope_backward_call,
                          rope_forward_reference,
                          rope_backward_reference,
                          .tolerance = 3e-7,
                          .why = "two products"};

// ---- gelu: rows, F. The bias, whose gradient comes along, is in x already: here it is too small to change anything ----
enum { A_X, A_Y, A_BIAS };
static void gelu_tensors(const Row *r, Dtype dt, Tensor t[TENSORS]) {
    t[A_X] = (Tensor){"x", ARG, dt, r->n[0], r->n[1], .low = -6, .high = 6, .grad_type = dt};
    t[A_Y] = (Tensor){"y", OUT, dt, r->n[0], r->n[1], .grad_type = dt};
    t[A_BIAS] = (Tensor){"bias", ARG, dt, 1, r->n[1], .high = 1e-30, .sums = true};
}
static void gelu_forward_call(const Call *c) {
    c->ops->gelu_forward(c->stream, c->dt, c->v[A_Y], c->v[A_X], c->row->n[0] * c->row->n[1]);
}
static void gelu_backward_call(const Call *c) {
    const int64_t *n = c->row->n;
    const void *dy = c->d[A_Y];
    if (c->row->flags & IN_PLACE) {
        place(c, c->d[A_X], dy, n[0] * n[1], c->dt);
        dy = c->d[A_X];
    }
    c->ops->gelu_backward(c->stream, c->dt, c->d[A_X], c->d[A_BIAS], dy, c->v[A_X], n[0], n[1], c->accumulate);
}
static const double gelu_scale = 0.79788456080286535588;  // √(2/π)
static void gelu_forward_reference(const Row *r, double **v) {
    for (int64_t i = 0; i < r->n[0] * r->n[1]; i++) {
        double x = v[A_X][i] + v[A_BIAS][i % r->n[1]];
        v[A_Y][i] = 0.5 * x * (1 + tanh(gelu_scale * (x + 0.044715 * x * x * x)));
    }
}
static void gelu_backward_reference(const Row *r, double **v, double **d) {
    for (int64_t i = 0; i < r->n[0] * r->n[1]; i++) {
        double x = v[A_X][i], t = tanh(gelu_scale * (x + 0.044715 * x * x * x));
        double slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * gelu_scale * (1 + 3 * 0.044715 * x * x);
        d[A_X][i] = d[A_Y][i] * slope;
        d[A_BIAS][i % r->n[1]] += d[A_X][i];
    }
}
static size_t gelu_scratch_bytes(Device *device, Dtype dt, const Row *r) {  // for column sums; a norm's needs more
    return norm_scratch_bytes(device, dt, r);
}
static const Kind gelu = {"gelu",
                          "rows F",
                          gelu_tensors,
                          gelu_forward_call,
                          gelu_backward_call,
                          gelu_forward_reference,
                          gelu_backward_reference,
                          gelu_scratch_bytes,
                          .backward_reads = 1 << A_X,
                          .tolerance = 2e-6,
                          .roundings_16 = 1,
                          .why = "an exponential of up to 2 ulp and its argument's rounding; sums of rounded gradients"};

// ---- swiglu: rows, F ----
static void swiglu_tensors(const Row *r, Dtype dt, Tensor t[TENSORS]) {
    t[A_X] = (Tensor){"gate, up", ARG, dt, r->n[0], 2 * r->n[1], .low = -4, .high = 4, .grad_type = dt};
    t[A_Y] = (Tensor){"y", OUT, dt, r->n[0], r->n[1], .grad_type = dt};
}
static void swiglu_forward_call(const Call *c) {
    c->ops->swiglu_forward(c->stream, c->dt, c->v[A_Y], c->v[A_X], c->row->n[0], c->row->n[1]);
}
static void swiglu_backward_call(const Call *c) {
    c->ops->swiglu_backward(c->stream, c->dt, c->d[A_X], c->d[A_Y], c->v[A_X], c->row->n[0], c->row->n[1]);
}
static void swiglu_forward_reference(const Row *r, double **v) {
    int64_t F = r->n[1];
    for (int64_t row = 0; row < r->n[0]; row++)
        for (int64_t i = 0; i < F; i++) {
            double gate = v[A_X][row * 2 * F + i], up = v[A_X][row * 2 * F + F + i];
            v[A_Y][row * F + i] = gate / (1 + exp(-gate)) * up;
        }
}
static void swiglu_backward_reference(const Row *r, double **v, double **d) {
    int64_t F = r->n[1];
    for (int64_t row = 0; row < r->n[0]; row++)
        for (int64_t i = 0; i < F; i++) {
            double gate = v[A_X][row * 2 * F + i], up = v[A_X][row * 2 * F + F + i], dy = d[A_Y][row * F + i];
            double s = 1 / (1 + exp(-gate));
            d[A_X][row * 2 * F + i] = dy * up * s * (1 + gate * (1 - s));
            d[A_X][row * 2 * F + F + i] = dy * gate * s;
        }
}
static const Kind swiglu = {"swiglu",
                            "rows F",
                            swiglu_tensors,
                            swiglu_forward_call,
                            swiglu_backward_call,
                            swiglu_forward_reference,
                            swiglu_backward_reference,
                            .backward_reads = 1 << A_X,
                            .tolerance = 2e-6,
                            .why = "an exponential of up to 2 ulp"};

// ---- cross-entropy: rows, V, ld, ld_d. IN_PLACE: the gradient over the logits ----
enum { C_LOGITS, C_TARGETS, C_LOSSES };
static const float loss_scale = 0.125f;
static int64_t loss_ld_d(const Row *r, Dtype dt) {
    return r->flags & IN_PLACE ? r->n[2] * 4 / (int64_t)dtype_bytes(dt) : r->n[3];
}
static void loss_tensors(const Row *r, Dtype dt, Tensor t[TENSORS]) {
    t[C_LOGITS] = (Tensor){"logits",      ARG,        DTYPE_FP32, r->n[0],         r->n[1],
                           .ld = r->n[2], .low = -10, .high = 10, .grad_type = dt, .grad_ld = loss_ld_d(r, dt)};
    t[C_TARGETS] =
        (Tensor){"targets", IN, TYPE_INT32, r->n[0], 1, .low = -1 - (double)(r->n[1] / 8), .high = (double)r->n[1]};
    t[C_LOSSES] = (Tensor){"losses", OUT, DTYPE_FP32, r->n[0], 1, .constant_grad = (double)loss_scale};
}
static void loss_forward_call(const Call *c) {
    const int64_t *n = c->row->n;
    c->ops->cross_entropy(c->stream, c->dt, c->v[C_LOSSES], NULL, 0, c->v[C_LOGITS], n[2], c->v[C_TARGETS], n[0], n[1],
                          0);
}
static void loss_backward_call(const Call *c) {
    const Row *r = c->row;
    const int64_t ld_d = loss_ld_d(r, c->dt);
    const bool in_place = r->flags & IN_PLACE;
    // In place: bring the logits to where the gradient shall be. A gradient of rows · ld_d elements is as large.
    if (in_place)
        place(c, c->d[C_LOGITS], c->v[C_LOGITS], r->n[0] * r->n[2], DTYPE_FP32);
    c->ops->cross_entropy(c->stream, c->dt, c->v[C_LOSSES], c->d[C_LOGITS], ld_d,
                          in_place ? c->d[C_LOGITS] : c->v[C_LOGITS], r->n[2], c->v[C_TARGETS], r->n[0], r->n[1],
                          loss_scale);
}
static double loss_normalizer(const double *x, int64_t V, double *max) {
    double sum = 0;
    *max = x[0];
    for (int64_t i = 0; i < V; i++)
        *max = x[i] > *max ? x[i] : *max;
    for (int64_t i = 0; i < V; i++)
        sum += exp(x[i] - *max);
    return sum;
}
static void loss_forward_reference(const Row *r, double **v) {
    int64_t V = r->n[1];
    for (int64_t row = 0; row < r->n[0]; row++) {
        double max, sum = loss_normalizer(v[C_LOGITS] + row * V, V, &max);
        int64_t target = (int64_t)v[C_TARGETS][row];
        v[C_LOSSES][row] = target < 0 ? 0 : log(sum) + max - v[C_LOGITS][row * V + target];
    }
}
static void loss_backward_reference(const Row *r, double **v, double **d) {
    int64_t V = r->n[1];
    for (int64_t row = 0; row < r->n[0]; row++) {
        double max, sum = loss_normalizer(v[C_LOGITS] + row * V, V, &max);
        int64_t target = (int64_t)v[C_TARGETS][row];
        for (int64_t i = 0; i < V; i++) {
            double softmax = exp(v[C_LOGITS][row * V + i] - max) / sum;
            d[C_LOGITS][row * V + i] = target < 0 ? 0 : (softmax - (i == target)) * d[C_LOSSES][row];
        }
    }
}
static const Kind cross_entropy = {"cross-entropy",
                                   "rows V ld ld_d",
                                   loss_tensors,
                                   loss_forward_call,
                                   loss_backward_call,
                                   loss_forward_reference,
                                   loss_backward_reference,
                                   .backward_reads = 1 << C_LOGITS,
                                   .tolerance = 2e-6,
                                   .why = "exponentials of rounded differences"};

// ---- flat: len. `other` is the dtype of the target ----
enum { F_FROM, F_TO };
static void convert_tensors(const Row *r, Dtype dt, Tensor t[TENSORS]) {
    t[F_FROM] = (Tensor){"from", IN, dt, 1, r->n[0]};
    t[F_TO] = (Tensor){"to", OUT, r->other, 1, r->n[0]};
}
static void convert_call(const Call *c) {
    c->ops->convert(c->stream, c->v[F_TO], c->row->other, c->v[F_FROM], c->dt, c->row->n[0]);
}
static void convert_reference(const Row *r, double **v) {
    memcpy(v[F_TO], v[F_FROM], (size_t)r->n[0] * sizeof(double));
}
static const Kind convert = {"convert",    "len",        convert_tensors,
                             convert_call, NULL,         convert_reference,
                             NULL,         .flat = true, .why = "exact but for the rounding"};

static void add_tensors(const Row *r, Dtype dt, Tensor t[TENSORS]) {
    t[F_FROM] = (Tensor){"from", IN, dt, 1, r->n[0]};
    t[F_TO] = (Tensor){"to", INOUT, r->other, 1, r->n[0]};
}
static void add_call(const Call *c) {
    c->ops->add(c->stream, c->v[F_TO], c->row->other, c->v[F_FROM], c->dt, c->row->n[0]);
}
static void add_reference(const Row *r, double **v) {
    for (int64_t i = 0; i < r->n[0]; i++)
        v[F_TO][i] += v[F_FROM][i];
}
static const Kind add = {"add",         "len", add_tensors,  add_call,          NULL,
                         add_reference, NULL,  .flat = true, .tolerance = 1e-7, .why = "one sum"};

static void sum_tensors(const Row *r, Dtype dt, Tensor t[TENSORS]) {
    (void)dt;
    t[F_FROM] = (Tensor){"values", IN, DTYPE_FP32, 1, r->n[0]};
    t[F_TO] = (Tensor){"sum", OUT, TYPE_DOUBLE, 1, 1, .host = true};
}
static void sum_call(const Call *c) {
    c->ops->sum_to_host(c->stream, c->v[F_TO], c->v[F_FROM], c->row->n[0]);
}
static void sum_reference(const Row *r, double **v) {
    v[F_TO][0] = 0;
    for (int64_t i = 0; i < r->n[0]; i++)
        v[F_TO][0] += v[F_FROM][i];
}
static const Kind total = {
    "sum",         "len", sum_tensors,  sum_call,           NULL,
    sum_reference, NULL,  .flat = true, .tolerance = 1e-12, .why = "a sum in double, values that cancel"};

static const float sumsq_divisor = 3.0f;
static void sumsq_tensors(const Row *r, Dtype dt, Tensor t[TENSORS]) {
    t[F_FROM] = (Tensor){"values", IN, dt, 1, r->n[0]};
    t[F_TO] = (Tensor){"tile sums", OUT, DTYPE_FP32, 1, (r->n[0] + SUMSQ_TILE - 1) / SUMSQ_TILE, .host = true};
}
static void sumsq_call(const Call *c) {
    c->ops->sumsq_to_host(c->stream, c->v[F_TO], c->v[F_FROM], c->dt, sumsq_divisor, c->row->n[0]);
}
static void sumsq_reference(const Row *r, double **v) {
    for (int64_t i = 0; i < r->n[0]; i++) {
        double x = v[F_FROM][i] / (double)sumsq_divisor, *tile = &v[F_TO][i / SUMSQ_TILE];
        *tile = (i % SUMSQ_TILE ? *tile : 0) + x * x;
    }
}
static const Kind sumsq = {"sum of squares", "len", sumsq_tensors, sumsq_call,        NULL,
                           sumsq_reference,  NULL,  .flat = true,  .tolerance = 1e-6, .why = "a tree of 4,096 squares"};

// ---- optimizer: len. The gradient is in dt; the rounded copy of the parameters exists in 16-bit runs ----
enum { O_MASTER, O_M, O_V, O_GRAD, O_PARAM };
static void adamw_tensors(const Row *r, Dtype dt, Tensor t[TENSORS]) {
    t[O_MASTER] = (Tensor){"master", INOUT, DTYPE_FP32, 1, r->n[0]};
    t[O_M] = (Tensor){"m", INOUT, DTYPE_FP32, 1, r->n[0], .low = -0.1, .high = 0.1};
    if (!(r->flags & SGD))
        t[O_V] = (Tensor){"v", INOUT, DTYPE_FP32, 1, r->n[0], .low = 1e-4, .high = 0.1};
    t[O_GRAD] = (Tensor){"grad", IN, r->other, 1, r->n[0], .low = -100, .high = 100};
    if (dt != DTYPE_FP32)
        t[O_PARAM] = (Tensor){"param", OUT, dt, 1, r->n[0]};
}
static AdamwArgs adamw_args(const Row *r) {  // Adam's t = 3; ranges with and without decay that meet anywhere
    int64_t len = r->n[0];
    return (AdamwArgs){.len = len,
                       .grad_divisor = 1024.0f,
                       .grad_factor = 0.75f,
                       .lr = 1e-2f,
                       .beta1 = 0.9f,
                       .beta2 = 0.95f,
                       .eps = 1e-8f,
                       .weight_decay = 0.1f,
                       .momentum = 0.9f,
                       .bias_correction1 = (float)(1 - pow((double)0.9f, 3)),
                       .bias_correction2 = (float)(1 - pow((double)0.95f, 3)),
                       .kind = r->flags & SGD    ? OPT_SGD
                               : r->flags & ADAM ? OPT_ADAM
                                                 : OPT_ADAMW,
                       .n_ranges = 3,
                       .range_end = {len / 3, len / 2, len},
                       .range_decay = {true, false, true}};
}
static void adamw_call(const Call *c) {
    AdamwArgs a = adamw_args(c->row);
    a.master = c->v[O_MASTER];
    a.m = c->v[O_M];
    a.v = c->v[O_V];
    a.grad = c->v[O_GRAD];
    a.grad_dtype = c->row->other;
    a.param = c->v[O_PARAM];
    a.param_dtype = c->dt;
    c->ops->adamw(c->stream, &a);
}
static void adamw_reference(const Row *r, double **v) {  // as torch.optim's pages write the three algorithms
    AdamwArgs a = adamw_args(r);
    for (int64_t i = 0; i < a.len; i++) {
        bool decays = a.range_decay[(i >= a.range_end[0]) + (i >= a.range_end[1])];
        double g = v[O_GRAD][i] / (double)a.grad_divisor * (double)a.grad_factor, *w = &v[O_MASTER][i], *m = &v[O_M][i];
        double lr = (double)a.lr, decay = decays ? (double)a.weight_decay : 0, b1 = (double)a.beta1,
               b2 = (double)a.beta2;
        if (a.kind != OPT_ADAMW)
            g += decay * *w;
        else
            *w -= lr * decay * *w;
        if (a.kind == OPT_SGD) {
            *m = (double)a.momentum * *m + g;
            *w -= lr * *m;
        } else {
            *m = b1 * *m + (1 - b1) * g;
            v[O_V][i] = b2 * v[O_V][i] + (1 - b2) * g * g;
            *w -=
                lr * (*m / (double)a.bias_correction1) / (sqrt(v[O_V][i] / (double)a.bias_correction2) + (double)a.eps);
        }
        if (v[O_PARAM])
            v[O_PARAM][i] = *w;
    }
}
static const Kind adamw = {"adamw",         "len", adamw_tensors, adamw_call,        NULL,
                           adamw_reference, NULL,  .flat = true,  .tolerance = 5e-7, .why = "about ten roundings"};

#endif
