// linear: the linear layers of ops.h on the CPU. A library multiplies (gemm.h); this decides what it is given.
//
// Whole      Dense operands of a dtype that the machine multiplies itself go to the library as they are, bias and
//            residual fused.
// In tiles   Everything else: fp16 (and bf16 on a machine without it) is converted exactly to fp32 in tiles, padded
//            logits leave through a dense tile, and products with a vocabulary on one side are cut for the caches.
//            Products are summed in an fp32 tile, and bias and residual are added there before the one rounding.
//
// With oneDNN on AVX-512 a row of y or dx has the same bits however many rows the call has. Elsewhere that holds for
// calls cut at multiples of LINEAR_ROW_TILE rows. dw and db sum over the rows of a call, so they depend on where calls
// are cut.
#ifndef LLM_CPU_LINEAR_H
#define LLM_CPU_LINEAR_H

#include "llm/cpu/cpu.h"

enum { LINEAR_ROW_TILE = 256 };

void cpu_linear_forward(Stream *stream, Dtype dt, void *y, Dtype y_dtype, int64_t ld_y, const void *x, const void *w,
                        const void *bias, const void *residual, int64_t rows, int64_t in, int64_t out);
void cpu_linear_backward_input(Stream *stream, Dtype dt, void *dx, const void *dy, int64_t ld_dy, const void *w,
                               int64_t rows, int64_t in, int64_t out);
void cpu_linear_backward_weight(Stream *stream, Dtype dt, float *dw, float *db, const void *dy, int64_t ld_dy,
                                const void *x, int64_t rows, int64_t in, int64_t out, bool accumulate);
// sums (cols) (+)= column sums of x (rows, cols; ld), in the order of the rows.
void cpu_column_sums(Stream *stream, Dtype dt, float *sums, const void *x, int64_t ld, int64_t rows, int64_t cols,
                     bool accumulate);
size_t cpu_linear_scratch(Device *device, Dtype dt, Dtype y_dtype, int64_t ld_y, int64_t rows, int64_t in, int64_t out,
                          bool with_backward);

// The vector loops around the products, for one thread each.
typedef struct LinearKernels {
    // to (rows, cols) dense fp32 = from (rows, cols; ld)
    void (*widen)(float *to, Dtype dt, const void *from, int64_t ld, int64_t rows, int64_t cols);
    // y (rows, cols; ld_y) = round(sums (rows, cols) + bias (cols) + residual (rows, cols; ld_residual)); either may be
    // NULL
    void (*finish)(void *y, Dtype y_dtype, int64_t ld_y, const float *sums, Dtype dt, const void *bias,
                   const void *residual, int64_t ld_residual, int64_t rows, int64_t cols);
    // db (cols) (+)= column sums of dy (rows, cols; ld), in the order of the rows
    void (*column_sums)(float *db, Dtype dt, const void *dy, int64_t ld, int64_t rows, int64_t cols, bool accumulate);
} LinearKernels;
ISA_DECLARE(LinearKernels, linear_kernels);

#endif
