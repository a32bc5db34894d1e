// schedule: the learning rate as a function of the number of updates applied so far.
//
// Update t (0-based) of `steps`: linear warm-up lr·(t+1)/warmup for t < warmup, so that the first update is not at rate 0;
// then, with p = (t - warmup) / max(1, steps - 1 - warmup) in [0, 1] so that the last update is exactly at the floor:
//   cosine    min_lr + (lr - min_lr)·(1 + cos(π·p))/2            (Loshchilov & Hutter 2017)
//   linear    lr + (min_lr - lr)·p
//   constant  lr
//   wsd       lr, then linearly to min_lr over the last wsd_decay·steps updates (Hu et al. 2024, MiniCPM)
#ifndef LLM_SCHEDULE_H
#define LLM_SCHEDULE_H

#include "llm/config.h"

typedef struct Schedule {
    ScheduleKind kind;
    double lr, min_lr, wsd_decay;
    int64_t warmup, steps;
} Schedule;

double schedule_lr(const Schedule *schedule, int64_t update);

#endif
