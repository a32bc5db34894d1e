#include "zero/traffic.h"

#include <stdlib.h>

#include "zero/nvme_file.h"
#include "zero/offload_params.h"
#include "zero/offload_state.h"

enum { STEADY_STEPS = 2 };  // after which each step is like the one before

typedef struct Walk {
    const TrafficInput *in;
    int head;             // unit L+1
    int in_slot[N_SLOTS]; // stage 3: the unit that a parameter slot holds; -1: none
    double in_slot_at[N_SLOTS];
    double slot_read[N_SLOTS];  // when the reduction has read the gradient slot
    double *published;    // (n_units) stages 1, 2: when the unit's parameters are here
    int staged[OFFLOAD_STAGINGS], next_staging;  // offloaded parameters: the units whose shards are on the device
    double compute, gather, reduce, link;  // when each is free
    double fetch, down;                    // the same: offload's streams
    OffloadStats offload;
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

// ---- what is offloaded: as zero/offload_params.c and zero/grads.c ----

static double seconds(double amount, double per_s) {
    return per_s > 0 ? amount / per_s : 0;
}

static bool offloads_optimizer(const Walk *w) {
    return w->in->offload.optimizer != OFFLOAD_NONE;
}

static int64_t shard_bytes(const Walk *w, int u, Dtype dtype) {
    return w->in->layout->units[u].shard_len * (int64_t)dtype_bytes(dtype);
}

static void fetch_shard(Walk *w, int u) {
    const TrafficInput *in = w->in;
    if (in->offload.params == OFFLOAD_NONE)
        return;
    for (int i = 0; i < OFFLOAD_STAGINGS; i++)
        if (w->staged[i] == u)
            return;
    w->staged[w->next_staging] = u;
    w->next_staging = (w->next_staging + 1) % OFFLOAD_STAGINGS;
    int64_t bytes = shard_bytes(w, u, in->zero.dtype), read = (bytes + NVME_ALIGN - 1) / NVME_ALIGN * NVME_ALIGN;
    double s = seconds((double)bytes, in->copy_bytes_per_s);
    w->offload.bytes_up += bytes;
    if (in->offload.params == OFFLOAD_NVME) {
        w->offload.bytes_read += read;
        s += seconds((double)read, in->nvme_bytes_per_s);
    }
    w->fetch = later(w->fetch, w->compute) + s;
    if (!in->overlap)
        w->compute = w->fetch;
}

static void fetch_ahead(Walk *w, int ahead) {
    if (w->in->zero.stage == 3 && ahead > 0 && ahead < w->in->layout->n_units &&
        w->in_slot[layout_slot(w->in->layout, ahead)] != ahead)
        fetch_shard(w, ahead);
}

static void gradient_down(Walk *w, int u, bool first, bool last) {
    const TrafficInput *in = w->in;
    if (!offloads_optimizer(w) || (in->zero.stage < 2 && !last))
        return;
    int64_t bytes = shard_bytes(w, u, in->zero.grad_dtype);
    w->offload.bytes_up += in->zero.stage >= 2 && !first ? bytes : 0;
    w->offload.bytes_down += bytes;
    w->down = later(w->down, w->reduce) + seconds((double)bytes, in->copy_bytes_per_s);
}

// The walk over a unit's tiles: copies, requests and arithmetic go on at the same time.
static void update_unit(Walk *w, int u) {
    const TrafficInput *in = w->in;
    if (!offloads_optimizer(w))
        return;
    int64_t params = shard_bytes(w, u, in->zero.dtype), requests = 0, len = in->layout->units[u].shard_len;
    if (in->offload.optimizer == OFFLOAD_NVME) {
        int64_t bytes = offload_state_unit_bytes(in->layout, &in->offload, u);
        w->offload.bytes_read += bytes;
        w->offload.bytes_written += bytes;
        requests += 2 * bytes;
    }
    if (in->offload.params == OFFLOAD_NVME) {
        int64_t bytes = (params + NVME_ALIGN - 1) / NVME_ALIGN * NVME_ALIGN;
        w->offload.bytes_written += bytes;
        requests += bytes;
    }
    if (in->offload.params == OFFLOAD_NONE)
        w->offload.bytes_up += params;
    double s = seconds((double)len, in->update_len_per_s);
    s = later(s, seconds((double)requests, in->nvme_bytes_per_s));
    if (in->offload.params == OFFLOAD_NONE)
        s = later(s, seconds((double)params, in->copy_bytes_per_s));
    w->compute += s;
    for (int i = 0; i < OFFLOAD_STAGINGS; i++)
        if (w->staged[i] == u)
            w->staged[i] = -1;
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
    fetch_shard(w, u);
    w->gather = later(w->gather, w->fetch);
    w->in_slot_at[slot] = all_gather(w, &w->gather, u, w->in->zero.dtype);
}

static void acquire(Walk *w, int u, int way) {
    int ahead = u + way;
    const Layout *layout = w->in->layout;
    bool tied = needs_tied(w, u);
    if (w->in->zero.stage == 3) {
        fetch(w, u);
        if (tied)
            fetch(w, 0);
        if (ahead > 0 && ahead < layout->n_units)
            fetch(w, ahead);
        fetch_ahead(w, u + 2 * way);
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

static void forward_backward(Walk *w, bool first, bool last) {
    for (int u = 0; u < w->head; u++) {
        acquire(w, u, 1);
        compute(w, u > 0 ? w->in->block_forward_s : 0);
    }
    acquire(w, w->head, -1);
    wait_for_gradient_slot(w, w->head);
    if (needs_tied(w, w->head))
        wait_for_gradient_slot(w, 0);
    compute(w, w->in->loss_s);
    reduce(w, w->head, last);
    gradient_down(w, w->head, first, last);
    for (int u = w->head - 1; u >= 0; u--) {
        if (u > 0)
            acquire(w, u, -1);
        wait_for_gradient_slot(w, u);
        compute(w, u > 0 ? w->in->block_backward_s : 0);
        reduce(w, u, last);
        gradient_down(w, u, first, last);
    }
}

static void step(Walk *w) {
    for (int micro = 0; micro < w->in->grad_accum; micro++)
        forward_backward(w, micro == 0, micro == w->in->grad_accum - 1);
    w->compute = later(later(w->compute, w->reduce), w->down);  // the norm needs all gradients
    for (int u = 0; u <= w->head; u++) {
        update_unit(w, u);
        publish(w, u);
    }
    int64_t inputs = (int64_t)(w->head - 2) * w->in->grad_accum * w->in->input_bytes;  // of all blocks but the last
    w->offload.bytes_down += inputs;
    w->offload.bytes_up += inputs;
}

Status traffic_predict(const TrafficInput *in, Traffic *traffic) {
    Walk w = {.in = in, .head = in->layout->n_units - 1};
    w.published = calloc((size_t)in->layout->n_units, sizeof *w.published);
    if (!w.published)
        return fail("out of host memory");
    for (int slot = 0; slot < N_SLOTS; slot++)
        w.in_slot[slot] = -1;
    for (int i = 0; i < OFFLOAD_STAGINGS; i++)
        w.staged[i] = -1;
    Walk before = w;
    for (int i = 0; i <= STEADY_STEPS; i++) {
        before = w;
        step(&w);
    }
    *traffic = (Traffic){.compute_s = w.compute_s - before.compute_s,
                         .comm_s = w.comm_s - before.comm_s,
                         .step_s = w.compute - before.compute};
    traffic->offload = (OffloadStats){.bytes_down = w.offload.bytes_down - before.offload.bytes_down,
                                      .bytes_up = w.offload.bytes_up - before.offload.bytes_up,
                                      .bytes_read = w.offload.bytes_read - before.offload.bytes_read,
                                      .bytes_written = w.offload.bytes_written - before.offload.bytes_written};
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
