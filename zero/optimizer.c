#include "zero/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "llm/hooks.h"
#include "llm/host_ops.h"
#include "zero/trace.h"

enum { INIT_PIECE_LEN = 1 << 20 };  // elements made on the host at a time

struct OptimizerState {
    Device *device;
    const Layout *layout;
    Comm *comm;
    Stream *compute;
    Params *params;
    Grads *grads;
    OptimizerConfig config;
    ZeroOptions options;
    float *state[STATE_KINDS];  // stage 0: every unit; else the own shard of every unit. master is NULL in fp32 runs
    OffloadState *offloaded;    // instead of `state`; NULL: nothing is offloaded
    Offload *offload;
    float *tile_sums;           // host: squares of gradients by tile
    double *sums;               // host: what ranks add up: a sum of squares a cut, then the loss
    AdamwArgs *pieces;          // per unit: the elements that this rank updates, and what this step does to them
};

static bool has_master(const Optim *o) {
    return o->options.dtype != DTYPE_FP32;
}

static int64_t state_len(const Optim *o) {
    return o->options.stage == 0 ? o->layout->full_len : o->layout->shard_len;
}

// The elements of a unit that this rank updates: [begin, begin + len) in the unit.
static void piece_of(const Optim *o, int u, int64_t *begin, int64_t *len) {
    const UnitLayout *unit = &o->layout->units[u];
    *begin = o->options.stage == 0 ? 0 : o->layout->shard * unit->shard_len;
    *len = o->options.stage == 0 ? unit->full_len : unit->shard_len;
}

static int64_t state_offset(const Optim *o, int u) {
    return o->options.stage == 0 ? o->layout->units[u].full_offset : o->layout->units[u].shard_offset;
}

// Where element 0 of this rank's piece of unit u is, in the parameters' dtype.
static void *param_piece(const Optim *o, int u) {
    void *shard = params_shard(o->params, u);
    if (o->options.stage > 0)
        return shard;
    return (char *)shard - (size_t)(o->layout->shard * o->layout->units[u].shard_len) * dtype_bytes(o->options.dtype);
}

static float *state_piece(const Optim *o, StateKind kind, int u) {
    if (kind == STATE_MASTER && !has_master(o))
        return param_piece(o, u);
    return o->state[kind] ? o->state[kind] + state_offset(o, u) : NULL;
}

bool optimizer_has(const Optim *o, StateKind kind) {
    return kind != STATE_V || o->config.kind != OPTIMIZER_SGD;
}

OffloadState *optimizer_offloaded(Optim *o) {
    return o->offloaded;
}

float *optimizer_state(Optim *o, StateKind kind, int u) {
    if (o->offloaded)
        return NULL;
    float *piece = state_piece(o, kind, u);
    if (kind == STATE_MASTER && !has_master(o))
        params_wait_published(o->params, u);
    if (piece && o->options.stage == 0)
        piece += o->layout->shard * o->layout->units[u].shard_len;
    return piece;
}

// Weight decay: runs of elements that have it or not. Gaps and padding are zero and stay zero either way.
static void add_range(void *context, const TensorSpec *tensor, int64_t in_tensor, int64_t in_range, int64_t count) {
    (void)in_tensor;
    AdamwArgs *a = context;
    if (a->n_ranges > 0 && a->range_decay[a->n_ranges - 1] == tensor->decay) {
        a->range_end[a->n_ranges - 1] = in_range + count;
    } else {
        if (a->n_ranges > 0)
            a->range_end[a->n_ranges - 1] = in_range;  // the gap goes with the tensor before it
        a->range_decay[a->n_ranges] = tensor->decay;
        a->range_end[a->n_ranges++] = in_range + count;
    }
}

