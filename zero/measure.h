// measure: what this machine and its network can do, for --plan --measure.
#ifndef ZERO_MEASURE_H
#define ZERO_MEASURE_H

#include "zero/plan_cluster.h"
#include "zero/comm.h"

// FLOP/s of a rank in training: the measured matmul peak times MEASURE_FRACTION, about what a step of a larger model reaches
// of it (make bench). Bytes/s that a rank sends while all ranks gather, the best of a few; 0 for one rank. Collective.
#define MEASURE_FRACTION 0.75
Status measure_speed(Device *device, const CommWorld *world, const Config *config, ClusterSpeed *speed);
// The last three of ClusterSpeed, of this rank alone; the disk's with --nvme-path.
Status measure_offload(Device *device, Stream *stream, const Config *config, ClusterSpeed *speed);

#endif
