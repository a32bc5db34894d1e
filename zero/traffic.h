// traffic: what a rank sends in one step and how long the step takes, from the layout alone.
//
// traffic_predict makes a step's calls in their order (acquire, compute, reduce, publish: train_gpt.c) on three clocks,
// one for each stream, and on a fourth for the link that gathers and reductions share. A unit travels when zero/params.c
// and zero/grads.c would send it; what is still in a slot is not gathered again. So one walk gives both:
//
//   bytes     exact: a run counts the same ones, for any stage, N, group, dtype and grad_accum, after a step that was
//             applied (a skipped step leaves the slots filled, and so may validation before the step);
//   seconds   of a step in the steady state, when a unit's compute and the link's speed are known. Latency, the
//             optimizer's arithmetic on the device and the additions of reductions are taken as nothing.
//
// What is offloaded has clocks of its own: fetched shards, gradients on their way down, and the update, of whose copies,
// requests and arithmetic the slowest sets the time. Its bytes are exact as well.
//
// Beside it the textbook (Rajbhandari et al. 2020, section 7): 2Ψ elements a step in stages 0–2, 3Ψ in stage 3, times
// (N-1)/N.
#ifndef ZERO_TRAFFIC_H
#define ZERO_TRAFFIC_H

#include "zero/comm.h"
#include "zero/offload.h"
#include "zero/params.h"

typedef struct TrafficInput {
    const Layout *layout;
    CommShape shape;
    ZeroOptions zero;
    OffloadOptions offload;
    int64_t input_bytes;                       // of a block's input, if it is offloaded; else 0
    int grad_accum;
    bool overlap;
    // For seconds; all 0: bytes alone.
    double block_forward_s, block_backward_s;  // of one block and micro-batch
    double loss_s;                             // of the head, forward and backward
    double bytes_per_s;                        // that a rank can send; 0: no limit
    double copy_bytes_per_s;                   // between device and host, each way; 0: no limit, as for the two below
    double nvme_bytes_per_s;                   // read and written together, half and half
    double update_len_per_s;                   // elements that the host updates
} TrafficInput;

typedef struct Traffic {
    int64_t bytes[COMM_COLLECTIVES];  // a rank sends; COMM_HOST_VALUES are not predicted
    int64_t total_bytes;
    OffloadStats offload;             // bytes alone
    double compute_s;                 // the compute stream works
    double comm_s;                    // the link is busy
    double step_s;                    // a step takes; what exceeds compute_s is communication that nothing hides
} Traffic;

// Fails when there is no host memory.
Status traffic_predict(const TrafficInput *input, Traffic *traffic);

// The textbook's bytes for the same step: Ψ elements each time that parameters or gradients travel.
double traffic_textbook(const TrafficInput *input);

#endif
