// Linear layers: cuBLASLt's products, with the bias and the residual in its epilogue; the bias gradient in a kernel of
// our own, as the library promises no order for its sum.
//
// A product of our own, plain and slow, takes what the library does not: operands that are not aligned to 16 bytes,
// mixtures of types, shapes without an algorithm. Only odd sizes come to that.
#include "llm/cuda/column_sums.cuh"
#include "llm/cuda/linear_plans.cuh"
#include "llm/cuda/ops_cuda.cuh"

namespace {

// d (m, n; ldd) = Σ_l a(i, l)·b(l, j) + bias(j) + c(i, j), in row-major words. Element (i, l) of a is at i·a_i + l·a_l.
struct Product {
    Dtype dt, d_dtype;  // of a, b, bias; of d
    int64_t m, n, k;
    const void *a, *b, *bias, *c;  // bias and c may be NULL
    int64_t a_i, a_l, b_l, b_j;
    void *d;
    int64_t ldc, ldd;
    Dtype c_dtype;
};

// ---- the library's ----

int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// Row-major d is column-major dᵀ = bᵀ·aᵀ: the library's A is our b, its B our a. One stride of each operand is 1.
LinearShape library_shape(const Product &p) {
    LinearShape s = {};
    s.dt = p.dt;
    s.d_dtype = p.d_dtype;
    s.transpose_a = p.b_j != 1;
    s.transpose_b = p.a_l != 1;
    s.bias = p.bias != nullptr;
    s.m = p.n;
    s.n = p.m;
    s.k = p.k;
    s.lda = larger(s.transpose_a ? p.b_j : p.b_l, s.transpose_a ? s.k : s.m);  // a single row or column may have any
    s.ldb = larger(s.transpose_b ? p.a_l : p.a_i, s.transpose_b ? s.n : s.k);
    s.ldc = p.c ? p.ldc : p.ldd;
    s.ldd = p.ldd;
    return s;
}

bool types_suit(const Product &p) {
    return (!p.c || p.c_dtype == p.d_dtype) && (!p.bias || p.dt == p.d_dtype);
}
bool library_takes(const Product &p) {
    return aligned16(p.a, p.b, p.bias, p.c, p.d) && types_suit(p);
}

// ---- our own ----

constexpr int TILE = 16;

template <class T, class D>
__global__ void __launch_bounds__(TILE *TILE) plain_product(Product p) {
    SHARED(float, a_tile, [TILE][TILE + 1]);
    SHARED(float, b_tile, [TILE][TILE + 1]);
    const T *a = static_cast<const T *>(p.a), *b = static_cast<const T *>(p.b), *bias = static_cast<const T *>(p.bias);
    D *d = static_cast<D *>(p.d);
    const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
    const int64_t j = static_cast<int64_t>(blockIdx.x) * TILE + x;
    for (int64_t i0 = static_cast<int64_t>(blockIdx.y) * TILE; i0 < p.m; i0 += static_cast<int64_t>(gridDim.y) * TILE) {
        const int64_t i = i0 + y;
        float sum = 0.0f;
        for (int64_t l0 = 0; l0 < p.k; l0 += TILE) {
            a_tile[y][x] = i < p.m && l0 + x < p.k ? to_fp32(a[i * p.a_i + (l0 + x) * p.a_l]) : 0.0f;
            b_tile[y][x] = j < p.n && l0 + y < p.k ? to_fp32(b[(l0 + y) * p.b_l + j * p.b_j]) : 0.0f;
            __syncthreads();
            for (int l = 0; l < TILE; l++)
                sum = fmaf(a_tile[y][l], b_tile[l][x], sum);
            __syncthreads();
        }
        if (i >= p.m || j >= p.n)
            continue;
        if (p.c && p.c_dtype == DTYPE_FP32)
            sum += static_cast<const float *>(p.c)[i * p.ldc + j];
        else if (p.c)
            sum += to_fp32(static_cast<const T *>(p.c)[i * p.ldc + j]);
        if (bias)
            sum += to_fp32(bias[j]);
        d[i * p.ldd + j] = from_fp32<D>(sum);
    }
}

void run_plain(const Product &p, cudaStream_t s) {
    const int64_t y = ceil_div(p.m, TILE);
    dim3 grid(static_cast<unsigned>(ceil_div(p.n, TILE)), static_cast<unsigned>(y < 65535 ? y : 65535)), block(TILE, TILE);
    with_dtype(p.dt, [&](auto element) {
        using T = decltype(element);
        if (p.d_dtype == DTYPE_FP32)
            LAUNCH((plain_product<T, float>), (grid, block, 0, s), p);
        else
            LAUNCH((plain_product<T, T>), (grid, block, 0, s), p);
    });
}

void run(Stream *stream, const Product &p, const char *operation) {
    cudaStream_t s = cuda_begin(stream);
    if (!s)
        return;
    const LinearPlan *plan = nullptr;
    LinearPlans *plans = cuda_device(stream->device)->linear;
    LinearShape shape = library_shape(p);
    Status status = library_takes(p) ? linear_plan(plans, &shape, &plan) : OK;
    if (status == OK && plan) {
        size_t bytes = linear_plan_workspace(plan);
        void *workspace = bytes ? cuda_scratch(stream, bytes) : nullptr;
        if (bytes && !workspace)
            return;
        status = linear_plan_run(plans, plan, p.d, p.b, p.a, p.c ? p.c : p.d, p.c ? 1.0f : 0.0f, p.bias, workspace, s);
    } else if (status == OK) {
        run_plain(p, s);
    }
    if (status != OK)
        stream_fail(stream, fail_context(status, "%s", operation));
    else
        cuda_end(stream, operation);
}

// ---- the bias gradient: sums of dy's columns ----

template <bool ALIGNED, class T>
struct RowsOf {
    const T *dy;
    int64_t ld, out;
    __device__ void operator()(float (&v)[PACK], int64_t row, int64_t i) const {
        load<ALIGNED>(v, dy + row * ld, i, out);
    }
};

void bias_gradient(Stream *stream, Dtype dt, float *db, const void *dy, int64_t ld, int64_t rows, int64_t out,
                   bool accumulate) {
    cudaStream_t s = cuda_begin(stream);
    float *partial = s ? static_cast<float *>(cuda_scratch(stream, column_sums_bytes(rows, out))) : nullptr;
    if (!partial)
        return;
    with_dtype(dt, [&](auto element) {
        using T = decltype(element);
        with_bool(aligned16(dy) && rows_aligned16(ld, dt), [&](auto aligned) {
            const RowsOf<decltype(aligned)::value, T> source = {static_cast<const T *>(dy), ld, out};
            run_column_sums(s, db, partial, source, rows, out, accumulate);
        });
    });
    cuda_end(stream, "linear_backward_weight (bias)");
}

// ---- the three products of a layer ----

Product forward(Dtype dt, void *y, Dtype y_dtype, int64_t ld_y, const void *x, const void *w, const void *bias,
                const void *residual, int64_t rows, int64_t in, int64_t out) {
    Product p = {};
    p.dt = p.c_dtype = dt;
    p.d_dtype = y_dtype;
    p.m = rows, p.n = out, p.k = in;
    p.a = x, p.a_i = in, p.a_l = 1;
    p.b = w, p.b_l = 1, p.b_j = in;
    p.bias = bias;
    p.c = residual, p.ldc = out;
    p.d = y, p.ldd = ld_y;
    return p;
}

Product backward_input(Dtype dt, void *dx, const void *dy, int64_t ld_dy, const void *w, int64_t rows, int64_t in,
                       int64_t out) {
    Product p = {};
    p.dt = p.d_dtype = dt;
    p.m = rows, p.n = in, p.k = out;
    p.a = dy, p.a_i = ld_dy, p.a_l = 1;
    p.b = w, p.b_l = in, p.b_j = 1;
    p.d = dx, p.ldd = in;
    return p;
}

Product backward_weight(Dtype dt, float *dw, const void *dy, int64_t ld_dy, const void *x, int64_t rows, int64_t in,
                        int64_t out, bool accumulate) {
    Product p = {};
    p.dt = dt;
    p.d_dtype = p.c_dtype = DTYPE_FP32;
    p.m = out, p.n = in, p.k = rows;
    p.a = dy, p.a_i = 1, p.a_l = ld_dy;
    p.b = x, p.b_l = in, p.b_j = 1;
    p.c = accumulate ? dw : nullptr, p.ldc = in;
    p.d = dw, p.ldd = in;
    return p;
}

}  // namespace

