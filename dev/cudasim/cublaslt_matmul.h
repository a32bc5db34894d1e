// cublaslt_matmul: the arithmetic of one matmul, whose arguments have been checked. Internal to the simulator's
// cuBLASLt.
#ifndef DEV_CUDASIM_CUBLASLT_MATMUL_H
#define DEV_CUDASIM_CUBLASLT_MATMUL_H

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>

namespace cudasim {

struct Description {
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void *bias = nullptr;
    int32_t bias_type = -1;  // -1: D's
    void *aux = nullptr;     // (m, n) pre-activations, column-major, in D's type
    int64_t aux_ld = 0;
};
struct Layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t ld;
    int32_t batch = 1;
    int64_t stride = 0;  // elements between the matrices of a batch
};

// What an epilogue does.
struct Epilogue {
    bool adds_bias, activates, keeps_aux, multiplies_gradient, bias_gradient_of_d, bias_gradient_of_a,
        bias_gradient_of_b;

    bool writes_bias() const {
        return bias_gradient_of_d || bias_gradient_of_a || bias_gradient_of_b;
    }
    bool uses_aux() const {
        return keeps_aux || multiplies_gradient;
    }
};

struct Matmul {
    Description how;
    Epilogue epilogue;
    Layout a, b, c, d;
    const void *a_data, *b_data, *c_data;
    void *d_data;
    float alpha, beta;
    int m, n, k, split_k;
    void *workspace;
    size_t workspace_bytes;

    cudaDataType bias_type() const {
        return how.bias_type < 0 ? d.type : static_cast<cudaDataType>(how.bias_type);
    }
};

void matmul_run(const Matmul &matmul);

}  // namespace cudasim

#endif
