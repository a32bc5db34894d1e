#include "llm/cuda/linear_plans.cuh"

#include <cublasLt.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "llm/cuda/library.cuh"

#define CUBLASLT_FUNCTIONS(X) X(cublasLtCreate) X(cublasLtDestroy) X(cublasLtGetStatusString)  \
    X(cublasLtGetVersion) X(cublasLtMatmul) X(cublasLtMatmulAlgoConfigGetAttribute)            \
    X(cublasLtMatmulAlgoGetHeuristic) X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy) \
    X(cublasLtMatmulDescSetAttribute) X(cublasLtMatmulPreferenceCreate)                        \
    X(cublasLtMatmulPreferenceDestroy) X(cublasLtMatmulPreferenceSetAttribute)                 \
    X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy)

LIBRARY(CublasLt, CUBLASLT_FUNCTIONS);
static CublasLt cublaslt;

struct LinearPlan {
    LinearShape shape;
    bool found;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c, d;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace_bytes;  // that the algorithm needs
};

struct LinearPlans {
    cublasLtHandle_t handle;
    bool tf32;
    LinearPlan **list;
    int len, room;
};

namespace {

enum { OFFERS = 16, ALIGNMENT = 16 };

#define TRY_LT(call)                                                                                        \
    do {                                                                                                    \
        cublasStatus_t lt_status_ = (call);                                                                 \
        if (lt_status_ != CUBLAS_STATUS_SUCCESS)                                                            \
            return fail("cuBLASLt: %s: %s", #call, cublaslt.cublasLtGetStatusString(lt_status_));                     \
    } while (0)

cudaDataType_t data_type(Dtype dt) {
    return dt == DTYPE_FP32 ? CUDA_R_32F : dt == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

bool equal(const LinearShape *a, const LinearShape *b) {
    return a->dt == b->dt && a->d_dtype == b->d_dtype && a->transpose_a == b->transpose_a &&
           a->transpose_b == b->transpose_b && a->bias == b->bias && a->m == b->m && a->n == b->n && a->k == b->k &&
           a->lda == b->lda && a->ldb == b->ldb && a->ldc == b->ldc && a->ldd == b->ldd;
}

Status layout(cublasLtMatrixLayout_t *layout, Dtype dt, bool transposed, int64_t rows, int64_t columns, int64_t ld) {
    uint64_t r = static_cast<uint64_t>(transposed ? columns : rows), c = static_cast<uint64_t>(transposed ? rows : columns);
    TRY_LT(cublaslt.cublasLtMatrixLayoutCreate(layout, data_type(dt), r, c, ld));
    return OK;
}

Status describe(LinearPlan *p, bool tf32) {
    const LinearShape *s = &p->shape;
    cublasOperation_t a = s->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, b = s->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = s->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    cublasComputeType_t compute = tf32 && s->dt == DTYPE_FP32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    TRY_LT(cublaslt.cublasLtMatmulDescCreate(&p->product, compute, CUDA_R_32F));
    TRY_LT(cublaslt.cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a));
    TRY_LT(cublaslt.cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b));
    TRY_LT(cublaslt.cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    const void *aligned = reinterpret_cast<const void *>(uintptr_t{ALIGNMENT});
    if (s->bias)  // the heuristic takes this pointer for the alignment of all
        TRY_LT(cublaslt.cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &aligned, sizeof aligned));
    TRY(layout(&p->a, s->dt, s->transpose_a, s->m, s->k, s->lda));
    TRY(layout(&p->b, s->dt, s->transpose_b, s->k, s->n, s->ldb));
    TRY(layout(&p->c, s->d_dtype, false, s->m, s->n, s->ldc));
    return layout(&p->d, s->d_dtype, false, s->m, s->n, s->ldd);
}

Status set_preference(cublasLtMatmulPreference_t preference) {
    const uint64_t workspace = LINEAR_WORKSPACE_MOST;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE, alignment = ALIGNMENT;
    TRY_LT(cublaslt.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                sizeof workspace));
    TRY_LT(cublaslt.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                                sizeof reductions));
    for (cublasLtMatmulPreferenceAttributes_t operand :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        TRY_LT(cublaslt.cublasLtMatmulPreferenceSetAttribute(preference, operand, &alignment, sizeof alignment));
    return OK;
}

// Whether each sum stays with one thread block, so that its order is fixed.
bool sums_in_one_piece(const cublasLtMatmulAlgo_t *algorithm) {
    int32_t split_k = 0;
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_MASK;
    size_t written;
    return cublaslt.cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split_k, sizeof split_k,
                                                &written) == CUBLAS_STATUS_SUCCESS &&
           cublaslt.cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                                sizeof reduction, &written) == CUBLAS_STATUS_SUCCESS &&
           split_k <= 1 && reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
}

