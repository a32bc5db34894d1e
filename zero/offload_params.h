// offload_params: the parameter shards of a rank in host memory or in a file on NVMe (--offload-params, stage 3), and how
// one comes to the device when its unit is about to be gathered: one more level below the slots of zero/params.h.
//
//     host memory ────────────────────┐
//     file → buffers in host memory ──┴→ staging on the device (two, in turn) → all-gather → slot
//
// Shards are fetched on a stream of their own, one unit ahead of the gather. A staging buffer has two events: `ready`,
// recorded on the fetch stream, and `released`, recorded on the gather stream when the all-gather has read it.
#ifndef ZERO_OFFLOAD_PARAMS_H
#define ZERO_OFFLOAD_PARAMS_H

#include "zero/comm.h"
#include "zero/layout.h"
#include "zero/offload.h"

enum { OFFLOAD_STAGINGS = 2 };  // shards on the device: one is gathered while the other is fetched

typedef struct OffloadParams OffloadParams;

Status offload_params_open(Offload *offload, const Layout *layout, Dtype dtype, OffloadParams **params);
void offload_params_close(OffloadParams *params);  // NULL is fine

// Start to bring the shard of unit u to the device, unless it is there or on its way.
void offload_params_fetch(OffloadParams *params, int u);
// The same, and the gather stream waits for it. Then used: the gather stream has read it.
const void *offload_params_use(OffloadParams *params, int u, Stream *gather);
void offload_params_used(OffloadParams *params, int u, Stream *gather);
// The compute stream waits for what the unit's gather waits for, so that this time is not taken for communication.
void offload_params_wait(OffloadParams *params, int u);

// The optimizer's side, tile by tile, while nothing is being fetched: host memory with room for elements [begin, begin + len)
// of the shard of unit u; what was written there goes to its place; everything is there.
Status offload_params_room(OffloadParams *params, int u, int64_t begin, void **room);
Status offload_params_put(OffloadParams *params, int u, int64_t begin, int64_t len);
Status offload_params_flush(OffloadParams *params);

// Adds what offload_params_open asks for.
void offload_params_plan(const Layout *layout, const OffloadOptions *options, Dtype dtype,
                         size_t device[MEM_CATEGORIES], size_t host[MEM_CATEGORIES], size_t *nvme);

#endif
