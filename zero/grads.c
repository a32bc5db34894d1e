#include "zero/grads.h"

#include <stdio.h>
#include <stdlib.h>

#include "llm/hooks.h"
#include "zero/trace.h"

// An fp32 buffer in which one unit's gradient of one micro-batch is formed.
typedef struct GradSlot {
    float *memory;
    int unit;          // which unit's gaps are zero in it
    Event *released;   // the reduction has read it (reduce stream)
} GradSlot;

// A buffer on the device in which a shard is reduced whose place is in host memory (stages 2, 3).
typedef struct ShardStaging {
    void *memory;
    Event *here;       // the sum so far has come up (up stream)
    Event *reduced;    // the sum is complete (reduce stream)
    Event *released;   // it is in host memory (down stream)
} ShardStaging;

struct Grads {
    Device *device;
    const Layout *layout;
    Comm *comm;
    Stream *compute, *reduce;
    ZeroOptions options;
    void *memory;             // stages 0, 1: every unit; stages 2, 3: the own shard of every unit. In grad_dtype.
    Offload *offload;
    void *host;               // offloaded optimizer: the own shard of every unit, in host memory. In grad_dtype.
    ShardStaging stagings[GRADS_STAGINGS];
    int staging;              // the one that is used next
    bool slots_used;          // false: gradients are formed in `memory` itself
    GradSlot slots[N_SLOTS];
    Event *formed;            // the unit's backward is done (compute stream)
    Event **reduced;          // the unit's reduced gradient is at its place (reduce stream; offloaded: down stream)
    bool first, last;         // of the step's micro-batches
    char (*names)[16];
    GradsInspect inspect;     // NULL: nobody looks
    void *inspect_context;
};

static bool sharded(const Grads *g) {
    return g->options.stage >= 2;
}

static GradSlot *slot_of(Grads *g, int u) {
    return &g->slots[layout_slot(g->layout, u)];
}

// A slot for `len` elements.
static Status open_slot(Grads *g, const char *name, int64_t len, GradSlot *slot) {
    size_t bytes = (size_t)len * sizeof *slot->memory;
    TRY(device_alloc(g->device, MEM_SLOTS, name, bytes, (void **)&slot->memory));
    return comm_register(g->comm, slot->memory, bytes);
}

static void release(Grads *g, void *memory) {
    comm_unregister(g->comm, memory);
    device_free(g->device, memory);
}

static Status open_slots(Grads *g) {
    const Layout *l = g->layout;
    TRY(open_slot(g, "ends gradient", l->ends_len, &g->slots[SLOT_ENDS]));
    TRY(open_slot(g, "block a gradient", l->max_block_len, &g->slots[SLOT_BLOCK_A]));
    if (l->n_units > 3)
        TRY(open_slot(g, "block b gradient", l->max_block_len, &g->slots[SLOT_BLOCK_B]));
    hook_poison(g->compute, g->slots[SLOT_ENDS].memory, (size_t)l->ends_len * 4);
    hook_poison(g->compute, g->slots[SLOT_BLOCK_A].memory, (size_t)l->max_block_len * 4);
    if (l->n_units > 3)
        hook_poison(g->compute, g->slots[SLOT_BLOCK_B].memory, (size_t)l->max_block_len * 4);
    for (int i = 0; i < N_SLOTS; i++) {
        g->slots[i].unit = -1;
        TRY(event_create(g->device, &g->slots[i].released));
    }
    if (l->tied)
        g->slots[SLOT_TIED_NORM].memory = g->slots[SLOT_ENDS].memory + l->units[0].full_len;
    return OK;
}

static Status open_host_shards(Grads *g) {
    size_t e = dtype_bytes(g->options.grad_dtype);
    TRY(device_offload_alloc(g->device, MEM_GRADIENTS, "gradient shards", (size_t)g->layout->shard_len * e, &g->host));
    int64_t longest = layout_longest_shard(g->layout);
    for (int i = 0; i < GRADS_STAGINGS && sharded(g); i++) {
        ShardStaging *s = &g->stagings[i];
        TRY(device_alloc(g->device, MEM_STAGING, "reduced shard", (size_t)longest * e, &s->memory));
        TRY(event_create(g->device, &s->here));
        TRY(event_create(g->device, &s->reduced));
        TRY(event_create(g->device, &s->released));
    }
    return OK;
}

