// schedule: the learning rate as a function of the number of updates applied so far.
//
// Update t (0-based) of `steps`: linear warm-up lr·(t+1)/warmup for t < warmup, so that the first update is not at rate 0;
// then, with p = (t - warmup) / max(1, steps - 1 - warmup) in [0, 1] so that the last update is exactly at the floor:
//   cosine    min_lr + (lr - min_lr)·(1 + cos(π·p))/2            (Loshchilov & Hutter 2017)
//   linear    lr + (min_lr - lr)·p
//   constant  lr
//   wsd       lr, then linearly to min_lr over the last wsd_decay·steps updates (Hu et al. 2024, MiniCPM)
//
// And the schedulers of DeepSpeed (deepspeed/runtime/lr_schedules.py), with w = max(2, warmup). Warm-up, for t < w:
//   g = log(t+1)/log(w) (warmup_type log) or t/w (linear), and the rate is warmup_min_lr + (lr - warmup_min_lr)·g. After it:
//   WarmupLR        lr
//   WarmupDecayLR   as warm-up, with g = max(0, (steps - t)/max(1, steps - w)): down to warmup_min_lr
//   WarmupCosineLR  min_lr + (lr - min_lr)·(1 + cos(π·p))/2, p = min(1, (t - w + 1)/max(1, steps - w))
// t is the scheduler's last_batch_iteration: step k of our log has the rate that DeepSpeed's has for step k. (DeepSpeed
// prints a rate after the update and uses it for the next one, so that its first two updates are at warmup_min_lr.)
#ifndef LLM_SCHEDULE_H
#define LLM_SCHEDULE_H

#include "llm/config.h"

typedef struct Schedule {
    ScheduleKind kind;
    double lr, min_lr, wsd_decay;
    int64_t warmup, steps;
    double warmup_min_lr;  // DeepSpeed's only, as the next
    WarmupType warmup_type;
} Schedule;

double schedule_lr(const Schedule *schedule, int64_t update);

#endif
