// The vector loops of linear.c, once per instruction set.
#include "llm/cpu/linear.h"

#include "llm/cpu/simd.h"

static const char *at(Dtype dt, const void *array, int64_t i) {
    return (const char *)array + (size_t)i * dtype_bytes(dt);
}

// dt is a constant where these are inlined, so that the loops have no branches on it.
SIMD void widen_row(float *to, Dtype dt, const void *from, int64_t cols) {
    int64_t j = 0;
    for (; j + 16 <= cols; j += 16)
        v_store_fp32(to + j, v_load(dt, from, j));
    if (j < cols)
        v_store_n(DTYPE_FP32, to, j, v_load_n(dt, from, j, (int)(cols - j)), (int)(cols - j));
}

static void widen(float *to, Dtype dt, const void *from, int64_t ld, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; i++) {
        const void *row = at(dt, from, i * ld);
        if (dt == DTYPE_BF16)
            widen_row(to + i * cols, DTYPE_BF16, row, cols);
        else if (dt == DTYPE_FP16)
            widen_row(to + i * cols, DTYPE_FP16, row, cols);
        else
            memcpy(to + i * cols, row, (size_t)cols * sizeof(float));
    }
}

SIMD void finish_row(void *y, Dtype y_dtype, const float *sums, Dtype dt, const void *bias, const void *residual,
                     int64_t cols) {
    int64_t j = 0;
    for (; j + 16 <= cols; j += 16) {
        f32x16 v = v_load_fp32(sums + j);
        if (bias)
            v += v_load(dt, bias, j);
        if (residual)
            v += v_load(dt, residual, j);
        v_store(y_dtype, y, j, v);
    }
    if (j < cols) {
        int n = (int)(cols - j);
        f32x16 v = v_load_n(DTYPE_FP32, sums, j, n);
        if (bias)
            v += v_load_n(dt, bias, j, n);
        if (residual)
            v += v_load_n(dt, residual, j, n);
        v_store_n(y_dtype, y, j, v, n);
    }
}

static void finish(void *y, Dtype y_dtype, int64_t ld_y, const float *sums, Dtype dt, const void *bias,
                   const void *residual, int64_t ld_residual, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; i++) {
        void *to = (char *)y + (size_t)(i * ld_y) * dtype_bytes(y_dtype);
        const void *add = residual ? at(dt, residual, i * ld_residual) : NULL;
        if (y_dtype == DTYPE_BF16)
            finish_row(to, DTYPE_BF16, sums + i * cols, DTYPE_BF16, bias, add, cols);
        else if (y_dtype == DTYPE_FP16)
            finish_row(to, DTYPE_FP16, sums + i * cols, DTYPE_FP16, bias, add, cols);
        else
            finish_row(to, DTYPE_FP32, sums + i * cols, dt, bias, add, cols);
    }
}

// Sums of up to 64 rows are formed first and then added to the total: the error grows with 64 + rows/64 instead of
// rows.
enum { SUM_ROWS = 64 };

SIMD void sum_strip(float *db, Dtype dt, const void *dy, int64_t ld, int64_t rows, int vectors, bool accumulate) {
    f32x16 total[8], sum[8];
    for (int v = 0; v < vectors; v++)
        total[v] = accumulate ? v_load_fp32(db + 16 * v) : v_zero();
    for (int64_t r = 0; r < rows; r += SUM_ROWS) {
        int64_t end = r + SUM_ROWS < rows ? r + SUM_ROWS : rows;
        for (int v = 0; v < vectors; v++)
            sum[v] = v_zero();
        for (int64_t i = r; i < end; i++)
            for (int v = 0; v < vectors; v++)
                sum[v] += v_load(dt, dy, i * ld + 16 * v);
        for (int v = 0; v < vectors; v++)
            total[v] += sum[v];
    }
    for (int v = 0; v < vectors; v++)
        v_store_fp32(db + 16 * v, total[v]);
}

SIMD void sum_column(float *db, Dtype dt, const void *dy, int64_t ld, int64_t rows, bool accumulate) {
    float total = accumulate ? *db : 0.0f;
    for (int64_t r = 0; r < rows; r += SUM_ROWS) {
        int64_t end = r + SUM_ROWS < rows ? r + SUM_ROWS : rows;
        float sum = 0.0f;
        for (int64_t i = r; i < end; i++)
            sum += dtype_load(dt, dy, (size_t)(i * ld));
        total += sum;
    }
    *db = total;
}

SIMD void sum_columns(float *db, Dtype dt, const void *dy, int64_t ld, int64_t rows, int64_t cols, bool accumulate) {
    int64_t j = 0;
    for (; j + 128 <= cols; j += 128)
        sum_strip(db + j, dt, at(dt, dy, j), ld, rows, 8, accumulate);
    for (; j + 16 <= cols; j += 16)
        sum_strip(db + j, dt, at(dt, dy, j), ld, rows, 1, accumulate);
    for (; j < cols; j++)
        sum_column(db + j, dt, at(dt, dy, j), ld, rows, accumulate);
}

static void column_sums(float *db, Dtype dt, const void *dy, int64_t ld, int64_t rows, int64_t cols, bool accumulate) {
    if (dt == DTYPE_BF16)
        sum_columns(db, DTYPE_BF16, dy, ld, rows, cols, accumulate);
    else if (dt == DTYPE_FP16)
        sum_columns(db, DTYPE_FP16, dy, ld, rows, cols, accumulate);
    else
        sum_columns(db, DTYPE_FP32, dy, ld, rows, cols, accumulate);
}

const LinearKernels ISA_NAME(linear_kernels) = {.widen = widen, .finish = finish, .column_sums = column_sums};
