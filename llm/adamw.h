// adamw: one element of the optimizer step, written once, so that every device and every offload level gives the same bits.
//
// AdamW (Loshchilov & Hutter 2019), Adam with L2 (Kingma & Ba 2015), SGD with momentum as torch.optim writes them.
// Only explicit fused multiply-adds (contraction is off everywhere), IEEE division and square root. Bias corrections
// come from the host, formed in double.
#ifndef LLM_ADAMW_H
#define LLM_ADAMW_H

#include <math.h>

#ifdef __CUDACC__
#define ADAMW_INLINE __host__ __device__ static inline
#else
#define ADAMW_INLINE static inline
#endif

// g: gradient after division by the loss scale and multiplication by the clip factor. w, m, v are updated.
ADAMW_INLINE void adamw_element(float *w, float *m, float *v, float g, float lr, float beta1, float beta2, float eps,
                                float decay, float correction1, float correction2) {
    float m1 = fmaf(beta1, *m, (1.0f - beta1) * g);
    float v1 = fmaf(beta2, *v, ((1.0f - beta2) * g) * g);
    float update = (m1 / correction1) / (sqrtf(v1 / correction2) + eps);
    float kept = fmaf(-lr * decay, *w, *w);  // decoupled weight decay
    *w = fmaf(-lr, update, kept);
    *m = m1;
    *v = v1;
}

ADAMW_INLINE void adam_element(float *w, float *m, float *v, float g, float lr, float beta1, float beta2, float eps,
                               float decay, float correction1, float correction2) {
    adamw_element(w, m, v, fmaf(decay, *w, g), lr, beta1, beta2, eps, 0.0f, correction1, correction2);
}

ADAMW_INLINE void sgd_element(float *w, float *m, float g, float lr, float momentum, float decay) {
    float m1 = fmaf(momentum, *m, fmaf(decay, *w, g));
    *w = fmaf(-lr, m1, *w);
    *m = m1;
}

#endif
