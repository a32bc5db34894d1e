#include "zero/offload.h"

#include <stdlib.h>

Status offload_open(Device *device, Stream *compute, OffloadOptions options, Offload **offload) {
    *offload = NULL;
    if (options.optimizer == OFFLOAD_NONE &&
        !options.activations)  // parameters follow the optimizer's state (config_resolve)
        return OK;
    Offload *o = calloc(1, sizeof *o);
    if (!o)
        return fail("out of host memory");
    *o = (Offload){
        .device = device, .options = options, .compute = compute, .down = compute, .up = compute, .fetch = compute};
    Status status = OK;
    if (options.overlap) {
        TRY_GOTO(stream_create(device, STREAM_BACKGROUND, "down", &o->down), failed);
        TRY_GOTO(stream_create(device, STREAM_BACKGROUND, "up", &o->up), failed);
    }
    if (options.overlap && options.params != OFFLOAD_NONE)
        TRY_GOTO(stream_create(device, STREAM_BACKGROUND, "fetch", &o->fetch), failed);
    *offload = o;
    return OK;
failed:
    offload_close(o);
    return status;
}

void offload_close(Offload *o) {
    if (!o)
        return;
    if (o->fetch != o->compute)
        stream_destroy(o->fetch);
    if (o->up != o->compute)
        stream_destroy(o->up);
    if (o->down != o->compute)
        stream_destroy(o->down);
    free(o);
}

bool offload_optimizer(const Offload *o) {
    return o && o->options.optimizer != OFFLOAD_NONE;
}

void offload_begin_step(Offload *o, Model *model) {
    if (!o)
        return;
    offload_end_step(o, model);  // of an evaluation
    o->stats = (OffloadStats){.bytes_down = 0};
}

const OffloadStats *offload_end_step(Offload *o, Model *model) {
    if (!o)
        return NULL;
    int64_t down, up;
    model_take_offloaded(model, &down, &up);
    o->stats.bytes_down += down;
    o->stats.bytes_up += up;
    return &o->stats;
}

void offload_copy_down(Offload *o, void *host, const void *device, size_t bytes) {
    o->stats.bytes_down += (int64_t)bytes;
    stream_copy(o->down, host, device, bytes);
}

void offload_copy_up(Offload *o, void *device, const void *host, size_t bytes) {
    o->stats.bytes_up += (int64_t)bytes;
    stream_copy(o->up, device, host, bytes);
}

Status offload_sync(Offload *o, Event *event) {
    double start = comm_clock();
    Status status = event_sync(event);
    o->stats.copy_wait_s += comm_clock() - start;
    return status;
}

Status offload_check(Offload *o) {
    if (!o)
        return OK;
    TRY(stream_sync(o->down));
    TRY(stream_sync(o->up));
    return stream_sync(o->fetch);
}
