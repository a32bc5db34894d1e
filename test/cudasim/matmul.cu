// cublasLtMatmul of the simulator against plain sums in double: types, transposes, epilogues, beta with another C,
// batches, leading dimensions, the heuristic, and what must be refused. Prints a line for each that is wrong, and "ok"
// if none is.
#include <cublasLt.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

enum { M = 24, N = 16, K = 20, LD = 40 };  // D is (M, N), column-major; all matrices have this leading dimension

static cudaStream_t stream;
static cublasLtHandle_t lt;

template <class T>
static T *to_device(const std::vector<T> &host) {
    void *memory;
    cudaMalloc(&memory, host.size() * sizeof(T));
    cudaMemcpyAsync(memory, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice, stream);
    return static_cast<T *>(memory);
}
template <class T>
static std::vector<float> to_host(const T *device, size_t n) {
    std::vector<T> host(n);
    cudaMemcpyAsync(host.data(), device, n * sizeof(T), cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    return std::vector<float>(host.begin(), host.end());
}
template <class T>
static std::vector<T> values(size_t n, float step) {
    std::vector<T> v;
    for (size_t i = 0; i < n; i++)
        v.push_back(static_cast<T>(sinf(step * static_cast<float>(i))));
    return v;
}
static int expect(bool holds, const char *what) {
    if (!holds)
        printf("WRONG: %s\n", what);
    return !holds;
}

static double gelu(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double gelu_gradient(double x) {
    double h = 1e-5;
    return (gelu(x + h) - gelu(x - h)) / (2 * h);
}

struct Layouts {
    cublasLtMatrixLayout_t a, b, d;
};

template <class T>
struct Problem {
    cudaDataType type;
    bool transpose_a, transpose_b;
    cublasLtEpilogue_t epilogue;
    float beta;

    std::vector<T> a = values<T>(LD * 32, 0.3f), b = values<T>(LD * 32, 0.7f), c = values<T>(LD * N, 0.9f),
                   bias = values<T>(M, 1.1f), aux = values<T>(LD * N, 0.5f);
    T *d_a = to_device(a), *d_b = to_device(b), *d_c = to_device(c), *d_bias = to_device(bias), *d_aux = to_device(aux),
      *d_d = to_device(c);
    cublasLtMatmulDesc_t description = nullptr;

    double product(int i, int j) const {
        double sum = 0;
        for (int k = 0; k < K; k++)
            sum += static_cast<double>(static_cast<float>(a[transpose_a ? k + i * LD : i + k * LD])) *
                   static_cast<double>(static_cast<float>(b[transpose_b ? j + k * LD : k + j * LD]));
        return sum;
    }
    template <class V>
    void set(cublasLtMatmulDescAttributes_t attribute, V value) {
        cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value);
    }
    Layouts describe() {
        cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F);
        set(CUBLASLT_MATMUL_DESC_TRANSA, transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_TRANSB, transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, d_bias);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, d_aux);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, static_cast<int64_t>(LD));
        Layouts l;
        cublasLtMatrixLayoutCreate(&l.a, type, transpose_a ? K : M, transpose_a ? M : K, LD);
        cublasLtMatrixLayoutCreate(&l.b, type, transpose_b ? N : K, transpose_b ? K : N, LD);
        cublasLtMatrixLayoutCreate(&l.d, type, M, N, LD);
        return l;
    }
    cublasStatus_t run(const cublasLtMatmulAlgo_t *algo = nullptr, void *workspace = nullptr, size_t bytes = 0,
                       size_t offset = 0) {
        Layouts l = describe();
        float alpha = 0.5f;
        cublasStatus_t status = cublasLtMatmul(lt, description, &alpha, d_a + offset, l.a, d_b, l.b, &beta, d_c, l.d,
                                               d_d, l.d, algo, workspace, bytes, stream);
        cublasLtMatmulDescDestroy(description);  // the library has read it
        for (cublasLtMatrixLayout_t layout : {l.a, l.b, l.d})
            cublasLtMatrixLayoutDestroy(layout);
        return status;
    }
    // D, and what the epilogue leaves in aux and bias, against `value` of the sum before the epilogue.
    int check(const char *what, std::function<double(int, int, double)> value, bool keeps_aux = false,
              bool bias_gradient = false) {
        if (expect(run() == CUBLAS_STATUS_SUCCESS, what))
            return 1;
        std::vector<float> d = to_host(d_d, LD * N), kept = to_host(d_aux, LD * N), sums = to_host(d_bias, M);
        double tolerance = type == CUDA_R_32F ? 1e-5 : type == CUDA_R_16F ? 2e-3 : 1.6e-2, error = 0;
        for (int i = 0; i < M; i++) {
            double row = 0;
            for (int j = 0; j < N; j++) {
                double before = 0.5 * product(i, j), want = value(i, j, before);
                if (beta != 0)
                    before += static_cast<double>(beta * static_cast<float>(c[i + j * LD]));
                want = value(i, j, before);
                row += want;
                error = fmax(error, fabs(want - static_cast<double>(d[i + j * LD])) / (1 + fabs(want)));
                if (keeps_aux)
                    error = fmax(error, fabs(before + static_cast<double>(static_cast<float>(bias[i])) -
                                             static_cast<double>(kept[i + j * LD])) /
                                            (1 + fabs(before)));
            }
            if (bias_gradient)
                error = fmax(error, fabs(row - static_cast<double>(sums[i])) / (1 + fabs(row)));
        }
        for (int i = M; i < LD; i++)  // the rows between columns are left alone
            error += d[i] != static_cast<float>(c[i]);
        if (error > tolerance)
            printf("error %g: ", error);
        return expect(error <= tolerance, what);
    }
};

