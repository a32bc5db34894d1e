// device_cuda: what hangs behind Device.impl on CUDA. For device_cuda.cu and linear.cu.
#ifndef LLM_CUDA_DEVICE_CUDA_CUH
#define LLM_CUDA_DEVICE_CUDA_CUH

#include "llm/cuda/cuda.cuh"

typedef struct LinearPlans LinearPlans;  // linear_plans.cu

typedef struct CudaDevice {
    int multiprocessors;
    LinearPlans *linear;  // matmul algorithms by shape
} CudaDevice;

static inline CudaDevice *cuda_device(const Device *device) {
    return static_cast<CudaDevice *>(device->impl);
}

#endif
