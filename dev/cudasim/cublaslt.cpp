// cuBLASLt's matmul on the CPU: D = epilogue(alpha · op(A)·op(B) + beta · C), column-major, summed in fp32 in the order
// of k. Supported is what the program uses and what cuBLASLt documents for it: fp32, bf16 and fp16 operands, D in the
// operands' type or fp32, strided batches, the epilogues bias, GELU (tanh form), dGELU and bias gradients. Anything
// else is refused with a line that says what, as the library refuses what it lacks.
//
// The heuristic offers three algorithms, best first: split-K over two halves of k (other bits than the rest, as on a
// GPU), one with a workspace, one without. A workspace is scribbled over, so two streams that share one are found.
#include <cublasLt.h>

#include <cstdio>
#include <cstring>
#include <map>

#include "dev/cudasim/cublaslt_matmul.h"
#include "dev/cudasim/stream.h"

struct cublasLtContext {};

namespace cudasim {
namespace {

enum : uint64_t { ALGORITHM_MAGIC = 0x6375646173696d };
enum : size_t { ALGORITHM_WORKSPACE = 1 << 20 };

struct Preference {
    uint64_t workspace_bytes = 0;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
};
struct Algorithm {  // inside cublasLtMatmulAlgo_t
    uint64_t magic;
    int32_t id, split_k;
    uint32_t reduction;
    uint64_t workspace_bytes;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

cublasStatus_t refuse(const char *what, int value) {
    fprintf(stderr, "cudasim: cublasLt: %s (%d) is not supported\n", what, value);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

const std::map<int, Epilogue> &epilogues() {
    static const std::map<int, Epilogue> table = {
        {CUBLASLT_EPILOGUE_DEFAULT, {}},
        {CUBLASLT_EPILOGUE_BIAS, {true, false, false, false, false, false, false}},
        {CUBLASLT_EPILOGUE_GELU, {false, true, false, false, false, false, false}},
        {CUBLASLT_EPILOGUE_GELU_BIAS, {true, true, false, false, false, false, false}},
        {CUBLASLT_EPILOGUE_GELU_AUX, {false, true, true, false, false, false, false}},
        {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, {true, true, true, false, false, false, false}},
        {CUBLASLT_EPILOGUE_DGELU, {false, false, false, true, false, false, false}},
        {CUBLASLT_EPILOGUE_DGELU_BGRAD, {false, false, false, true, true, false, false}},
        {CUBLASLT_EPILOGUE_BGRADA, {false, false, false, false, false, true, false}},
        {CUBLASLT_EPILOGUE_BGRADB, {false, false, false, false, false, false, true}},
    };
    return table;
}

// ---- arguments ----

bool aligned16(const void *p) {
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

cublasStatus_t check_types(const Matmul &x) {
    cudaDataType t = x.a.type;
    if (t != CUDA_R_32F && t != CUDA_R_16BF && t != CUDA_R_16F)
        return refuse("operand type", t);
    if (x.b.type != t || x.c.type != x.d.type || (x.d.type != t && x.d.type != CUDA_R_32F))
        return refuse("combination of types; D's", x.d.type);
    if (x.bias_type() != x.d.type && !(t != CUDA_R_32F && x.bias_type() == t))
        return refuse("bias type", x.bias_type());
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_epilogue(const Matmul &x) {
    const Epilogue &e = x.epilogue;
    if ((e.adds_bias || e.writes_bias()) && !x.how.bias)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (e.uses_aux() && (!x.how.aux || !aligned16(x.how.aux) || x.how.aux_ld < x.m || x.how.aux_ld % 8))
        return CUBLAS_STATUS_INVALID_VALUE;
    if ((e.uses_aux() || e.writes_bias()) && x.d.batch != 1)
        return refuse("a batch with this epilogue", x.how.epilogue);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_shapes(Matmul &x) {
    bool ta = x.how.transpose_a != CUBLAS_OP_N, tb = x.how.transpose_b != CUBLAS_OP_N;
    uint64_t m = ta ? x.a.columns : x.a.rows, k = ta ? x.a.rows : x.a.columns;
    uint64_t kb = tb ? x.b.columns : x.b.rows, n = tb ? x.b.rows : x.b.columns;
    bool same = k == kb && x.c.rows == m && x.c.columns == n && x.d.rows == m && x.d.columns == n;
    bool batches = x.a.batch == x.d.batch && x.b.batch == x.d.batch && x.c.batch == x.d.batch;
    if (!same || !batches || !m || !n || !k)
        return CUBLAS_STATUS_INVALID_VALUE;
    x.m = static_cast<int>(m);
    x.n = static_cast<int>(n);
    x.k = static_cast<int>(k);
    return CUBLAS_STATUS_SUCCESS;
}

// Copy `bytes` into a field, if they are as many as it has.
template <class T>
cublasStatus_t set(T &field, const void *value, size_t bytes) {
    if (bytes != sizeof field)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

template <class Made, class Handle>
Made *object(Handle handle) {
    return reinterpret_cast<Made *>(handle);
}

}  // namespace
}  // namespace cudasim

using namespace cudasim;
extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    *handle = new cublasLtContext;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() {
    return CUBLAS_VERSION;
}
const char *cublasLtGetStatusName(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
        case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
        case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
        default: return "another cuBLAS status";
    }
}
const char *cublasLtGetStatusString(cublasStatus_t status) {
    return cublasLtGetStatusName(status);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t scale) {
    if ((compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32) || scale != CUDA_R_32F)
        return refuse("compute type", compute);
    auto *d = new Description;
    d->compute = compute;
    *desc = object<cublasLtMatmulDescOpaque_t>(d);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    delete object<Description>(desc);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
    auto *d = object<Description>(desc);
    switch (attribute) {
        case CUBLASLT_MATMUL_DESC_TRANSA: return set(d->transpose_a, value, bytes);
        case CUBLASLT_MATMUL_DESC_TRANSB: return set(d->transpose_b, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(d->epilogue, value, bytes);
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(d->bias, value, bytes);
        case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return set(d->bias_type, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return set(d->aux, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return set(d->aux_ld, value, bytes);
        default: return refuse("descriptor attribute", attribute);
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
    if (ld < static_cast<int64_t>(rows))
        return CUBLAS_STATUS_INVALID_VALUE;
    *layout = object<cublasLtMatrixLayoutOpaque_t>(new Layout{type, rows, columns, ld});
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    delete object<Layout>(layout);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                                                size_t bytes) {
    auto *l = object<Layout>(layout);
    switch (attribute) {
        case CUBLASLT_MATRIX_LAYOUT_TYPE: return set(l->type, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_ROWS: return set(l->rows, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_COLS: return set(l->columns, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_LD: return set(l->ld, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return set(l->batch, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return set(l->stride, value, bytes);
        default: return refuse("layout attribute", attribute);
    }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    *preference = object<cublasLtMatmulPreferenceOpaque_t>(new Preference);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    delete object<Preference>(preference);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes) {
    auto *p = object<Preference>(preference);
    switch (attribute) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return set(p->workspace_bytes, value, bytes);
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return set(p->reductions, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return CUBLAS_STATUS_SUCCESS;  // 16 is asked for anyhow
        default: return refuse("preference attribute", attribute);
    }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found) {
    const auto *p = object<const Preference>(preference);
    const Algorithm offers[] = {
        {ALGORITHM_MAGIC, 1, 2, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, ALGORITHM_WORKSPACE},
        {ALGORITHM_MAGIC, 2, 1, CUBLASLT_REDUCTION_SCHEME_NONE, ALGORITHM_WORKSPACE},
        {ALGORITHM_MAGIC, 3, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0},
    };
    *found = 0;
    for (const Algorithm &offer : offers) {
        bool fits = offer.workspace_bytes <= p->workspace_bytes && (offer.reduction & ~p->reductions) == 0;
        if (!fits || *found == wanted)
            continue;
        cublasLtMatmulHeuristicResult_t &r = results[(*found)++];
        memset(&r, 0, sizeof r);
        memcpy(&r.algo, &offer, sizeof offer);
        r.workspaceSize = offer.workspace_bytes;
        r.state = CUBLAS_STATUS_SUCCESS;
        r.wavesCount = 1.0f;
    }
    return *found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *value,
                                                    size_t bytes, size_t *written) {
    Algorithm a;
    memcpy(&a, algo, sizeof a);
    if (a.magic != ALGORITHM_MAGIC || bytes < 4)
        return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
        case CUBLASLT_ALGO_CONFIG_ID: memcpy(value, &a.id, 4); break;
        case CUBLASLT_ALGO_CONFIG_SPLITK_NUM: memcpy(value, &a.split_k, 4); break;
        case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME: memcpy(value, &a.reduction, 4); break;
        default: return refuse("algorithm attribute", attribute);
    }
    if (written)
        *written = 4;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
    Algorithm algorithm{ALGORITHM_MAGIC, 3, 1, 0, 0};  // what runs without an algorithm
    if (algo)
        memcpy(&algorithm, algo, sizeof algorithm);
    const auto &how = *object<const Description>(desc);
    auto epilogue = epilogues().find(how.epilogue);
    if (epilogue == epilogues().end())
        return refuse("epilogue", how.epilogue);
    Matmul x{how,
             epilogue->second,
             *object<const Layout>(a_layout),
             *object<const Layout>(b_layout),
             *object<const Layout>(c_layout),
             *object<const Layout>(d_layout),
             a,
             b,
             c,
             d,
             *static_cast<const float *>(alpha),
             *static_cast<const float *>(beta),
             0,
             0,
             0,
             algorithm.split_k,
             workspace,
             algorithm.workspace_bytes};
    if (algorithm.magic != ALGORITHM_MAGIC || workspace_bytes < algorithm.workspace_bytes || !aligned16(workspace) ||
        (algorithm.workspace_bytes && !workspace) || !aligned16(a) || !aligned16(b) || !aligned16(c) || !aligned16(d))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (x.d.ld < static_cast<int64_t>(x.d.rows) || (x.beta != 0 && !c))
        return CUBLAS_STATUS_INVALID_VALUE;
    for (auto *check : {+[](Matmul &y) { return check_types(y); }, +[](Matmul &y) { return check_shapes(y); },
                        +[](Matmul &y) { return check_epilogue(y); }})
        if (cublasStatus_t status = check(x))
            return status;
    enqueue(stream, "cublasLtMatmul", [x] {
        matmul_run(x);
        return true;
    });
    return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
