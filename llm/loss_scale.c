#include "llm/loss_scale.h"

LossScale loss_scale_make(bool dynamic, double initial) {
    return (LossScale){
        .scale = initial > 0 ? initial
                 : dynamic   ? 0x1p16
                             : 1.0,
        .dynamic = dynamic,
        .iteration = 0,
        .last_overflow =
            -1,  // so the first growth comes with update number `window`, later ones `window` after an overflow
        .hysteresis_left = 2,
        .window = 1000,
        .hysteresis = 2,
        .factor = 2.0,
        .minimum = 1.0,
    };
}

bool loss_scale_update(LossScale *s, bool overflow) {
    if (!s->dynamic)
        return true;
    bool can_shrink = true;
    if (overflow) {
        if (s->hysteresis_left > 1) {
            s->hysteresis_left--;  // the first overflows are forgiven; only a growth gives new patience
        } else {
            can_shrink = s->scale > s->minimum;
            s->scale = s->scale / s->factor > s->minimum ? s->scale / s->factor : s->minimum;
        }
        s->last_overflow = s->iteration;
    } else {
        bool grow = (s->iteration - s->last_overflow) % s->window == 0;
        if (grow || s->consecutive)
            s->hysteresis_left = s->hysteresis;
        if (grow)
            s->scale *= s->factor;
    }
    s->iteration++;
    return can_shrink;
}

LossScale loss_scale_resume(LossScale saved, LossScale asked) {
    if (!saved.dynamic || !asked.dynamic)
        return asked;
    saved.window = asked.window;
    saved.hysteresis = asked.hysteresis;
    saved.factor = asked.factor;
    saved.minimum = asked.minimum;
    saved.consecutive = asked.consecutive;
    return saved;
}
