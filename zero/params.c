#include "zero/params.h"

#include <stdio.h>
#include <stdlib.h>

#include "llm/hooks.h"
#include "zero/offload_params.h"
#include "zero/offload_state.h"
#include "zero/trace.h"

// Host memory in which an updated tile waits for its way to the device.
typedef struct Room {
    void *memory;
    Event *free;       // the tile is on the device (up stream)
} Room;

// A buffer that holds one gathered unit (stage 3).
typedef struct ParamSlot {
    void *memory;
    int unit;          // what it holds, or will hold once `ready` is reached; -1: nothing of use
    Event *ready;      // the gather into it is done (gather stream)
    Event *released;   // the last use is done (compute stream)
} ParamSlot;

struct Params {
    Device *device;
    const Layout *layout;
    Comm *comm;
    Stream *compute, *gather;
    ZeroOptions options;
    void *memory;              // stages 0–2: every unit; stage 3: the own shard of every unit
    ParamSlot slots[N_SLOTS];  // stage 3
    Event *updated;            // the optimizer's last write (compute stream)
    Event **published;         // stages 1, 2: a unit's all-gather is done (gather stream)
    Offload *offload;
    OffloadParams *stored;     // instead of `memory`: offloaded parameters
    Room rooms[PARAMS_ROOMS];  // offloaded optimizer, parameters on the device
    int room;                  // the one that is filled next
    char (*names)[16];         // "unit 3", for messages
};

static bool sharded(const Params *p) {
    return p->options.stage == 3;
}

static ParamSlot *slot_of(Params *p, int u) {
    return &p->slots[layout_slot(p->layout, u)];
}

// Memory for `len` parameters that travel, unless this is stage 0.
static Status allocate(Params *p, MemoryCategory category, const char *name, int64_t len, void **memory) {
    size_t bytes = (size_t)len * dtype_bytes(p->options.dtype);
    TRY(device_alloc(p->device, category, name, bytes, memory));
    return p->options.stage > 0 ? comm_register(p->comm, *memory, bytes) : OK;
}

static void release(Params *p, void *memory) {
    comm_unregister(p->comm, memory);
    device_free(p->device, memory);
}

static Status open_slots(Params *p) {
    const Layout *l = p->layout;
    size_t e = dtype_bytes(p->options.dtype);
    int blocks = l->n_units - 2;
    TRY(allocate(p, MEM_SLOTS, "ends", l->ends_len, &p->slots[SLOT_ENDS].memory));
    TRY(allocate(p, MEM_SLOTS, "block a", l->max_block_len, &p->slots[SLOT_BLOCK_A].memory));
    if (blocks > 1)
        TRY(allocate(p, MEM_SLOTS, "block b", l->max_block_len, &p->slots[SLOT_BLOCK_B].memory));
    for (int i = 0; i < N_SLOTS; i++) {
        p->slots[i].unit = -1;
        TRY(event_create(p->device, &p->slots[i].ready));
        TRY(event_create(p->device, &p->slots[i].released));
    }
    if (l->tied)  // the second half of the shared slot
        p->slots[SLOT_TIED_NORM].memory = (char *)p->slots[SLOT_ENDS].memory + (size_t)l->units[0].full_len * e;
    return OK;
}

static Status open_rooms(Params *p) {
    for (int i = 0; i < PARAMS_ROOMS; i++) {
        TRY(device_offload_alloc(p->device, MEM_STAGING, "updated parameters",
                                 (size_t)offload_tile_len(p->layout, &p->offload->options) *
                                     dtype_bytes(p->options.dtype), &p->rooms[i].memory));
        TRY(event_create(p->device, &p->rooms[i].free));
    }
    return OK;
}