void cuda_linear_forward(Stream *stream, Dtype dt, void *y, Dtype y_dtype, int64_t ld_y, const void *x, const void *w,
                         const void *bias, const void *residual, int64_t rows, int64_t in, int64_t out) {
    run(stream, forward(dt, y, y_dtype, ld_y, x, w, bias, residual, rows, in, out), "linear_forward");
}

void cuda_linear_backward_input(Stream *stream, Dtype dt, void *dx, const void *dy, int64_t ld_dy, const void *w,
                                int64_t rows, int64_t in, int64_t out) {
    run(stream, backward_input(dt, dx, dy, ld_dy, w, rows, in, out), "linear_backward_input");
}

void cuda_linear_backward_weight(Stream *stream, Dtype dt, float *dw, float *db, const void *dy, int64_t ld_dy,
                                 const void *x, int64_t rows, int64_t in, int64_t out, bool accumulate) {
    run(stream, backward_weight(dt, dw, dy, ld_dy, x, rows, in, out, accumulate), "linear_backward_weight");
    if (db)
        bias_gradient(stream, dt, db, dy, ld_dy, rows, out, accumulate);
}

// Chooses the algorithms of the shape on the way. What goes wrong comes again, and is told, when the product runs.
size_t cuda_linear_scratch(Device *device, Dtype dt, Dtype y_dtype, int64_t ld_y, int64_t rows, int64_t in, int64_t out,
                           bool with_backward) {
    static const char some[16] = {};  // stands for a bias and a residual that are there
    size_t most = with_backward ? column_sums_bytes(rows, out) : 0;
    const Product products[] = {forward(dt, nullptr, y_dtype, ld_y, nullptr, nullptr, nullptr, nullptr, rows, in, out),
                                forward(dt, nullptr, y_dtype, ld_y, nullptr, nullptr, some, nullptr, rows, in, out),
                                forward(dt, nullptr, y_dtype, ld_y, nullptr, nullptr, nullptr, some, rows, in, out),
                                forward(dt, nullptr, y_dtype, ld_y, nullptr, nullptr, some, some, rows, in, out),
                                backward_input(dt, nullptr, nullptr, ld_y, nullptr, rows, in, out),
                                backward_weight(dt, nullptr, nullptr, ld_y, nullptr, rows, in, out, false)};
    for (int i = 0; i < (with_backward ? 6 : 4); i++) {
        const LinearShape shape = library_shape(products[i]);
        const LinearPlan *plan = nullptr;
        if (types_suit(products[i]) && linear_plan(cuda_device(device)->linear, &shape, &plan) != OK)
            status_clear();
        most = plan && linear_plan_workspace(plan) > most ? linear_plan_workspace(plan) : most;
    }
    return most;
}
