// GELU (tanh form, Hendrycks & Gimpel 2016) and SwiGLU (Shazeer 2020), forward and backward.
//
// 0.5·(1 + tanh u) = sigmoid(2u): one exponential and one division, and exact in the tail where 1 + tanh u cancels.
#include "llm/cpu/kernels.h"
#include "llm/cpu/simd.h"

static const float GELU_A = 1.5957691216f;     // 2·√(2/π)
static const float GELU_B = 0.0713548162726f;  // 2·√(2/π)·0.044715

SIMD void gelu(Dtype dt, const Activation *a, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += 16) {
        f32x16 x = v_load_to(dt, a->x, i, end);
        f32x16 s = v_sigmoid(x * v_fma(v_set(GELU_B), x * x, v_set(GELU_A)));
        v_store_to(dt, a->y, i, end, x * s);
    }
}
static void gelu_forward(const void *arguments, int64_t begin, int64_t end) {
    const Activation *a = arguments;
    WITH_DTYPE(a->dt, gelu(DT, a, begin, end));
}

// y = x·s(z), z = A·x + B·x³:  dy/dx = s + x·s·(1 - s)·(A + 3·B·x²)
SIMD void gelu_gradient(Dtype dt, const Activation *a, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += 16) {
        f32x16 x = v_load_to(dt, a->x, i, end), x2 = x * x;
        f32x16 s = v_sigmoid(x * v_fma(v_set(GELU_B), x2, v_set(GELU_A)));
        f32x16 dz = v_fma(v_set(3.0f * GELU_B), x2, v_set(GELU_A));
        f32x16 slope = v_fma(x * dz, s * (v_set(1.0f) - s), s);
        v_store_to(dt, a->y, i, end, v_load_to(dt, a->dy, i, end) * slope);
    }
}
static void gelu_backward(const void *arguments, int64_t begin, int64_t end) {
    const Activation *a = arguments;
    WITH_DTYPE(a->dt, gelu_gradient(DT, a, begin, end));
}

// y(row, F) = gate·sigmoid(gate)·up, with gate and up in the halves of x's row (2F)
SIMD void swiglu(Dtype dt, const Activation *a, int64_t begin, int64_t end) {
    const int64_t F = a->ffn, size = (int64_t)dtype_bytes(dt);
    for (int64_t row = begin; row < end; row++) {
        const char *gate_row = (const char *)a->x + row * 2 * F * size, *up_row = gate_row + F * size;
        char *y = (char *)a->y + row * F * size;
        for (int64_t i = 0; i < F; i += 16) {
            f32x16 gate = v_load_to(dt, gate_row, i, F), up = v_load_to(dt, up_row, i, F);
            v_store_to(dt, y, i, F, gate * v_sigmoid(gate) * up);
        }
    }
}
static void swiglu_forward(const void *arguments, int64_t begin, int64_t end) {
    const Activation *a = arguments;
    WITH_DTYPE(a->dt, swiglu(DT, a, begin, end));
}

// dup = dy·gate·s;  dgate = dy·up·(s + gate·s·(1 - s))
SIMD void swiglu_gradient(Dtype dt, const Activation *a, int64_t begin, int64_t end) {
    const int64_t F = a->ffn, size = (int64_t)dtype_bytes(dt);
    for (int64_t row = begin; row < end; row++) {
        const char *gate_row = (const char *)a->x + row * 2 * F * size, *up_row = gate_row + F * size;
        const char *dy_row = (const char *)a->dy + row * F * size;
        char *dgate_row = (char *)a->y + row * 2 * F * size, *dup_row = dgate_row + F * size;
        for (int64_t i = 0; i < F; i += 16) {
            f32x16 gate = v_load_to(dt, gate_row, i, F), up = v_load_to(dt, up_row, i, F);
            f32x16 dy = v_load_to(dt, dy_row, i, F), s = v_sigmoid(gate), silu = gate * s;
            v_store_to(dt, dgate_row, i, F, dy * up * v_fma(silu, v_set(1.0f) - s, s));
            v_store_to(dt, dup_row, i, F, dy * silu);
        }
    }
}
static void swiglu_backward(const void *arguments, int64_t begin, int64_t end) {
    const Activation *a = arguments;
    WITH_DTYPE(a->dt, swiglu_gradient(DT, a, begin, end));
}

const ActivationKernels ISA_NAME(activation_kernels) = {gelu_forward, gelu_backward, swiglu_forward, swiglu_backward};
