// GELU (tanh form, Hendrycks & Gimpel 2016) and SwiGLU (Shazeer 2020), forward and backward.
//
// Elementwise: each input is read once, each output written once, a pack a thread. 256 threads of about 40 registers
// fill a multiprocessor, so loads of some threads hide behind the arithmetic of others.
#include "llm/cuda/column_sums.cuh"
#include "llm/cuda/ops_cuda.cuh"

// 1 / (1 + e^-x), within 2 ulp + |x|/8 of an ulp: the fast exponential multiplies by log2(e) in fp32. 0 where e^-x is +inf.
__device__ inline float sigmoid(float x) {
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

// 0.5·(1 + tanh u) = sigmoid(2u): y = x·s(z) with z = A·x + B·x³
constexpr float GELU_A = 1.5957691216f;     // 2·√(2/π)
constexpr float GELU_B = 0.0713548162726f;  // 2·√(2/π)·0.044715

template <class T, bool ALIGNED>
__global__ void __launch_bounds__(THREADS) gelu_forward(T *y, const T *x, int64_t len) {
    const int64_t stride = static_cast<int64_t>(gridDim.x) * THREADS * PACK;
    for (int64_t i = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * PACK; i < len; i += stride) {
        float v[PACK];
        load<ALIGNED>(v, x, i, len);
#pragma unroll
        for (int k = 0; k < PACK; k++)
            v[k] *= sigmoid(v[k] * fmaf(GELU_B, v[k] * v[k], GELU_A));
        store<ALIGNED>(y, i, len, v);
    }
}

// dy/dx = s + x·s·(1 - s)·(A + 3·B·x²), on the way to the sums of its columns: the gradient of the bias that was added
// to x. dx may be dy: a thread reads its pack before it writes it. What is summed is what is stored, after rounding.
template <bool ALIGNED, class T>
struct GeluGradient {
    T *dx;
    const T *dy, *x;
    int64_t F;
    __device__ void operator()(float (&d)[PACK], int64_t row, int64_t i) const {
        float v[PACK];
        load<ALIGNED>(v, x + row * F, i, F);
        load<ALIGNED>(d, dy + row * F, i, F);
#pragma unroll
        for (int k = 0; k < PACK; k++) {
            float x2 = v[k] * v[k], s = sigmoid(v[k] * fmaf(GELU_B, x2, GELU_A));
            float dz = fmaf(3.0f * GELU_B, x2, GELU_A);
            d[k] = to_fp32(from_fp32<T>(d[k] * fmaf(v[k] * dz, s * (1.0f - s), s)));
        }
        store<ALIGNED>(dx + row * F, i, F, d);
    }
};

// y(row, F) = gate·sigmoid(gate)·up, with gate and up in the halves of a row of gate_up (rows, 2F)
template <class T, bool ALIGNED>
__global__ void __launch_bounds__(THREADS) swiglu_forward(T *y, const T *gate_up, int64_t rows, int64_t F) {
    const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * PACK;
    const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.y;
    if (i >= F)
        return;
    for (int64_t row = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows; row += step) {
        const T *gate_row = gate_up + row * 2 * F, *up_row = gate_row + F;
        float gate[PACK], up[PACK];
        load<ALIGNED>(gate, gate_row, i, F);
        load<ALIGNED>(up, up_row, i, F);
#pragma unroll
        for (int k = 0; k < PACK; k++)
            up[k] *= gate[k] * sigmoid(gate[k]);
        store<ALIGNED>(y + row * F, i, F, up);
    }
}

// dup = dy·gate·s;  dgate = dy·up·(s + gate·s·(1 - s))
template <class T, bool ALIGNED>
__global__ void __launch_bounds__(THREADS) swiglu_backward(T *dgate_up, const T *dy, const T *gate_up, int64_t rows,
                                                           int64_t F) {
    const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * PACK;
    const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.y;
    if (i >= F)
        return;
    for (int64_t row = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows; row += step) {
        const T *gate_row = gate_up + row * 2 * F, *up_row = gate_row + F;
        T *dgate_row = dgate_up + row * 2 * F, *dup_row = dgate_row + F;
        float gate[PACK], up[PACK], d[PACK];
        load<ALIGNED>(gate, gate_row, i, F);
        load<ALIGNED>(up, up_row, i, F);
        load<ALIGNED>(d, dy + row * F, i, F);
#pragma unroll
        for (int k = 0; k < PACK; k++) {
            float s = sigmoid(gate[k]), silu = gate[k] * s, dup = d[k] * silu;
            gate[k] = d[k] * up[k] * fmaf(silu, 1.0f - s, s);
            up[k] = dup;
        }
        store<ALIGNED>(dgate_row, i, F, gate);
        store<ALIGNED>(dup_row, i, F, up);
    }
}

void cuda_gelu_forward(Stream *stream, Dtype dt, void *y, const void *x, int64_t len) {
    cudaStream_t s = cuda_begin(stream);
    if (!s || len == 0)
        return;
    const unsigned grid = flat_grid(stream, ceil_div(len, PACK));
    with_dtype(dt, [&](auto t) {
        using T = decltype(t);
        with_bool(aligned16(y, x), [&](auto aligned) {
            LAUNCH((gelu_forward<T, decltype(aligned)::value>), (grid, THREADS, 0, s), static_cast<T *>(y),
                   static_cast<const T *>(x), len);
        });
    });
    cuda_end(stream, "gelu_forward");
}

void cuda_gelu_backward(Stream *stream, Dtype dt, void *dx, float *db, const void *dy, const void *x, int64_t rows,
                        int64_t ffn, bool accumulate) {
    cudaStream_t s = cuda_begin(stream);
    if (!s || rows == 0)
        return;
    float *partial = static_cast<float *>(cuda_scratch(stream, column_sums_bytes(rows, ffn)));
    if (!partial)
        return;
    with_dtype(dt, [&](auto t) {
        using T = decltype(t);
        with_bool(rows_aligned16(ffn, dt) && aligned16(dx, dy, x), [&](auto aligned) {
            const GeluGradient<decltype(aligned)::value, T> source = {static_cast<T *>(dx), static_cast<const T *>(dy),
                                                                      static_cast<const T *>(x), ffn};
            run_column_sums(s, db, partial, source, rows, ffn, accumulate);
        });
    });
    cuda_end(stream, "gelu_backward");
}

void cuda_swiglu_forward(Stream *stream, Dtype dt, void *y, const void *gate_up, int64_t rows, int64_t ffn) {
    cudaStream_t s = cuda_begin(stream);
    if (!s || rows == 0)
        return;
    with_dtype(dt, [&](auto t) {
        using T = decltype(t);
        with_bool(rows_aligned16(ffn, dt) && aligned16(y, gate_up), [&](auto aligned) {
            LAUNCH((swiglu_forward<T, decltype(aligned)::value>), (matrix_grid(rows, ffn, PACK), matrix_block(), 0, s),
                   static_cast<T *>(y), static_cast<const T *>(gate_up), rows, ffn);
        });
    });
    cuda_end(stream, "swiglu_forward");
}

void cuda_swiglu_backward(Stream *stream, Dtype dt, void *dgate_up, const void *dy, const void *gate_up, int64_t rows,
                          int64_t ffn) {
    cudaStream_t s = cuda_begin(stream);
    if (!s || rows == 0)
        return;
    with_dtype(dt, [&](auto t) {
        using T = decltype(t);
        with_bool(rows_aligned16(ffn, dt) && aligned16(dgate_up, dy, gate_up), [&](auto aligned) {
            LAUNCH((swiglu_backward<T, decltype(aligned)::value>), (matrix_grid(rows, ffn, PACK), matrix_block(), 0, s),
                   static_cast<T *>(dgate_up), static_cast<const T *>(dy), static_cast<const T *>(gate_up), rows, ffn);
        });
    });
    cuda_end(stream, "swiglu_backward");
}
