// plan_cluster: what --plan prints. For a model (or a number of parameters), N ranks, a device's memory and the speeds of
// device and network: bytes of a rank, bytes sent, seconds and tokens/s for every stage, the largest micro-batch that
// fits, and which stage to take. Without --ranks: the fewest ranks of each stage.
//
// Seconds come from zero/traffic.h: a unit's compute is its matmul FLOPs (forward one part, backward two, recompute what it
// repeats) over the FLOP/s that a rank reaches in training; all ranks have a link of the same bandwidth to themselves.
#ifndef ZERO_PLAN_CLUSTER_H
#define ZERO_PLAN_CLUSTER_H

#include <stdio.h>

#include "llm/config.h"

typedef struct ClusterSpeed {
    double flops;        // FLOP/s that a rank reaches in training; 0: unknown
    double bytes_per_s;  // that a rank can send; 0: unknown
    // What offload needs, all 0 without --measure: copies between device and host, elements that the host updates, and
    // bytes that its disk reads and writes together.
    double copy_bytes_per_s, update_len_per_s, nvme_bytes_per_s;
} ClusterSpeed;

// The config is resolved for config->ranks. `device` is of the kind that is planned for; nothing is allocated on it.
Status plan_cluster(const Config *config, Device *device, ClusterSpeed speed, FILE *file);

#endif
