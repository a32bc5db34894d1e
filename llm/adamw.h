// adamw: one element of the optimizer step, written once, so that every device and offload level gives the same bits.
//
// AdamW (Loshchilov & Hutter 2019), Adam with L2 (Kingma & Ba 2015), SGD with momentum as torch.optim writes them. Only
// explicit fused multiply-adds (contraction is off everywhere), IEEE division and square root. What is the same for all
// elements is formed once on the host, in double, and rounded to fp32 (adamw_scalars): the loss scale and the clip
// factor become one multiplication, the bias corrections a step size and a factor of √v, which leaves one division an
// element.
#ifndef LLM_ADAMW_H
#define LLM_ADAMW_H

#include <math.h>

#include "llm/ops.h"

#ifdef __CUDACC__
#define ADAMW_INLINE __host__ __device__ static inline
#else
#define ADAMW_INLINE static inline
#endif

typedef struct AdamwScalars {
    float grad_scale;  // clip factor / loss scale
    float beta1, one_minus_beta1, beta2, one_minus_beta2, eps;
    float step;          // lr / (1 - beta1^t); SGD: lr
    float sqrt_v_scale;  // 1 / √(1 - beta2^t)
    float decay;         // L2 added to the gradient (Adam, SGD): weight_decay
    float lr_decay;      // decoupled decay (AdamW): lr · weight_decay
    float momentum;
} AdamwScalars;

// The scalars of a range of elements to which weight decay applies or does not.
static inline AdamwScalars adamw_scalars(const AdamwArgs *a, bool decays) {
    const bool sgd = a->kind == OPT_SGD;
    const double decay = decays ? (double)a->weight_decay : 0.0;
    return (AdamwScalars){
        .grad_scale = (float)((double)a->grad_factor / (double)a->grad_divisor),
        .beta1 = a->beta1,
        .one_minus_beta1 = (float)(1.0 - (double)a->beta1),
        .beta2 = a->beta2,
        .one_minus_beta2 = (float)(1.0 - (double)a->beta2),
        .eps = a->eps,
        .step = sgd ? a->lr : (float)((double)a->lr / (double)a->bias_correction1),
        .sqrt_v_scale = sgd ? 0.0f : (float)(1.0 / sqrt((double)a->bias_correction2)),
        .decay = a->kind == OPT_ADAMW ? 0.0f : (float)decay,
        .lr_decay = a->kind == OPT_ADAMW ? (float)((double)a->lr * decay) : 0.0f,
        .momentum = a->momentum,
    };
}

// One element of Adam and AdamW: w, m, v are updated with the gradient as backward left it.
ADAMW_INLINE void adamw_element(float *w, float *m, float *v, float grad, const AdamwScalars *s) {
    float g = fmaf(s->decay, *w, grad * s->grad_scale);
    float m1 = fmaf(s->beta1, *m, s->one_minus_beta1 * g);
    float v1 = fmaf(s->beta2, *v, (s->one_minus_beta2 * g) * g);
    float update = m1 / fmaf(sqrtf(v1), s->sqrt_v_scale, s->eps);
    *w = fmaf(-s->step, update, fmaf(-s->lr_decay, *w, *w));
    *m = m1;
    *v = v1;
}

ADAMW_INLINE void sgd_element(float *w, float *m, float grad, const AdamwScalars *s) {
    float g = fmaf(s->decay, *w, grad * s->grad_scale);
    float m1 = fmaf(s->momentum, *m, g);
    *w = fmaf(-s->step, m1, *w);
    *m = m1;
}

#endif
