// comm_sum: adding what several ranks contributed, in their order, in fp32.
#ifndef ZERO_COMM_SUM_H
#define ZERO_COMM_SUM_H

#include <stdbool.h>

#include "llm/dtype.h"

typedef struct Addend {
    const void *data;
    Dtype dtype;    // of data
    Dtype rounded;  // each element is rounded to this before it is added (a rank's own addend, which did not travel)
} Addend;

typedef struct SumTarget {
    void *data;
    Dtype dtype;
    Dtype rounded;  // the sum is rounded to this first
    bool add;       // then data = round(data + sum) instead of round(sum)
} SumTarget;

// target[i] = addend 0 [i] + addend 1 [i] + …, i < len. The target may be one of the addends.
void sum_in_order(SumTarget target, const Addend *addends, int n, int64_t len);

// to[i] = from[i] rounded to `dtype`.
void round_to(Dtype dtype, void *to, const float *from, int64_t len);

#endif