Status grads_open(Device *device, const Layout *layout, Comm *comm, Stream *compute, Stream *reduce, ZeroOptions options,
                  Offload *offload, Grads **grads) {
    *grads = NULL;
    Grads *g = calloc(1, sizeof *g);
    if (!g)
        return fail("out of host memory");
    *g = (Grads){.device = device, .layout = layout, .comm = comm, .compute = compute, .reduce = reduce,
                 .options = options, .offload = offload};
    Status status = OK;
    g->slots_used = sharded(g) || options.grad_dtype != DTYPE_FP32;
    g->reduced = calloc((size_t)layout->n_units, sizeof *g->reduced);
    g->names = calloc((size_t)layout->n_units, sizeof *g->names);
    if (!g->reduced || !g->names) {
        status = fail("out of host memory");
        goto failed;
    }
    for (int u = 0; u < layout->n_units; u++) {
        snprintf(g->names[u], sizeof g->names[u], "unit %d", u);
        TRY_GOTO(event_create(device, &g->reduced[u]), failed);
    }
    TRY_GOTO(event_create(device, &g->formed), failed);
    size_t e = dtype_bytes(options.grad_dtype);
    size_t bytes = (size_t)(sharded(g) ? layout->shard_len : layout->full_len) * e;
    if (offload_optimizer(offload))
        TRY_GOTO(open_host_shards(g), failed);
    if (!sharded(g) || !g->host)
        TRY_GOTO(device_alloc(device, MEM_GRADIENTS, "gradients", bytes, &g->memory), failed);
    if (!sharded(g))
        TRY_GOTO(comm_register(comm, g->memory, bytes), failed);
    if (g->slots_used)
        TRY_GOTO(open_slots(g), failed);
    *grads = g;
    return OK;
failed:
    grads_close(g);
    return status;
}

void grads_close(Grads *g) {
    if (!g)
        return;
    for (int i = 0; i < N_SLOTS; i++) {
        event_destroy(g->slots[i].released);
        if (i != SLOT_TIED_NORM)
            release(g, g->slots[i].memory);
    }
    for (int i = 0; i < GRADS_STAGINGS; i++) {
        event_destroy(g->stagings[i].here);
        event_destroy(g->stagings[i].reduced);
        event_destroy(g->stagings[i].released);
        device_free(g->device, g->stagings[i].memory);
    }
    device_host_free(g->device, g->host);
    release(g, g->memory);
    event_destroy(g->formed);
    for (int u = 0; g->reduced && u < g->layout->n_units; u++)
        event_destroy(g->reduced[u]);
    free(g->reduced);
    free(g->names);
    free(g);
}

static char *at(const Grads *g, int64_t element) {
    return (char *)g->memory + (size_t)element * dtype_bytes(g->options.grad_dtype);
}

static size_t shard_bytes(const Grads *g, int u) {
    return (size_t)g->layout->units[u].shard_len * dtype_bytes(g->options.grad_dtype);
}

// The place of the own shard of unit u in host memory, or stages 2, 3 without offload: on the device.
static char *shard_place(const Grads *g, int u) {
    return (char *)(g->host ? g->host : g->memory) +
           (size_t)g->layout->units[u].shard_offset * dtype_bytes(g->options.grad_dtype);
}

// Tests: the last step's sums must not be read in this step. Gaps of gradients that are formed in place are zero and
// stay zero.
static void poison_sums(Grads *g) {
    for (int u = 0; HOOKS && u < g->layout->n_units; u++) {
        const UnitLayout *unit = &g->layout->units[u];
        if (!g->slots_used)
            hook_poison_tensors(g->compute, &unit->spec, at(g, unit->full_offset), g->options.grad_dtype);
        else if (!sharded(g))
            hook_poison(g->compute, at(g, unit->full_offset), (size_t)unit->full_len * dtype_bytes(g->options.grad_dtype));
        if (sharded(g) || g->host)
            hook_poison(g->compute, shard_place(g, u), shard_bytes(g, u));
    }
}

void grads_begin_micro_batch(Grads *g, bool first, bool last) {
    g->first = first;
    g->last = last;
    if (first)
        poison_sums(g);
}

void grads_inspect(Grads *g, GradsInspect inspect, void *context) {
    g->inspect = inspect;
    g->inspect_context = context;
}

// The gaps between tensors and the padding after them count in sums over a shard, so they must be zero. A slot that held
// another kind of unit has values there.
static void zero_gaps(Grads *g, int u, float *memory) {
    const UnitLayout *unit = &g->layout->units[u];
    for (int i = 0; i < unit->spec.n_tensors; i++) {
        const TensorSpec *t = &unit->spec.tensors[i];
        int64_t end = t->offset + t->len, next = i + 1 < unit->spec.n_tensors ? t[1].offset : unit->full_len;
        stream_zero(g->compute, memory + end, (size_t)(next - end) * sizeof *memory);
    }
}

static float *unit_memory(Grads *g, int u) {
    if (!g->slots_used)
        return (float *)(void *)at(g, g->layout->units[u].full_offset);
    GradSlot *slot = slot_of(g, u);
    trace_wait(g->compute, slot->released, "wait for the slot of unit", u);
    bool is_block = u > 0 && u < g->layout->n_units - 1;
    bool same_tensors = slot->unit == u || (is_block && slot->unit >= 0);  // all blocks are alike
    if (!same_tensors)
        zero_gaps(g, u, slot->memory);
    slot->unit = u;
    return slot->memory;
}