template <class T>
static int check_type(cudaDataType type) {
    int wrong = 0;
    auto same = [](int, int, double x) { return x; };
    for (int t = 0; t < 4; t++)
        wrong += Problem<T>{type, t % 2 == 1, t / 2 == 1, CUBLASLT_EPILOGUE_DEFAULT, 0}.check("transposes", same);
    wrong += Problem<T>{type, true, false, CUBLASLT_EPILOGUE_DEFAULT, 0.75f}.check("beta, C is not D", same);
    Problem<T> bias{type, true, false, CUBLASLT_EPILOGUE_BIAS, 0};
    wrong += bias.check(
        "bias", [&](int i, int, double x) { return x + static_cast<double>(static_cast<float>(bias.bias[i])); });
    Problem<T> activation{type, true, false, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 0};
    wrong += activation.check(
        "bias, GELU, auxiliary output",
        [&](int i, int, double x) { return gelu(x + static_cast<double>(static_cast<float>(activation.bias[i]))); },
        true);
    Problem<T> gradient{type, false, false, CUBLASLT_EPILOGUE_DGELU_BGRAD, 0};
    wrong += gradient.check(
        "dGELU, bias gradient",
        [&](int i, int j, double x) {
            return x * gelu_gradient(static_cast<double>(static_cast<float>(gradient.aux[i + j * LD])));
        },
        false, true);
    return wrong;
}

static int check_bias_gradient_of_b() {
    Problem<float> p{CUDA_R_32F, false, true, CUBLASLT_EPILOGUE_BGRADB, 0};
    p.run();
    std::vector<float> sums = to_host(p.d_bias, N);
    double error = 0;
    for (int j = 0; j < N; j++) {
        double want = 0;
        for (int k = 0; k < K; k++)
            want += static_cast<double>(p.b[j + k * LD]);
        error = fmax(error, fabs(want - static_cast<double>(sums[j])));
    }
    return expect(error < 1e-5, "bias gradient of B");
}