static void make_piece(const Optim *o, int u, AdamwArgs *a) {
    static const int kinds[] = {[OPTIMIZER_ADAMW] = OPT_ADAMW, [OPTIMIZER_ADAM] = OPT_ADAM, [OPTIMIZER_SGD] = OPT_SGD};
    int64_t begin;
    piece_of(o, u, &begin, &a->len);
    layout_visit(&o->layout->units[u], begin, a->len, add_range, a);
    if (a->n_ranges == 0)
        a->n_ranges = 1;
    a->range_end[a->n_ranges - 1] = a->len;
    a->kind = kinds[o->config.kind];
    a->beta1 = (float)o->config.beta1;
    a->beta2 = (float)o->config.beta2;
    a->eps = (float)o->config.eps;
    a->momentum = (float)o->config.momentum;
    a->weight_decay = (float)o->config.weight_decay;
    a->param_dtype = o->options.dtype;
    a->grad_dtype = grads_dtype(o->grads);
}

static Status open_state(Optim *o) {
    if (offload_optimizer(o->offload))
        return offload_state_open(o->offload, o->layout, &o->offloaded);
    size_t bytes = (size_t)state_len(o) * sizeof(float);
    if (has_master(o))
        TRY(device_alloc(o->device, MEM_OPTIMIZER, "master weights", bytes, (void **)&o->state[STATE_MASTER]));
    TRY(device_alloc(o->device, MEM_OPTIMIZER, "first moment", bytes, (void **)&o->state[STATE_M]));
    if (o->config.kind != OPTIMIZER_SGD)
        TRY(device_alloc(o->device, MEM_OPTIMIZER, "second moment", bytes, (void **)&o->state[STATE_V]));
    return OK;
}

Status optimizer_open(Device *device, const Layout *layout, Comm *comm, Stream *compute, Params *params, Grads *grads,
                      OptimizerConfig config, ZeroOptions options, Offload *offload, Optim **optimizer) {
    *optimizer = NULL;
    Optim *o = calloc(1, sizeof *o);
    if (!o)
        return fail("out of host memory");
    *o = (Optim){.device = device, .layout = layout, .comm = comm, .compute = compute, .params = params, .grads = grads,
                 .config = config, .options = options, .offload = offload};
    Status status = OK;
    TRY_GOTO(open_state(o), failed);

    size_t tiles = 0;
    for (int u = 0; u < layout->n_units; u++)
        tiles += (size_t)((layout->units[u].cut_len + SUMSQ_TILE - 1) / SUMSQ_TILE);
    tiles *= (size_t)(options.stage == 0 ? layout->n_ranks : layout->n_ranks / layout->group);
    TRY_GOTO(device_host_alloc(device, "sums of squares", tiles * sizeof(float), (void **)&o->tile_sums), failed);
    o->sums = calloc((size_t)layout->n_ranks + 1, sizeof *o->sums);
    o->pieces = calloc((size_t)layout->n_units, sizeof *o->pieces);
    if (!o->sums || !o->pieces) {
        status = fail("out of host memory");
        goto failed;
    }
    for (int u = 0; u < layout->n_units; u++)
        make_piece(o, u, &o->pieces[u]);
    *optimizer = o;
    return OK;
failed:
    optimizer_close(o);
    return status;
}

void optimizer_close(Optim *o) {
    if (!o)
        return;
    for (int k = 0; k < STATE_KINDS; k++)
        device_free(o->device, o->state[k]);
    offload_state_close(o->offloaded);
    device_host_free(o->device, o->tile_sums);
    free(o->sums);
    free(o->pieces);
    free(o);
}

// What an update does to a tile, from what it does to its unit.
static AdamwArgs tile_args(const Optim *o, const AdamwArgs *unit, const StateTile *tile) {
    AdamwArgs a = *unit;
    a.len = tile->len;
    a.n_ranges = 0;
    for (int i = 0; i < unit->n_ranges && (a.n_ranges == 0 || a.range_end[a.n_ranges - 1] < tile->len); i++) {
        int64_t end = unit->range_end[i] - tile->begin;
        if (end <= 0)
            continue;
        a.range_decay[a.n_ranges] = unit->range_decay[i];
        a.range_end[a.n_ranges++] = end < tile->len ? end : tile->len;
    }
    a.master = tile->state[STATE_MASTER];
    a.m = tile->state[STATE_M];
    a.v = tile->state[STATE_V];
    a.grad = (const char *)grads_shard(o->grads, tile->u, o->layout->shard) +
             (size_t)tile->begin * dtype_bytes(a.grad_dtype);
    return a;
}

