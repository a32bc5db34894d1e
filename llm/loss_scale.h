// loss_scale: the dynamic loss scaler of fp16 training, state for state DeepSpeed's DynamicLossScaler
// (initial 2^16, factor 2, window 1000, hysteresis 2, minimum 1; consecutive_hysteresis off, unless asked for otherwise).
// Sources of DeepSpeed newer than its releases so far grow the scale one step later; the class of the releases is the model.
//
// The scale that backward used is the one gradients are divided by; loss_scale_update changes only the next step's.
#ifndef LLM_LOSS_SCALE_H
#define LLM_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct LossScale {
    double scale;
    bool dynamic;            // false: a fixed scale
    int64_t iteration;       // cur_iter of DeepSpeed's class
    int64_t last_overflow;   // last_overflow_iter, -1 at first
    int hysteresis_left;     // cur_hysteresis
    int window, hysteresis;  // 1000, 2
    double factor, minimum;  // 2, 1
    bool consecutive;        // consecutive_hysteresis: a step without overflow gives patience back
} LossScale;

LossScale loss_scale_make(bool dynamic, double initial);  // initial <= 0: 2^16, or 1 when fixed
// Once a step. Returns false when the scale is already at its minimum and overflows again: it stays there, as in the
// class with raise_error_at_min_scale off, and the caller goes on skipping until --max-skips.
bool loss_scale_update(LossScale *scale, bool overflow);

// The scaler of a resumed run: `saved` goes on by the rules of `asked`; where one is fixed, `asked` begins anew.
LossScale loss_scale_resume(LossScale saved, LossScale asked);

#endif
