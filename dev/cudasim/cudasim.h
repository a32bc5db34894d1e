// cudasim: CUDA C++ compiled by g++ and run on the CPU. This header is force-included before every .cu file
// (-include dev/cudasim/cudasim.h); it adds to the real CUDA headers what nvcc adds to C++. README.md tells the rest.
#ifndef DEV_CUDASIM_CUDASIM_H
#define DEV_CUDASIM_CUDASIM_H

#define CUDASIM 1

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "dev/cudasim/atomics.h"
#include "dev/cudasim/guard.h"
#include "dev/cudasim/intrinsics.h"
#include "dev/cudasim/kernel.h"
#include "dev/cudasim/ptx.h"
#include "dev/cudasim/warp.h"

#endif
