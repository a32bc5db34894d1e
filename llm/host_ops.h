// host_ops: the flat operations on host memory, for what is offloaded from the device. They are the CPU backend's kernels
// (AVX-512, AVX2 or plain), run at once by `threads` threads of the caller; the same bits as Ops on any device.
#ifndef LLM_HOST_OPS_H
#define LLM_HOST_OPS_H

#include "llm/ops.h"

void host_adamw(const AdamwArgs *args, int threads);                 // Ops.adamw
void host_convert(void *to, Dtype to_dtype, const void *from, Dtype from_dtype, int64_t len, int threads);  // Ops.convert
void host_sumsq(float *tile_sums, const void *values, Dtype dtype, float divisor, int64_t len, int threads);  // Ops.sumsq_to_host

#endif
