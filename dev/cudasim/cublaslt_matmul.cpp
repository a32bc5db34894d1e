#include "dev/cudasim/cublaslt_matmul.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "dev/cudasim/memory.h"

namespace cudasim {
namespace {

// ---- elements ----

size_t size_of(cudaDataType type) {
    return type == CUDA_R_32F ? 4 : 2;
}
float load(const void *p, cudaDataType type, size_t i) {
    switch (type) {
        case CUDA_R_32F: return static_cast<const float *>(p)[i];
        case CUDA_R_16BF: return __bfloat162float(static_cast<const __nv_bfloat16 *>(p)[i]);
        default: return __half2float(static_cast<const __half *>(p)[i]);
    }
}
void store(void *p, cudaDataType type, size_t i, float v) {
    switch (type) {
        case CUDA_R_32F: static_cast<float *>(p)[i] = v; break;
        case CUDA_R_16BF: static_cast<__nv_bfloat16 *>(p)[i] = __float2bfloat16(v); break;
        default: static_cast<__half *>(p)[i] = __float2half(v);
    }
}
float to_tf32(float x) {  // 10 bits of mantissa, to nearest even
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000u) != 0x7f800000u)
        bits = (bits + 0xfffu + (bits >> 13 & 1)) & ~0x1fffu;
    memcpy(&x, &bits, sizeof x);
    return x;
}

const float GELU_SCALE = 0.7978845608028654f;  // √(2/π)
float gelu(float x) {
    return 0.5f * x * (1.0f + tanhf(GELU_SCALE * (x + 0.044715f * x * x * x)));
}
float gelu_gradient(float x) {
    float t = tanhf(GELU_SCALE * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * GELU_SCALE * (1.0f + 3.0f * 0.044715f * x * x);
}

// ---- one matrix of a batch ----

char *matrix(const void *data, const Layout &l, int index) {
    return static_cast<char *>(const_cast<void *>(data)) + index * l.stride * static_cast<int64_t>(size_of(l.type));
}
char *touch_matrix(const void *data, const Layout &l, int index, bool write) {
    char *start = matrix(data, l, index);
    for (uint64_t column = 0; column < l.columns; column++)
        touch(start + column * l.ld * size_of(l.type), l.rows * size_of(l.type), write, "cublasLtMatmul");
    return start;
}

// op(X) as a dense row-major matrix of floats.
std::vector<float> unpack(const void *data, const Layout &l, int index, bool transposed, cublasComputeType_t compute) {
    const char *p = touch_matrix(data, l, index, false);
    std::vector<float> dense(l.rows * l.columns);
    for (uint64_t j = 0; j < l.columns; j++)
        for (uint64_t i = 0; i < l.rows; i++) {
            float v = load(p, l.type, i + j * l.ld);
            dense[transposed ? j * l.rows + i : i * l.columns + j] =
                compute == CUBLAS_COMPUTE_32F_FAST_TF32 && l.type == CUDA_R_32F ? to_tf32(v) : v;
        }
    return dense;
}

// sums(n) = row i of op(A)·op(B). Split-K adds the sums of two halves of k.
void multiply_row(const Matmul &x, const float *a_row, const float *b, std::vector<float> &sums,
                  std::vector<float> &part) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (int s = 0; s < x.split_k; s++) {
        std::fill(part.begin(), part.end(), 0.0f);
        for (int l = x.k * s / x.split_k; l < x.k * (s + 1) / x.split_k; l++)
            for (int j = 0; j < x.n; j++)
                part[j] += a_row[l] * b[static_cast<size_t>(l) * x.n + j];
        for (int j = 0; j < x.n; j++)
            sums[j] += part[j];
    }
}

void write_bias(const Matmul &x, const std::vector<float> &sums) {
    touch(x.how.bias, sums.size() * size_of(x.bias_type()), true, "cublasLtMatmul (bias gradient)");
    for (size_t i = 0; i < sums.size(); i++)
        store(x.how.bias, x.bias_type(), i, sums[i]);
}

void run_one(const Matmul &x, int index) {
    const Epilogue &e = x.epilogue;
    std::vector<float> a = unpack(x.a_data, x.a, index, x.how.transpose_a != CUBLAS_OP_N, x.how.compute);  // (m, k)
    std::vector<float> b = unpack(x.b_data, x.b, index, x.how.transpose_b != CUBLAS_OP_N, x.how.compute);  // (k, n)
    const char *c = x.beta != 0 ? touch_matrix(x.c_data, x.c, index, false) : nullptr;
    char *d = touch_matrix(x.d_data, x.d, index, true);
    Layout aux{x.d.type, static_cast<uint64_t>(x.m), static_cast<uint64_t>(x.n), x.how.aux_ld};
    if (e.uses_aux())
        touch_matrix(x.how.aux, aux, 0, e.keeps_aux);
    if (e.adds_bias)
        touch(x.how.bias, static_cast<size_t>(x.m) * size_of(x.bias_type()), false, "cublasLtMatmul (bias)");

    std::vector<float> sums(x.n), part(x.n), row_sums(x.m), column_sums(x.n);
    for (int i = 0; i < x.m; i++) {
        const float *a_row = &a[static_cast<size_t>(i) * x.k];
        multiply_row(x, a_row, b.data(), sums, part);
        for (int j = 0; j < x.n; j++) {
            size_t at_aux = static_cast<size_t>(i) + static_cast<size_t>(j) * x.how.aux_ld;
            float v = x.alpha * sums[j];
            if (c)
                v += x.beta * load(c, x.c.type, i + static_cast<size_t>(j) * x.c.ld);
            if (e.adds_bias)
                v += load(x.how.bias, x.bias_type(), i);
            if (e.keeps_aux)
                store(x.how.aux, aux.type, at_aux, v);
            if (e.activates)
                v = gelu(v);
            if (e.multiplies_gradient)
                v *= gelu_gradient(load(x.how.aux, aux.type, at_aux));
            row_sums[i] += e.bias_gradient_of_d ? v : 0.0f;
            store(d, x.d.type, i + static_cast<size_t>(j) * x.d.ld, v);
        }
        for (int l = 0; l < x.k && e.bias_gradient_of_a; l++)
            row_sums[i] += a_row[l];
    }
    for (int l = 0; l < x.k && e.bias_gradient_of_b; l++)
        for (int j = 0; j < x.n; j++)
            column_sums[j] += b[static_cast<size_t>(l) * x.n + j];
    if (e.writes_bias())
        write_bias(x, e.bias_gradient_of_b ? column_sums : row_sums);
}

}  // namespace

void matmul_run(const Matmul &x) {
    if (x.workspace_bytes) {
        touch(x.workspace, x.workspace_bytes, true, "cublasLtMatmul (workspace)");
        memset(x.workspace, 0xff, x.workspace_bytes);
    }
    for (int i = 0; i < x.d.batch; i++)
        run_one(x, i);
}

}  // namespace cudasim