// The offloaded update, tile by tile. step (n_units): per unit what its elements have in common; NULL: the state stays as it
// is, and only the parameters are refreshed. Each unit is handed to the other ranks as soon as its shard is updated.
static Status walk_tiles(Optim *o, const AdamwArgs *step) {
    int threads = device_host_threads(o->device);
    double start = comm_clock();
    StateTile tile;
    TRY(offload_state_begin(o->offloaded));
    for (;;) {
        TRY(offload_state_next(o->offloaded, &tile));
        if (tile.len == 0)
            break;
        trace_begin(o->compute, "update unit", tile.u);
        void *room;
        TRY(params_room(o->params, tile.u, tile.begin, &room));
        if (step) {
            AdamwArgs a = tile_args(o, &step[tile.u], &tile);
            a.param = room;
            host_adamw(&a, threads);
        } else {
            host_convert(room, o->options.dtype, tile.state[STATE_MASTER], DTYPE_FP32, tile.len, threads);
        }
        TRY(params_put(o->params, tile.u, tile.begin, tile.len));
        TRY(offload_state_release(o->offloaded, &tile, step != NULL));
        trace_end(o->compute);
        if (tile.begin + tile.len == o->layout->units[tile.u].shard_len)
            params_publish(o->params, tile.u);
    }
    TRY(offload_state_end(o->offloaded));
    TRY(params_flush(o->params));
    o->offload->stats.update_s += comm_clock() - start;
    return OK;
}

// Round the master weights of every unit to the parameters' dtype and hand them to the other ranks.
static Status publish_all(Optim *o) {
    if (o->offloaded)
        return walk_tiles(o, NULL);
    for (int u = 0; u < o->layout->n_units; u++) {
        if (has_master(o))
            device_ops(o->device)->convert(o->compute, param_piece(o, u), o->options.dtype, state_piece(o, STATE_MASTER, u),
                                           DTYPE_FP32, o->pieces[u].len);
        params_publish(o->params, u);
    }
    return OK;
}

Status optimizer_init(Optim *o, uint64_t seed) {
    float *values;
    TRY(device_host_alloc(o->device, "initial values", INIT_PIECE_LEN * sizeof *values, (void **)&values));
    Status status = OK;
    for (int u = 0; u < o->layout->n_units; u++) {
        const UnitSpec *spec = &o->layout->units[u].spec;
        int64_t begin, len;
        piece_of(o, u, &begin, &len);
        if (begin + len > spec->len)  // what follows is padding, and zero
            len = spec->len > begin ? spec->len - begin : 0;
        for (int64_t i = 0; i < len; i += INIT_PIECE_LEN) {
            int64_t n = len - i < INIT_PIECE_LEN ? len - i : INIT_PIECE_LEN;
            model_init(spec, seed, begin + i, n, values);
            if (o->offloaded) {
                TRY_GOTO(offload_state_write(o->offloaded, STATE_MASTER, u, i, n, values), done);
                continue;
            }
            stream_copy(o->compute, state_piece(o, STATE_MASTER, u) + i, values, (size_t)n * sizeof *values);
            TRY_GOTO(stream_sync(o->compute), done);
        }
    }
    TRY_GOTO(publish_all(o), done);
    status = stream_sync(o->compute);
done:
    device_host_free(o->device, values);
    return status;
}

// Tests: have all ranks issued the same collectives since the last call, and do they have the same two numbers?
static Status check_agreement(Optim *o, const char *what, double a, double b) {
    char text[64];
    if (!HOOKS)
        return OK;
    snprintf(text, sizeof text, "%a, %a", a, b);
    TRY(comm_check_order(o->comm));
    return comm_agree(o->comm, what, text);
}

