// cuda: what the files of the CUDA backend share. Reached from outside only through device.h and ops.h.
//
// One family of kernels a file. Each exports functions named cuda_… with the signature of the entry of Ops that they
// implement (llm/ops.h says what they compute); ops_cuda.cu puts them into the table. They start with
//
//     cudaStream_t s = cuda_begin(stream);
//     if (!s) return;                                    // the stream has failed before: its work is dropped
//     LAUNCH((kernel<T>), (grid, block, 0, s), …);
//     cuda_end(stream, "norm_forward");                  // an error of the launch becomes the stream's
#ifndef LLM_CUDA_CUDA_CUH
#define LLM_CUDA_CUDA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

extern "C" {
#include "llm/device_backend.h"
#include "llm/ops.h"
}
#include "llm/cuda/launch.cuh"

// The CUDA stream behind a stream; NULL if the stream has failed.
cudaStream_t cuda_begin(Stream *stream);
// After launches: what cudaGetLastError says becomes the stream's error, with the operation's name.
void cuda_end(Stream *stream, const char *operation);
// The device's scratch arena (256-byte aligned), which must hold `bytes`; NULL after failing the stream if it does not.
void *cuda_scratch(Stream *stream, size_t bytes);
// Of the device that is in use: for the size of a grid.
int cuda_multiprocessors(const Stream *stream);

#endif
