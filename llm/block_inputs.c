#include "llm/block_inputs.h"

#include <stdlib.h>

#include "llm/hooks.h"

// Inputs of blocks 0 … layers-2 travel; those that are in the two buffers when forward ends stay there.
static bool travels(const BlockInputs *b, int l) {
    return b->offload && l < b->layers - 1;
}

size_t block_inputs_host_bytes(int layers, size_t bytes) {
    return (size_t)(layers - 1) * bytes;
}

Status block_inputs_open(Device *device, Stream *compute, Stream *down, Stream *up, int layers, size_t bytes,
                         BlockInputs *b) {
    *b = (BlockInputs){.device = device,
                       .compute = compute,
                       .down = down,
                       .up = up,
                       .layers = layers,
                       .bytes = bytes,
                       .offload = true};
    b->host = calloc((size_t)layers, sizeof *b->host);
    if (!b->host)
        return fail("out of host memory");
    for (int l = 0; l < layers - 1; l++)
        TRY(device_offload_alloc(device, MEM_ACTIVATIONS, "block input", bytes, &b->host[l]));
    TRY(event_create(device, &b->made));
    for (int i = 0; i < INPUT_BUFFERS; i++) {
        TRY(event_create(device, &b->saved[i]));
        TRY(event_create(device, &b->here[i]));
    }
    return OK;
}

void block_inputs_close(BlockInputs *b) {
    for (int l = 0; b->host && l < b->layers - 1; l++)
        device_host_free(b->device, b->host[l]);
    event_destroy(b->made);
    for (int i = 0; i < INPUT_BUFFERS; i++) {
        event_destroy(b->saved[i]);
        event_destroy(b->here[i]);
    }
    free(b->host);
    *b = (BlockInputs){0};
}

void block_inputs_write(BlockInputs *b, int l) {
    if (b->offload)
        stream_wait(b->compute, b->saved[l % INPUT_BUFFERS]);
}

void block_inputs_made(BlockInputs *b, void **x, int l) {
    if (!travels(b, l))
        return;
    event_record(b->made, b->compute);
    stream_wait(b->down, b->made);
    stream_copy(b->down, b->host[l], x[l], b->bytes);
    b->bytes_down += (int64_t)b->bytes;
    event_record(b->saved[l % INPUT_BUFFERS], b->down);
}

// The buffer of block l-1's input holds that of block l+1, which compute has used by now.
void block_inputs_need(BlockInputs *b, void **x, int l) {
    if (!b->offload)
        return;
    if (travels(b, l))
        stream_wait(b->compute, b->here[l % INPUT_BUFFERS]);
    if (l == 0)
        return;
    hook_poison(b->compute, x[l - 1], b->bytes);
    event_record(b->made, b->compute);
    stream_wait(b->up, b->made);
    stream_copy(b->up, x[l - 1], b->host[l - 1], b->bytes);
    b->bytes_up += (int64_t)b->bytes;
    event_record(b->here[(l - 1) % INPUT_BUFFERS], b->up);
}
