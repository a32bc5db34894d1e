// gemm: one product of row-major matrices by a library, oneDNN (gemm_onednn.c) or OpenBLAS (gemm_openblas.c).
//
//     c(m, n) = op(a)·op(b) [+ bias(n)] [+ residual(m, n) or + c]        sums in fp32, rounded once to c_dtype
//
// The library runs on all OpenMP threads of the caller. What it prepares for a shape (machine code) is kept for the
// life of the process: gemm_scratch prepares ahead of time, gemm when it must.
#ifndef LLM_CPU_GEMM_H
#define LLM_CPU_GEMM_H

#include "llm/device.h"

typedef enum GemmAdd { GEMM_ADD_NOTHING, GEMM_ADD_C, GEMM_ADD_RESIDUAL } GemmAdd;

typedef struct Gemm {
    Dtype dt;                       // of a, b, bias and residual
    Dtype c_dtype;                  // dt or fp32
    bool transpose_a, transpose_b;  // a is stored (k, m) instead of (m, k); b is stored (n, k) instead of (k, n)
    bool bias;
    GemmAdd add;  // GEMM_ADD_RESIDUAL: residual is dense, ld = n
    int64_t m, n, k;
    int64_t lda, ldb, ldc;  // elements from row to row, as stored
} Gemm;

// True if the library multiplies dense matrices with bias and residual in one pass and sums each element in an order
// that does not depend on m, so that a row's bits are the same however many rows a call has. Otherwise only fp32
// products with GEMM_ADD_NOTHING or GEMM_ADD_C may be asked for, and a row's bits are the same only for the same m and
// place.
bool gemm_fuses(void);

// Prepares g and puts the bytes of scratch that it needs into *bytes.
Status gemm_scratch(const Gemm *g, size_t *bytes);
Status gemm(const Gemm *g, void *c, const void *a, const void *b, const void *bias, const void *residual,
            void *scratch);

#endif
