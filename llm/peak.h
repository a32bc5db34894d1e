// peak: how fast this device multiplies matrices, measured, so that a run can say which fraction of it is used.
#ifndef LLM_PEAK_H
#define LLM_PEAK_H

#include "llm/ops.h"

// FLOP/s of large square products in dt: the best of rounds of `round_seconds` each, `rounds` of them.
// Buffers are allocated under MEM_WORKSPACE and freed again: call it before the model's memory is made.
Status peak_measure(Device *device, Stream *compute, Dtype dt, int rounds, double round_seconds, double *flops);

#endif