Status optimizer_measure(Optim *o, const double *loss_sums, int n_micro, double n_valid, double loss_scale,
                         StepResult *result) {
    const Ops *ops = device_ops(o->device);
    const Layout *l = o->layout;
    // The cuts that this rank holds the gradient of: those of its shard, in stage 0 all.
    bool all = o->options.stage == 0;
    int cuts = l->n_ranks, in_shard = cuts / l->group;
    int first = all ? 0 : l->shard * in_shard, end = all ? cuts : first + in_shard;

    for (int u = 0; u < l->n_units; u++)
        grads_wait(o->grads, u);
    trace_begin(o->compute, "norm", -1);
    if (o->offloaded) {
        TRY(offload_check(o->offload));
        TRY(stream_sync(o->compute));
    }
    float *sums = o->tile_sums;
    for (int c = first; c < end; c++) {
        for (int u = 0; u < l->n_units; u++) {
            int64_t len = l->units[u].cut_len;
            Dtype dtype = grads_dtype(o->grads);
            const char *shard = grads_shard(o->grads, u, c / in_shard);
            const void *cut = shard + (size_t)(c % in_shard * len) * dtype_bytes(dtype);
            if (o->offloaded)
                host_sumsq(sums, cut, dtype, (float)loss_scale, len, device_host_threads(o->device));
            else
                ops->sumsq_to_host(o->compute, sums, cut, dtype, (float)loss_scale, len);
            sums += (len + SUMSQ_TILE - 1) / SUMSQ_TILE;
        }
    }
    TRY(stream_sync(o->compute));  // the step's one host read

    for (int c = 0; c <= cuts; c++)
        o->sums[c] = 0;
    int64_t tiles = (sums - o->tile_sums) / (end - first);
    // Every cut is counted once: stage 0 has them all on every rank, hybrid sharding has one set a group.
    bool counts = all ? l->rank == 0 : l->rank < l->group;
    for (int c = first; c < end && counts; c++)
        for (int64_t t = 0; t < tiles; t++)
            o->sums[c] += o->tile_sums[(c - first) * tiles + t];
    for (int i = 0; i < n_micro; i++)
        o->sums[cuts] += loss_sums[i];
    TRY(comm_sum(o->comm, "norm and loss", o->sums, cuts + 1));
    trace_end(o->compute);
    double square = 0;
    for (int c = 0; c < cuts; c++)
        square += o->sums[c];
    *result = (StepResult){.loss = o->sums[cuts] / n_valid, .norm = sqrt(square), .finite = isfinite(square)};
    return check_agreement(o, "loss scale and norm", loss_scale, result->norm);
}

Status optimizer_step(Optim *o, double lr, int64_t updates, double loss_scale, double norm) {
    const Ops *ops = device_ops(o->device);
    double clip = o->config.grad_clip, factor = clip > 0 ? clip / (norm + 1e-6) : 1.0;
    for (int u = 0; u < o->layout->n_units; u++) {
        AdamwArgs *a = &o->pieces[u];
        a->grad_divisor = (float)loss_scale;
        a->grad_factor = factor < 1.0 ? (float)factor : 1.0f;
        a->lr = (float)lr;
        a->bias_correction1 = (float)(1.0 - pow(o->config.beta1, (double)(updates + 1)));
        a->bias_correction2 = (float)(1.0 - pow(o->config.beta2, (double)(updates + 1)));
        if (o->offloaded)
            continue;
        a->master = state_piece(o, STATE_MASTER, u);
        a->param = has_master(o) ? param_piece(o, u) : NULL;
        a->grad = grads_shard(o->grads, u, o->options.stage == 0 ? 0 : o->layout->shard);
        a->m = state_piece(o, STATE_M, u);
        a->v = state_piece(o, STATE_V, u);
        trace_begin(o->compute, "update unit", u);
        ops->adamw(o->compute, a);
        trace_end(o->compute);
        params_publish(o->params, u);
    }
    if (o->offloaded)
        TRY(walk_tiles(o, o->pieces));
    return check_agreement(o, "learning rate and count of updates", lr, (double)updates);
}

Status optimizer_state_loaded(Optim *o) {
    // Stage 0 keeps every cut: what each rank has loaded is its own.
    for (int k = 0; k < STATE_KINDS && o->options.stage == 0 && !o->offloaded; k++) {
        for (int u = 0; u < o->layout->n_units; u++) {
            float *piece = state_piece(o, (StateKind)k, u);
            if (piece)
                comm_all_gather(o->comm, o->compute, "loaded state", piece, optimizer_state(o, (StateKind)k, u),
                                o->layout->units[u].shard_len, DTYPE_FP32);
        }
    }
    TRY(publish_all(o));
    return stream_sync(o->compute);
}
