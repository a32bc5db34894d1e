// linear_plans: the matmuls of cuBLASLt that this run has met, each with the algorithm chosen for it once.
#ifndef LLM_CUDA_LINEAR_PLANS_CUH
#define LLM_CUDA_LINEAR_PLANS_CUH

#include <cublasLt.h>

#include "llm/cuda/device_cuda.cuh"

Status linear_plans_open(LinearPlans **plans);
void linear_plans_close(LinearPlans *plans);  // NULL is fine
size_t linear_library_version(void);

#endif
