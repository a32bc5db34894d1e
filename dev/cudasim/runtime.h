// runtime: what the files of the CUDA runtime API share.
#ifndef DEV_CUDASIM_RUNTIME_H
#define DEV_CUDASIM_RUNTIME_H

#include <cuda_runtime_api.h>

namespace cudasim {

// The error that cudaGetLastError will return, and the result of the call that failed.
cudaError_t failed(cudaError_t error);

// The dynamic shared memory that cudaFuncSetAttribute has allowed a kernel; 48 KiB without.
size_t allowed_shared_bytes(const void *kernel);

}  // namespace cudasim

#endif
