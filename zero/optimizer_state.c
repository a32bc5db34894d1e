#include "zero/optimizer_state.h"

static Status fetch(void *context, StateKind kind, int u, int64_t begin, int64_t len, float *to) {
    OptimizerView *self = context;
    OffloadState *offloaded = optimizer_offloaded(self->optimizer);
    if (offloaded)
        return offload_state_read(offloaded, kind, u, begin, len, to);
    stream_copy(self->stream, to, optimizer_state(self->optimizer, kind, u) + begin, (size_t)len * sizeof *to);
    return stream_sync(self->stream);
}

static Status store(void *context, StateKind kind, int u, int64_t begin, int64_t len, const float *from) {
    OptimizerView *self = context;
    OffloadState *offloaded = optimizer_offloaded(self->optimizer);
    if (offloaded)
        return offload_state_write(offloaded, kind, u, begin, len, from);
    stream_copy(self->stream, optimizer_state(self->optimizer, kind, u) + begin, from, (size_t)len * sizeof *from);
    return stream_sync(self->stream);
}

Status optimizer_view_open(Device *device, Stream *stream, Optim *optimizer, OptimizerView *view) {
    *view = (OptimizerView){.device = device, .stream = stream, .optimizer = optimizer};
    view->view = (StateView){.context = view, .fetch = fetch, .store = store};
    for (StateKind kind = 0; kind < STATE_KINDS; kind++)
        view->view.has[kind] = optimizer_has(optimizer, kind);
    void *staging;
    TRY(device_host_alloc(device, "checkpoint staging", STATE_PIECE_BYTES, &staging));
    view->view.staging = staging;
    return OK;
}

void optimizer_view_close(OptimizerView *view) {
    if (view->view.staging)
        device_host_free(view->device, view->view.staging);
    *view = (OptimizerView){0};
}
