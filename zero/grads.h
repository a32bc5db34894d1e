// grads: where a unit's gradient is formed, how it is reduced over ranks, and what a rank keeps of it.
//
// The gradient of one micro-batch is complete in fp32 before anything is rounded.
//
//   stages 0, 1   fp32: formed and accumulated in place, in a buffer for all units; reduced with the last micro-batch.
//                 grad dtype = parameters' (2Ψ): formed in an fp32 slot of one unit, then added to the buffer, rounded once.
//   stages 2, 3   formed in an fp32 slot of one unit, reduce-scattered with every micro-batch and added to the shard.
//
// Slots as in zero/params.h: two for blocks, one for units 0 and L+1; `ready` is recorded on the compute stream after the
// unit's backward, `released` after the reduction has read the slot.
// The reduced gradient is always the rank's own shard (stage 0: every rank's); it is not yet divided by the loss scale.
//
// Where the optimizer is offloaded, the own shards live in host memory. Each goes down as its reduction ends: in stages 0, 1
// from its place in the buffer for all units; in stages 2, 3 from a staging buffer on the device, into which the sum of
// the micro-batches before has come up for the reduction to add to. The two of them take turns.
#ifndef ZERO_GRADS_H
#define ZERO_GRADS_H

#include "zero/params.h"

typedef struct Grads Grads;

enum { GRADS_STAGINGS = 2 };  // shards that are reduced on the device while their place is in host memory

Status grads_open(Device *device, const Layout *layout, Comm *comm, Stream *compute, Stream *reduce, ZeroOptions options,
                  Offload *offload, Grads **grads);
void grads_close(Grads *grads);

void grads_begin_micro_batch(Grads *grads, bool first, bool last);    // of the step: first overwrites, last completes it
UnitGrads grads_acquire(Grads *grads, int u);                         // room for unit u's gradient, for the compute stream
void grads_reduce(Grads *grads, int u);                               // the unit's gradient is complete for this micro-batch

// Hand each unit's gradient, as this rank has formed it and before it is reduced, to inspect(context, u, gradient): work of
// the compute stream (fp32, in unit order; accumulated where gradients are accumulated in place). NULL: no more.
typedef void (*GradsInspect)(void *context, int u, const float *gradient);
void grads_inspect(Grads *grads, GradsInspect inspect, void *context);

// After the last micro-batch: the reduced gradient of shard s of unit u (stages 1–3: the own shard only), in device
// memory, or in host memory where the optimizer is offloaded.
const void *grads_shard(const Grads *grads, int u, int shard);
void grads_wait(Grads *grads, int u);                                 // the compute stream waits until it is there
Dtype grads_dtype(const Grads *grads);

#endif