Status params_open(Device *device, const Layout *layout, Comm *comm, Stream *compute, Stream *gather, ZeroOptions options,
                   Offload *offload, Params **params) {
    *params = NULL;
    Params *p = calloc(1, sizeof *p);
    if (!p)
        return fail("out of host memory");
    *p = (Params){.device = device, .layout = layout, .comm = comm, .compute = compute, .gather = gather,
                  .options = options, .offload = offload};
    Status status = OK;
    p->published = calloc((size_t)layout->n_units, sizeof *p->published);
    p->names = calloc((size_t)layout->n_units, sizeof *p->names);
    if (!p->published || !p->names) {
        status = fail("out of host memory");
        goto failed;
    }
    for (int u = 0; u < layout->n_units; u++) {
        snprintf(p->names[u], sizeof p->names[u], "unit %d", u);
        TRY_GOTO(event_create(device, &p->published[u]), failed);
    }
    TRY_GOTO(event_create(device, &p->updated), failed);
    int64_t len = sharded(p) ? layout->shard_len : layout->full_len;
    if (offload && offload->options.params != OFFLOAD_NONE)
        TRY_GOTO(offload_params_open(offload, layout, options.dtype, &p->stored), failed);
    else
        TRY_GOTO(allocate(p, MEM_PARAMETERS, "parameters", len, &p->memory), failed);
    if (sharded(p))
        TRY_GOTO(open_slots(p), failed);
    if (offload_optimizer(offload) && !p->stored)
        TRY_GOTO(open_rooms(p), failed);
    *params = p;
    return OK;
failed:
    params_close(p);
    return status;
}

void params_close(Params *p) {
    if (!p)
        return;
    for (int i = 0; i < N_SLOTS; i++) {
        event_destroy(p->slots[i].ready);
        event_destroy(p->slots[i].released);
        if (i != SLOT_TIED_NORM)
            release(p, p->slots[i].memory);
    }
    for (int i = 0; i < PARAMS_ROOMS; i++) {
        event_destroy(p->rooms[i].free);
        device_host_free(p->device, p->rooms[i].memory);
    }
    offload_params_close(p->stored);
    release(p, p->memory);
    event_destroy(p->updated);
    for (int u = 0; p->published && u < p->layout->n_units; u++)
        event_destroy(p->published[u]);
    free(p->published);
    free(p->names);
    free(p);
}

static void *at(Params *p, int64_t element) {
    return (char *)p->memory + (size_t)element * dtype_bytes(p->options.dtype);
}

static void *unit_memory(Params *p, int u) {
    return sharded(p) ? slot_of(p, u)->memory : at(p, p->layout->units[u].full_offset);
}

void *params_shard(Params *p, int u) {
    if (p->stored)
        return NULL;
    const UnitLayout *unit = &p->layout->units[u];
    return sharded(p) ? at(p, unit->shard_offset) : at(p, unit->full_offset + p->layout->shard * unit->shard_len);
}

// Stage 3: enqueue the gather of unit u, unless its slot already holds it.
static void gather(Params *p, int u) {
    ParamSlot *slot = slot_of(p, u);
    if (slot->unit == u)
        return;
    stream_wait(p->gather, slot->released);
    stream_wait(p->gather, p->updated);
    const UnitLayout *unit = &p->layout->units[u];
    hook_poison(p->gather, slot->memory, (size_t)unit->full_len * dtype_bytes(p->options.dtype));
    trace_begin(p->gather, "gather unit", u);
    const void *shard = p->stored ? offload_params_use(p->stored, u, p->gather) : params_shard(p, u);
    comm_all_gather(p->comm, p->gather, p->names[u], slot->memory, shard, unit->shard_len, p->options.dtype);
    if (p->stored)
        offload_params_used(p->stored, u, p->gather);
    trace_end(p->gather);
    hook_poison_gaps(p->gather, &unit->spec, unit->full_len, slot->memory, p->options.dtype);
    event_record(slot->ready, p->gather);
    slot->unit = u;
}

static bool needs_tied(const Params *p, int u) {
    return p->layout->tied && u == p->layout->n_units - 1;
}

// Offloaded parameters: compute is about to wait for unit u; bring the shard of unit `ahead` meanwhile, unless a slot has it.
static void fetch_ahead(Params *p, int u, int ahead) {
    offload_params_wait(p->stored, u);
    if (ahead > 0 && ahead < p->layout->n_units && slot_of(p, ahead)->unit != ahead)
        offload_params_fetch(p->stored, ahead);
}

