// params: a rank's parameters, and how a unit comes to be whole when it is needed.
//
//   stages 0–2   every rank keeps every unit. acquire and release do nothing but wait for params_publish's all-gather.
//   stage 3      a rank keeps its shard of each unit. acquire gathers the unit into a slot (and starts the gather of the
//                next one, on the gather stream); release lets the slot be used again. Where parameters are offloaded,
//                the shard of the one after that is fetched to the device meanwhile (zero/offload_params.h).
//
// Slots: two for blocks, used in turn, and one shared by units 0 and L+1. A slot has two events: `ready`, recorded after the
// gather that filled it, and `released`, recorded on the compute stream after the last use. compute waits for ready,
// the next gather into the slot waits for released. What is still in a slot is not gathered again.
#ifndef ZERO_PARAMS_H
#define ZERO_PARAMS_H

#include "llm/model.h"
#include "zero/comm.h"
#include "zero/layout.h"
#include "zero/offload.h"

typedef enum Direction { FORWARD, BACKWARD } Direction;  // which unit comes next

typedef struct Params Params;

enum { PARAMS_ROOMS = 2 };  // tiles that wait for their way to the device: one is filled while the other is copied

typedef struct ZeroOptions {
    int stage;
    Dtype dtype;        // parameters and activations
    Dtype grad_dtype;   // what a rank keeps of gradients
    Dtype reduce_dtype; // what travels
    bool training;      // false: no gradients, no optimizer state
} ZeroOptions;

Status params_open(Device *device, const Layout *layout, Comm *comm, Stream *compute, Stream *gather, ZeroOptions options,
                   Offload *offload, Params **params);
void params_close(Params *params);

// The unit, whole, for work on the compute stream. For a tied head (u == L+1) unit 0 comes with it.
UnitParams params_acquire(Params *params, int u, Direction next);
void params_release(Params *params, int u);

// The rank's own shard of unit u (stage 0: shard s of the replica), in device memory: where the optimizer writes. NULL where
// parameters are offloaded.
void *params_shard(Params *params, int u);
// Stages 1, 2: the shard of unit u was updated on the compute stream; gather it to all ranks. Stage 0 and 3: nothing to do,
// but stage 3 forgets what its slots held.
void params_publish(Params *params, int u);

// The compute stream waits until a gather that params_publish started is over: it may write the own shard once more, with
// what is there, and so must not meet whoever reads it.
void params_wait_published(Params *params, int u);

// Where the optimizer is offloaded it writes tile by tile (zero/offload_state.h): into host memory with room for a tile, from
// which params_put sends elements [begin, begin + len) of the own shard of unit u on their way. params_flush: the device, or
// the file, has them all.
Status params_room(Params *params, int u, int64_t begin, void **room);
Status params_put(Params *params, int u, int64_t begin, int64_t len);
Status params_flush(Params *params);

#endif
