// Attention: which kernels a dtype and head size take. A pure function of both, so that bits do not depend on more.
#include "llm/cuda/attention.cuh"

static size_t delta_bytes(AttentionShape s) {
    return static_cast<size_t>(ceil_div(lse_at(s, s.batch, 0, 0) * static_cast<int64_t>(sizeof(float)), 256)) * 256;
}

size_t cuda_attention_scratch(Device *, Dtype, AttentionShape shape) {
    return delta_bytes(shape);
}

void cuda_attention_forward(Stream *stream, Dtype dt, void *out, float *lse, const void *qkv, AttentionShape shape) {
    cudaStream_t s = cuda_begin(stream);
    if (!s)
        return;
    with_dtype(dt, [&](auto type) {
        using T = decltype(type);
        T *o = static_cast<T *>(out);
        const T *x = static_cast<const T *>(qkv);
        if constexpr (sizeof(T) == 2) {
            if (shape.head_dim == 64)
                return attention_mma_forward<T, 64>(s, o, lse, x, shape);
            if (shape.head_dim == 128)
                return attention_mma_forward<T, 128>(s, o, lse, x, shape);
        }
        attention_general_forward(s, o, lse, x, shape);
    });
    cuda_end(stream, "attention_forward");
}

void cuda_attention_backward(Stream *stream, Dtype dt, void *dqkv, const void *dout, const void *qkv, const void *out,
                             const float *lse, AttentionShape shape) {
    cudaStream_t s = cuda_begin(stream);
    if (!s)
        return;
    float *delta = static_cast<float *>(cuda_scratch(stream, delta_bytes(shape)));
    if (!delta)
        return;
    with_dtype(dt, [&](auto type) {
        using T = decltype(type);
        T *dx = static_cast<T *>(dqkv);
        const T *d = static_cast<const T *>(dout), *x = static_cast<const T *>(qkv), *o = static_cast<const T *>(out);
        if constexpr (sizeof(T) == 2) {
            if (shape.head_dim == 64)
                return attention_mma_backward<T, 64>(s, dx, delta, d, x, o, lse, shape);
            if (shape.head_dim == 128)
                return attention_mma_backward<T, 128>(s, dx, delta, d, x, o, lse, shape);
        }
        attention_general_backward(s, dx, delta, d, x, o, lse, shape);
    });
    cuda_end(stream, "attention_backward");
}