Status choose(const LinearPlans *plans, LinearPlan *p, cublasLtMatmulPreference_t preference) {
    TRY(set_preference(preference));
    cublasLtMatmulHeuristicResult_t offers[OFFERS];
    int n = 0;
    cublasStatus_t status = cublaslt.cublasLtMatmulAlgoGetHeuristic(plans->handle, p->product, p->a, p->b, p->c, p->d, preference,
                                                           OFFERS, offers, &n);
    if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED)
        return fail("cuBLASLt offers no algorithm for a product of %lld x %lld x %lld: %s", (long long)p->shape.m,
                    (long long)p->shape.n, (long long)p->shape.k, cublaslt.cublasLtGetStatusString(status));
    for (int i = 0; i < n && !p->found; i++) {
        if (offers[i].state == CUBLAS_STATUS_SUCCESS && sums_in_one_piece(&offers[i].algo)) {
            p->algorithm = offers[i].algo;
            p->workspace_bytes = offers[i].workspaceSize;
            p->found = true;
        }
    }
    return OK;
}

Status make(const LinearPlans *plans, LinearPlan *p) {
    TRY(describe(p, plans->tf32));
    cublasLtMatmulPreference_t preference;
    TRY_LT(cublaslt.cublasLtMatmulPreferenceCreate(&preference));
    Status status = choose(plans, p, preference);
    cublaslt.cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

void destroy(LinearPlan *p) {
    for (cublasLtMatrixLayout_t layout : {p->a, p->b, p->c, p->d})
        if (layout)
            cublaslt.cublasLtMatrixLayoutDestroy(layout);
    if (p->product)
        cublaslt.cublasLtMatmulDescDestroy(p->product);
    free(p);
}

}  // namespace

Status linear_plans_open(bool tf32, LinearPlans **plans) {
    *plans = nullptr;
    TRY(cublaslt.load(LIBRARY_FILE("libcublasLt", CUBLAS_VER_MAJOR)));
    *plans = static_cast<LinearPlans *>(calloc(1, sizeof **plans));
    if (!*plans)
        return fail("out of host memory");
    (*plans)->tf32 = tf32;
    cublasStatus_t status = cublaslt.cublasLtCreate(&(*plans)->handle);
    if (status == CUBLAS_STATUS_SUCCESS)
        return OK;
    free(*plans);
    return fail("cannot start cuBLASLt: %s", cublaslt.cublasLtGetStatusString(status));
}

void linear_plans_close(LinearPlans *plans) {
    if (!plans)
        return;
    for (int i = 0; i < plans->len; i++)
        destroy(plans->list[i]);
    free(plans->list);
    cublaslt.cublasLtDestroy(plans->handle);
    free(plans);
}

size_t linear_library_version(void) {
    return cublaslt.cublasLtGetVersion();
}

Status linear_plan(LinearPlans *plans, const LinearShape *shape, const LinearPlan **plan) {
    *plan = nullptr;
    for (int i = 0; i < plans->len; i++) {
        if (equal(&plans->list[i]->shape, shape)) {
            *plan = plans->list[i]->found ? plans->list[i] : nullptr;
            return OK;
        }
    }
    if (plans->len == plans->room) {
        int room = plans->room ? 2 * plans->room : 64;
        void *grown = realloc(plans->list, static_cast<size_t>(room) * sizeof *plans->list);
        if (!grown)
            return fail("out of host memory");
        plans->list = static_cast<LinearPlan **>(grown);
        plans->room = room;
    }
    LinearPlan *p = static_cast<LinearPlan *>(calloc(1, sizeof *p));
    if (!p)
        return fail("out of host memory");
    p->shape = *shape;
    Status status = make(plans, p);
    if (status != OK) {
        destroy(p);
        return status;
    }
    if (!p->found)
        fprintf(stderr, "cuBLASLt has no algorithm that keeps sums in one piece for a product of %lld x %lld x %lld (%s): it goes "
                "to a plain kernel, hundreds of times slower\n", (long long)shape->m, (long long)shape->n,
                (long long)shape->k, dtype_name(shape->dt));
    plans->list[plans->len++] = p;
    *plan = p->found ? p : nullptr;
    return OK;
}

size_t linear_plan_workspace(const LinearPlan *p) {
    return p->workspace_bytes;
}

Status linear_plan_run(const LinearPlans *plans, const LinearPlan *p, void *d, const void *a, const void *b,
                       const void *c, float beta, const void *bias, void *workspace, cudaStream_t stream) {
    const float alpha = 1.0f;
    if (p->shape.bias)
        TRY_LT(cublaslt.cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    TRY_LT(cublaslt.cublasLtMatmul(plans->handle, p->product, &alpha, a, p->a, b, p->b, &beta, c, p->c, d, p->d, &p->algorithm,
                          workspace, p->workspace_bytes, stream));
    return OK;
}
