// gemm by OpenBLAS: fp32 alone, and nothing fused.
#ifdef HAVE_OPENBLAS
#include "llm/cpu/gemm.h"

#include <cblas.h>
#include <omp.h>

bool gemm_fuses(void) {
    return false;
}

Status gemm_scratch(const Gemm *g, size_t *bytes) {
    (void)g;
    *bytes = 0;
    return OK;
}

Status gemm(const Gemm *g, void *c, const void *a, const void *b, const void *bias, const void *residual,
            void *scratch) {
    (void)bias, (void)residual, (void)scratch;
    if (g->m > INT32_MAX || g->n > INT32_MAX || g->k > INT32_MAX || g->lda > INT32_MAX || g->ldb > INT32_MAX ||
        g->ldc > INT32_MAX)
        return fail("OpenBLAS counts in 32 bits and cannot multiply (%lld x %lld x %lld); build with oneDNN",
                    (long long)g->m, (long long)g->n, (long long)g->k);
    openblas_set_num_threads(omp_get_max_threads());
    cblas_sgemm(CblasRowMajor, g->transpose_a ? CblasTrans : CblasNoTrans, g->transpose_b ? CblasTrans : CblasNoTrans,
                (int)g->m, (int)g->n, (int)g->k, 1.0f, a, (int)g->lda, b, (int)g->ldb,
                g->add == GEMM_ADD_C ? 1.0f : 0.0f, c, (int)g->ldc);
    return OK;
}
#endif