// The algorithms: what does not fit the workspace is not offered, split-K can be told from its attributes.
static int check_heuristic() {
    Problem<float> p{CUDA_R_32F, false, false, CUBLASLT_EPILOGUE_DEFAULT, 0};
    Layouts l = p.describe();
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulHeuristicResult_t results[4];
    int n_without, n_with;
    cublasLtMatmulAlgoGetHeuristic(lt, p.description, l.a, l.b, l.d, l.d, preference, 4, results, &n_without);
    uint64_t room = 4 << 20;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room);
    cublasLtMatmulAlgoGetHeuristic(lt, p.description, l.a, l.b, l.d, l.d, preference, 4, results, &n_with);
    int wrong = expect(n_without == 1 && n_with == 3, "heuristic");
    std::vector<float> d[2];
    for (int i = 0; i < 2; i++) {
        int split_k;
        cublasLtMatmulAlgoConfigGetAttribute(&results[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split_k,
                                             sizeof split_k, nullptr);
        wrong += expect(split_k == (i == 0 ? 2 : 1), "split-K attribute");
        void *workspace;
        cudaMalloc(&workspace, results[i].workspaceSize);
        wrong += expect(p.run(&results[i].algo, workspace, results[i].workspaceSize - 1) == CUBLAS_STATUS_INVALID_VALUE,
                        "a workspace that is too small");
        p.run(&results[i].algo, workspace, results[i].workspaceSize);
        d[i] = to_host(p.d_d, LD * N);
    }
    return wrong + expect(d[0] != d[1], "split-K gives other bits");
}

static int check_batch() {
    enum { BATCH = 3 };
    std::vector<float> a = values<float>(BATCH * 16, 0.3f), b = values<float>(16, 0.4f);
    float *d_a = to_device(a), *d_b = to_device(b), *d_d = to_device(a), one = 1, zero = 0;
    cublasLtMatmulDesc_t description = nullptr;
    cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayout_t layouts[2];  // of A and D; of B, which is the same for all
    for (int i = 0; i < 2; i++) {
        int32_t batch = BATCH;
        int64_t stride = i == 0 ? 16 : 0;
        cublasLtMatrixLayoutCreate(&layouts[i], CUDA_R_32F, 4, 4, 4);
        cublasLtMatrixLayoutSetAttribute(layouts[i], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
        cublasLtMatrixLayoutSetAttribute(layouts[i], CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                         sizeof stride);
    }
    cublasLtMatmul(lt, description, &one, d_a, layouts[0], d_b, layouts[1], &zero, d_d, layouts[0], d_d, layouts[0],
                   nullptr, nullptr, 0, stream);
    std::vector<float> d = to_host(d_d, a.size());
    double error = 0;
    for (int x = 0; x < BATCH; x++)
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) {
                double want = 0;
                for (int k = 0; k < 4; k++)
                    want += static_cast<double>(a[x * 16 + i + 4 * k]) * static_cast<double>(b[k + 4 * j]);
                error = fmax(error, fabs(want - static_cast<double>(d[x * 16 + i + 4 * j])));
            }
    return expect(error < 1e-5, "batch");
}

int main() {
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cublasLtCreate(&lt);
    int wrong = check_type<float>(CUDA_R_32F) + check_type<__nv_bfloat16>(CUDA_R_16BF) +
                check_type<__half>(CUDA_R_16F) + check_bias_gradient_of_b() + check_heuristic() + check_batch();
    Problem<float> p{CUDA_R_32F, false, false, CUBLASLT_EPILOGUE_DEFAULT, 0};
    wrong += expect(p.run(nullptr, nullptr, 0, 1) == CUBLAS_STATUS_INVALID_VALUE, "a misaligned operand");
    Problem<float> relu{CUDA_R_32F, false, false, CUBLASLT_EPILOGUE_RELU_AUX, 0};
    wrong += expect(relu.run() == CUBLAS_STATUS_NOT_SUPPORTED, "an epilogue that the simulator lacks");
    cublasLtDestroy(lt);
    if (!wrong)
        printf("ok\n");
    return wrong != 0;
}
