// offload: state that does not stay on the device, the two streams that move it, and what that costs.
//
// ZeRO-Offload (Ren et al. 2021) keeps gradient shards, master weights and moments in host memory and updates them there;
// ZeRO-Infinity (Rajbhandari et al. 2021) goes on to parameters and to NVMe. Here that is one more level below the shards,
// with the same slots and events as the levels above:
//
//     down   a copy stream: reduced gradients go from the device to the host as each unit's reduction ends
//     up     a copy stream: updated parameters go to the device as each tile's update ends
//
// What the levels hold: zero/offload_state.h (optimizer), zero/grads.h (gradient shards), zero/offload_params.h (parameters).
// All is allocated before the first step. The same bits as without offload, always: copies change none, and the update
// runs the same kernel on the host (llm/host_ops.h), whose result does not depend on how a unit is cut into tiles.
#ifndef ZERO_OFFLOAD_H
#define ZERO_OFFLOAD_H

#include "llm/config.h"
#include "llm/model.h"
#include "zero/comm.h"

// What moves, and on what the host or the compute stream stood still.
typedef struct OffloadStats {
    int64_t bytes_down, bytes_up;       // between device and host
    int64_t bytes_read, bytes_written;  // NVMe
    double copy_wait_s, nvme_wait_s;
    double update_s;  // the optimizer's walk over all tiles took, waits included
} OffloadStats;

typedef struct OffloadOptions {
    bool activations;                // block inputs (llm/block_inputs.h)
    OffloadLevel optimizer, params;  // gradient shards are in host memory where optimizer is not OFFLOAD_NONE
    const char *nvme_path;
    size_t nvme_buffer;  // bytes of a request
    int state_kinds;     // of optimizer state: master weights and one moment or two
    bool overlap;        // false: copies happen on the compute stream
    int rank;            // for messages
} OffloadOptions;

typedef struct Offload {
    Device *device;
    OffloadOptions options;
    Stream *compute, *down, *up;
    Stream *fetch;       // parameter shards on their way to the device
    const char *requests;                // how those to files are made, for people; NULL: there are none
    OffloadStats stats;  // of the step
} Offload;

// `offload` is NULL where nothing is offloaded, and all that takes an Offload takes NULL.
Status offload_open(Device *device, Stream *compute, OffloadOptions options, Offload **offload);
void offload_close(Offload *offload);            // waits for the streams; NULL is fine
bool offload_optimizer(const Offload *offload);  // the optimizer's state and the gradient shards are not on the device

// The counters of one step; offload_end_step adds what the model moved and returns them.
void offload_begin_step(Offload *offload, Model *model);
const OffloadStats *offload_end_step(Offload *offload, Model *model);

// Enqueue a copy on `down` or `up`, and count it.
void offload_copy_down(Offload *offload, void *host, const void *device, size_t bytes);
void offload_copy_up(Offload *offload, void *device, const void *host, size_t bytes);
// The host waits for an event of a copy stream, and counts the seconds.
Status offload_sync(Offload *offload, Event *event);
// Wait for all copy streams: their first error, such as a file that could not be read.
Status offload_check(Offload *offload);

#endif