UnitParams params_acquire(Params *p, int u, Direction next) {
    bool tied = needs_tied(p, u);
    if (sharded(p)) {
        gather(p, u);
        if (tied)
            gather(p, 0);
        // One unit ahead. The embedding's backward needs no parameters, so nothing is fetched for unit 0 then.
        int way = next == FORWARD ? 1 : -1;
        if (u + way > 0 && u + way < p->layout->n_units)
            gather(p, u + way);
        if (p->stored)
            fetch_ahead(p, u, u + 2 * way);
        trace_wait(p->compute, slot_of(p, u)->ready, "wait for unit", u);
        if (tied)
            trace_wait(p->compute, slot_of(p, 0)->ready, "wait for unit", 0);
    } else {
        trace_wait(p->compute, p->published[u], "wait for unit", u);
        if (tied)
            trace_wait(p->compute, p->published[0], "wait for unit", 0);
    }
    bool last = u == p->layout->n_units - 1;
    trace_begin(p->compute, last ? "loss, unit" : next == FORWARD ? "forward of unit" : "backward of unit", u);
    return (UnitParams){unit_memory(p, u), tied ? unit_memory(p, 0) : NULL};
}

void params_release(Params *p, int u) {
    trace_end(p->compute);
    if (!sharded(p))
        return;
    event_record(slot_of(p, u)->released, p->compute);
    if (needs_tied(p, u))
        event_record(slot_of(p, 0)->released, p->compute);
}

// Stages 1, 2: what the all-gather is about to bring must not be read before it is there.
static void poison_others(Params *p, int u) {
    const UnitLayout *unit = &p->layout->units[u];
    for (int s = 0; HOOKS && s < p->layout->group; s++)
        if (s != p->layout->shard)
            hook_poison(p->gather, at(p, unit->full_offset + s * unit->shard_len),
                        (size_t)unit->shard_len * dtype_bytes(p->options.dtype));
}

void params_publish(Params *p, int u) {
    if (sharded(p)) {
        ParamSlot *slot = slot_of(p, u);
        if (slot->unit == u) {
            slot->unit = -1;  // what was gathered is out of date
            hook_poison(p->compute, slot->memory, (size_t)p->layout->units[u].full_len * dtype_bytes(p->options.dtype));
        }
    }
    Stream *writer = offload_optimizer(p->offload) ? p->offload->up : p->compute;
    event_record(p->updated, writer);
    if (p->options.stage == 0)
        event_record(p->published[u], writer);
    if (!sharded(p) && p->options.stage > 0) {
        stream_wait(p->gather, p->updated);
        poison_others(p, u);
        trace_begin(p->gather, "gather unit", u);
        comm_all_gather(p->comm, p->gather, p->names[u], unit_memory(p, u), params_shard(p, u),
                        p->layout->units[u].shard_len, p->options.dtype);
        trace_end(p->gather);
        event_record(p->published[u], p->gather);
    }
}

void params_wait_published(Params *p, int u) {
    if (!sharded(p))
        stream_wait(p->compute, p->published[u]);
}

Status params_room(Params *p, int u, int64_t begin, void **room) {
    if (p->stored)
        return offload_params_room(p->stored, u, begin, room);
    *room = p->rooms[p->room].memory;
    return offload_sync(p->offload, p->rooms[p->room].free);
}

Status params_put(Params *p, int u, int64_t begin, int64_t len) {
    if (p->stored)
        return offload_params_put(p->stored, u, begin, len);
    Room *room = &p->rooms[p->room];
    size_t e = dtype_bytes(p->options.dtype);
    offload_copy_up(p->offload, (char *)params_shard(p, u) + (size_t)begin * e, room->memory, (size_t)len * e);
    event_record(room->free, p->offload->up);
    p->room = (p->room + 1) % PARAMS_ROOMS;
    return OK;
}

Status params_flush(Params *p) {
    return p->stored ? offload_params_flush(p->stored) : offload_check(p->offload);
}