UnitGrads grads_acquire(Grads *g, int u) {
    bool tied = g->layout->tied && u == g->layout->n_units - 1;
    UnitGrads grads = {.unit = unit_memory(g, u),
                       .tied = tied ? unit_memory(g, 0) : NULL,
                       .accumulate = !g->slots_used && !g->first};
    trace_begin(g->compute, "gradient of unit", u);
    return grads;
}

// Stages 2, 3, offloaded: the shard's sum so far comes up, is added to, and goes down again. It went down at least three
// reductions ago, and the staging buffer's last use, which the copy up waits for, was two ago on the same stream.
static void reduce_to_host(Grads *g, int u, const float *formed) {
    ShardStaging *s = &g->stagings[g->staging];
    g->staging = (g->staging + 1) % GRADS_STAGINGS;
    stream_wait(g->offload->up, s->released);
    if (!g->first)
        offload_copy_up(g->offload, s->memory, shard_place(g, u), shard_bytes(g, u));
    event_record(s->here, g->offload->up);
    stream_wait(g->reduce, s->here);
    comm_reduce_scatter(g->comm, g->reduce, g->names[u], s->memory, g->options.grad_dtype, formed,
                        g->layout->units[u].shard_len, g->options.reduce_dtype, !g->first);
    event_record(s->reduced, g->reduce);
    stream_wait(g->offload->down, s->reduced);
    offload_copy_down(g->offload, shard_place(g, u), s->memory, shard_bytes(g, u));
    event_record(s->released, g->offload->down);
}

void grads_reduce(Grads *g, int u) {
    const Ops *ops = device_ops(g->device);
    const UnitLayout *unit = &g->layout->units[u];
    Dtype dtype = g->options.grad_dtype;
    float *formed = g->slots_used ? slot_of(g, u)->memory : (float *)(void *)at(g, unit->full_offset);
    bool travels = g->last || sharded(g);

    hook_gradient(g->compute, comm_rank(g->comm), u, comm_step(g->comm), formed);
    if (g->inspect)
        g->inspect(g->inspect_context, u, formed);
    trace_end(g->compute);
    if (!travels && !g->slots_used)
        return;  // accumulated in place
    event_record(g->formed, g->compute);
    stream_wait(g->reduce, g->formed);
    trace_begin(g->reduce, travels ? "reduce unit" : "add unit", u);
    if (sharded(g) && g->host) {
        reduce_to_host(g, u, formed);
    } else if (sharded(g)) {
        comm_reduce_scatter(g->comm, g->reduce, g->names[u], shard_place(g, u), dtype, formed, unit->shard_len,
                            g->options.reduce_dtype, !g->first);
    } else {
        void *buffer = at(g, unit->full_offset);
        if (!travels) {
            if (g->first)
                ops->convert(g->reduce, buffer, dtype, formed, DTYPE_FP32, unit->full_len);
            else
                ops->add(g->reduce, buffer, dtype, formed, DTYPE_FP32, unit->full_len);
        } else {
            if (g->slots_used && !g->first)  // the sum is complete in fp32 before it is rounded
                ops->add(g->reduce, formed, DTYPE_FP32, buffer, dtype, unit->full_len);
            void *own = at(g, unit->full_offset + g->layout->shard * unit->shard_len);
            comm_reduce_scatter(g->comm, g->reduce, g->names[u], own, dtype, formed, unit->shard_len,
                                g->options.reduce_dtype, false);
            if (g->options.stage == 0)
                comm_all_gather(g->comm, g->reduce, g->names[u], buffer, own, unit->shard_len, dtype);
        }
    }
    trace_end(g->reduce);
    if (g->slots_used) {
        hook_poison_tensors(g->reduce, &unit->spec, formed, DTYPE_FP32);
        event_record(slot_of(g, u)->released, g->reduce);
    }
    if (!g->last)
        return;
    event_record(g->reduced[u], g->reduce);
    if (g->host && !sharded(g)) {
        stream_wait(g->offload->down, g->reduced[u]);
        offload_copy_down(g->offload, shard_place(g, u), at(g, unit->full_offset + g->layout->shard * unit->shard_len),
                          shard_bytes(g, u));
    }
    if (g->host)
        event_record(g->reduced[u], g->offload->down);
}

const void *grads_shard(const Grads *g, int u, int shard) {
    const UnitLayout *unit = &g->layout->units[u];
    return sharded(g) || g->host ? shard_place(g, u) : at(g, unit->full_offset + shard * unit->shard_len);
}

void grads_wait(Grads *g, int u) {
    trace_wait(g->compute, g->reduced[u], "wait for gradient of unit", u);
}

Dtype grads_dtype(const Grads *g) {
    return g->options.grad_dtype;
}
