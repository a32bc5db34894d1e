// linear_plans: the matmuls of cuBLASLt that this run has met, each with the algorithm chosen for it once.
//
// The algorithm is the first that the library's heuristic offers which keeps every sum in one piece: no split-K, no
// reduction between thread blocks. It depends on the shape, the device and the library's version only, so the bits of a
// product do, too. Offers are for operands aligned to 16 bytes, whatever the alignment at hand.
//
// In the library's column-major words: D (m, n) = op(A)·op(B) + beta·C + bias (m), summed in fp32, rounded once to D's
// type. A and B are of type dt; C and D of d_dtype, as is the bias.
#ifndef LLM_CUDA_LINEAR_PLANS_CUH
#define LLM_CUDA_LINEAR_PLANS_CUH

#include "llm/cuda/device_cuda.cuh"

typedef struct LinearShape {
    Dtype dt, d_dtype;
    bool transpose_a, transpose_b, bias;
    int64_t m, n, k;
    int64_t lda, ldb, ldc, ldd;  // elements between columns as the matrices lie in memory
} LinearShape;

typedef struct LinearPlan LinearPlan;

// The most scratch that an algorithm may need (the library's guide offers 32 MiB on sm_90).
enum { LINEAR_WORKSPACE_MOST = 32 << 20 };

// `tf32`: products of fp32 round their operands to TF32 (10 bits of mantissa), for tensor cores.
Status linear_plans_open(bool tf32, LinearPlans **plans);
void linear_plans_close(LinearPlans *plans);  // NULL is fine
size_t linear_library_version(void);

// The plan for a shape, made when it is asked for first. *plan is NULL where the library has no algorithm of this kind.
Status linear_plan(LinearPlans *plans, const LinearShape *shape, const LinearPlan **plan);
size_t linear_plan_workspace(const LinearPlan *plan);  // bytes of scratch that it needs
// Enqueue. Pointers are aligned to 16 bytes; bias is NULL unless the shape has one.
Status linear_plan_run(const LinearPlans *plans, const LinearPlan *plan, void *d, const void *a, const void *b,
                       const void *c, float beta, const void *bias, void *workspace, cudaStream_t stream);

#endif
