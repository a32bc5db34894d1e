// plan_advice: which stage to take, and how many ranks it takes. Pure arithmetic over what zero/plan.h and
// zero/traffic.h predict.
//
// The rule: the lowest stage that leaves a fifth of the device's memory free, for higher stages send no less. Where the
// network is slow, a lower stage may be faster although it has no room for the micro-batch: a smaller one with more
// accumulation gives the same global batch.
#ifndef ZERO_PLAN_ADVICE_H
#define ZERO_PLAN_ADVICE_H

#include "zero/plan.h"

#define PLAN_MARGIN 0.2  // of the device's memory that a recommended plan leaves free

// One way to run the same global batch.
typedef struct PlanCase {
    int stage;
    int micro_batch, grad_accum;
    bool as_given;   // the micro-batch that was asked for
    size_t total;    // bytes of a rank
    double step_s;   // predicted; 0: unknown
} PlanCase;

// The index of the case to take, or -1 where none fits, and one sentence that says why. `cases` holds every stage with the
// micro-batch as given, in order, then any others.
int plan_recommend(const PlanCase *cases, int n, size_t device_memory, char *sentence, size_t sentence_bytes);

// The smallest N (or S) with which a stage leaves PLAN_MARGIN of device_memory free: ⌈sharded bytes ÷ ((1 - PLAN_MARGIN) ·
// device memory − everything that does not shrink with N)⌉; 1 for stage 0 if it fits; 0 where no number of ranks helps.
int64_t plan_smallest_ranks(const PlanInput *input, int stage);

#endif
