// host_ops: the flat operations on host memory, for what is offloaded from the device. They are the CPU backend's kernels
// (AVX-512, AVX2 or plain), run at once by `threads` threads of the caller; the same bits as Ops on any device.
#ifndef LLM_HOST_OPS_H
#define LLM_HOST_OPS_H

#include "llm/ops.h"

// As Ops.adamw, Ops.convert and Ops.sumsq_to_host.
void host_adamw(const AdamwArgs *args, int threads);
void host_convert(void *to, Dtype to_dtype, const void *from, Dtype from_dtype, int64_t len, int threads);
void host_sumsq(float *tile_sums, const void *values, Dtype dtype, float divisor, int64_t len, int threads);

// Cores for this process, one of local_size on this host: those its launcher bound it to, or if it did not, a fair share.
int host_cores(int local_size);

#endif
