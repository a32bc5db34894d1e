#include "zero/traffic.h"

#include <stdlib.h>

enum { STEADY_STEPS = 2 };  // after which each step is like the one before

typedef struct Walk {
    const TrafficInput *in;
    int head;             // unit L+1
    int in_slot[N_SLOTS]; // stage 3: the unit that a parameter slot holds; -1: none
    double in_slot_at[N_SLOTS];
    double slot_read[N_SLOTS];  // when the reduction has read the gradient slot
    double *published;    // (n_units) stages 1, 2: when the unit's parameters are here
    double compute, gather, reduce, link;  // when each is free
    double compute_s, comm_s;
    int64_t bytes[COMM_COLLECTIVES];
} Walk;

static double later(double a, double b) {
    return a > b ? a : b;
}

static bool needs_tied(const Walk *w, int u) {
    return w->in->layout->tied && u == w->head;
}

// Send on a stream what is ready now. Returns when it has arrived.
static double travel(Walk *w, double *stream, Collective collective, int64_t bytes) {
    double seconds = w->in->bytes_per_s > 0 ? (double)bytes / w->in->bytes_per_s : 0;
    *stream = w->link = later(later(*stream, w->compute), w->link) + seconds;
    w->bytes[collective] += bytes;
    w->comm_s += seconds;
    if (!w->in->overlap)
        w->compute = *stream;
    return *stream;
}

static double all_gather(Walk *w, double *stream, int u, Dtype dtype) {
    return travel(w, stream, COMM_ALL_GATHER,
                  comm_all_gather_bytes(w->in->shape, w->in->layout->units[u].shard_len, dtype));
}

// ---- parameters: as zero/params.c ----

static void fetch(Walk *w, int u) {
    int slot = layout_slot(w->in->layout, u);
    if (w->in_slot[slot] == u)
        return;
    w->in_slot[slot] = u;
    w->in_slot_at[slot] = all_gather(w, &w->gather, u, w->in->zero.dtype);
}

static void acquire(Walk *w, int u, int ahead) {
    const Layout *layout = w->in->layout;
    bool tied = needs_tied(w, u);
    if (w->in->zero.stage == 3) {
        fetch(w, u);
        if (tied)
            fetch(w, 0);
        if (ahead > 0 && ahead < layout->n_units)
            fetch(w, ahead);
        w->compute = later(w->compute, w->in_slot_at[layout_slot(layout, u)]);
        if (tied)
            w->compute = later(w->compute, w->in_slot_at[layout_slot(layout, 0)]);
    } else {
        w->compute = later(w->compute, w->published[u]);
        if (tied)
            w->compute = later(w->compute, w->published[0]);
    }
}

static void publish(Walk *w, int u) {
    if (w->in->zero.stage == 3)
        w->in_slot[layout_slot(w->in->layout, u)] = -1;
    else if (w->in->zero.stage > 0)
        w->published[u] = all_gather(w, &w->gather, u, w->in->zero.dtype);
}

// ---- gradients: as zero/grads.c ----

static bool uses_slots(const Walk *w) {
    return w->in->zero.stage >= 2 || w->in->zero.grad_dtype != DTYPE_FP32;
}

static void wait_for_gradient_slot(Walk *w, int u) {
    if (uses_slots(w))
        w->compute = later(w->compute, w->slot_read[layout_slot(w->in->layout, u)]);
}

static void reduce(Walk *w, int u, bool last) {
    const TrafficInput *in = w->in;
    int64_t len = in->layout->units[u].shard_len;
    if (!last && in->zero.stage < 2)
        return;
    travel(w, &w->reduce, COMM_REDUCE_SCATTER, comm_reduce_scatter_bytes(in->shape, len, in->zero.reduce_dtype));
    travel(w, &w->reduce, COMM_ALL_REDUCE, comm_all_reduce_bytes(in->shape, len));
    if (in->zero.stage == 0)
        all_gather(w, &w->reduce, u, in->zero.grad_dtype);
    w->slot_read[layout_slot(in->layout, u)] = w->reduce;
}

// ---- the step: as train_gpt.c ----

static void compute(Walk *w, double seconds) {
    w->compute += seconds;
    w->compute_s += seconds;
}

static void forward_backward(Walk *w, bool last) {
    for (int u = 0; u < w->head; u++) {
        acquire(w, u, u + 1);
        compute(w, u > 0 ? w->in->block_forward_s : 0);
    }
    acquire(w, w->head, w->head - 1);
    wait_for_gradient_slot(w, w->head);
    if (needs_tied(w, w->head))
        wait_for_gradient_slot(w, 0);
    compute(w, w->in->loss_s);
    reduce(w, w->head, last);
    for (int u = w->head - 1; u >= 0; u--) {
        if (u > 0)
            acquire(w, u, u - 1);
        wait_for_gradient_slot(w, u);
        compute(w, u > 0 ? w->in->block_backward_s : 0);
        reduce(w, u, last);
    }
}

static void step(Walk *w) {
    for (int micro = 0; micro < w->in->grad_accum; micro++)
        forward_backward(w, micro == w->in->grad_accum - 1);
    w->compute = later(w->compute, w->reduce);  // the norm needs all gradients
    for (int u = 0; u <= w->head; u++)
        publish(w, u);
}

Status traffic_predict(const TrafficInput *in, Traffic *traffic) {
    Walk w = {.in = in, .head = in->layout->n_units - 1};
    w.published = calloc((size_t)in->layout->n_units, sizeof *w.published);
    if (!w.published)
        return fail("out of host memory");
    for (int slot = 0; slot < N_SLOTS; slot++)
        w.in_slot[slot] = -1;
    Walk before = w;
    for (int i = 0; i <= STEADY_STEPS; i++) {
        before = w;
        step(&w);
    }
    *traffic = (Traffic){.compute_s = w.compute_s - before.compute_s,
                         .comm_s = w.comm_s - before.comm_s,
                         .step_s = w.compute - before.compute};
    for (int c = 0; c < COMM_COLLECTIVES; c++) {
        traffic->bytes[c] = w.bytes[c] - before.bytes[c];
        traffic->total_bytes += traffic->bytes[c];
    }
    free(w.published);
    return OK;
}

double traffic_textbook(const TrafficInput *in) {
    int stage = in->zero.stage, accum = in->grad_accum;
    double n = in->shape.n_ranks, s = in->shape.shard_group;
    double param = (double)dtype_bytes(in->zero.dtype), wire = (double)dtype_bytes(in->zero.reduce_dtype);
    double reductions = stage >= 2 ? accum : 1, gathers = stage == 3 ? 2 * accum : 1;
    double gathered = stage == 0 ? (double)dtype_bytes(in->zero.grad_dtype) : param;
    return (double)in->layout->n_params * (reductions * wire * (n - 1) / n + gathers * gathered * (s - 1) / s);
}
