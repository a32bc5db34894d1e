#include "llm/schedule.h"

#include <math.h>

// Progress from 0 at `first` to exactly 1 at the last update, and 1 after it.
static double progress(int64_t update, int64_t first, int64_t last) {
    if (update <= first)
        return 0.0;
    return update >= last ? 1.0 : (double)(update - first) / (double)(last - first);
}

// From `from` at p = 0 to exactly `to` at p = 1 (from + (to - from) may miss `to` by a rounding).
static double interpolate(double from, double to, double p) {
    return p >= 1.0 ? to : from + (to - from) * p;
}

static const double pi = 3.14159265358979323846;

static double deepspeed_lr(const Schedule *s, int64_t update) {
    int64_t warmup = s->warmup > 2 ? s->warmup : 2, decay = s->steps - warmup > 1 ? s->steps - warmup : 1;
    double rise = s->lr - s->warmup_min_lr;
    if (update < warmup) {
        double g = s->warmup_type == WARMUP_LOG ? 1.0 / log((double)warmup) * log((double)(update + 1))
                                                : (double)update / (double)warmup;
        return s->warmup_min_lr + rise * g;
    }
    if (s->kind == SCHEDULE_WARMUP_LR)
        return s->warmup_min_lr + rise;
    if (s->kind == SCHEDULE_WARMUP_DECAY_LR)
        return s->warmup_min_lr + rise * fmax(0.0, (double)(s->steps - update) / (double)decay);
    double p = fmin(1.0, (double)(update - warmup + 1) / (double)decay);
    return s->min_lr + (s->lr - s->min_lr) * ((1.0 + cos(pi * p)) / 2.0);
}

double schedule_lr(const Schedule *s, int64_t update) {
    if (s->kind >= SCHEDULE_WARMUP_LR)
        return deepspeed_lr(s, update);
    if (update < s->warmup)
        return s->lr * (double)(update + 1) / (double)s->warmup;

    int64_t last = s->steps - 1;
    double p = progress(update, s->warmup, last);
    switch (s->kind) {
        case SCHEDULE_COSINE: return p >= 1.0 ? s->min_lr : s->min_lr + (s->lr - s->min_lr) * (1.0 + cos(pi * p)) / 2.0;
        case SCHEDULE_LINEAR: return interpolate(s->lr, s->min_lr, p);
        case SCHEDULE_CONSTANT: return s->lr;
        default: break;  // wsd
    }
    // The decay has n updates, the first one already below lr; its p = 0 is the last stable update. It never eats into
    // the warm-up.
    int64_t n = (int64_t)ceil(s->wsd_decay * (double)s->steps);
    int64_t last_stable = last - n > s->warmup - 1 ? last - n : s->warmup - 1;
    return interpolate(s->lr, s->min_lr, progress(update, last_stable, last));
}
