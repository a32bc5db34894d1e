#include "llm/cuda/linear_plans.cuh"

#include <cstdlib>

struct LinearPlans {
    cublasLtHandle_t handle;
};

Status linear_plans_open(LinearPlans **plans) {
    *plans = static_cast<LinearPlans *>(calloc(1, sizeof **plans));
    if (!*plans)
        return fail("out of host memory");
    cublasStatus_t status = cublasLtCreate(&(*plans)->handle);
    if (status == CUBLAS_STATUS_SUCCESS)
        return OK;
    free(*plans);
    return fail("cannot start cuBLASLt: %s", cublasLtGetStatusString(status));
}

void linear_plans_close(LinearPlans *plans) {
    if (!plans)
        return;
    cublasLtDestroy(plans->handle);
    free(plans);
}

size_t linear_library_version(void) {
    return cublasLtGetVersion();
}
