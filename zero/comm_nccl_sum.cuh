// comm_nccl_sum: what a GPU adds in a reduction: zero/comm_sum.h for addends that lie at regular places.
#ifndef ZERO_COMM_NCCL_SUM_CUH
#define ZERO_COMM_NCCL_SUM_CUH

#include "llm/cuda/cuda.cuh"

// For each cut m < n_cuts and element i < len: to[m·to_stride + i] = the sum over k < n, in this order, of
//     k == place:  own[m·own_stride + i], rounded to `dtype`
//     else:        others[((place - k + n) mod n - 1)·n_cuts + m)·stride + i]
// rounded to `rounded` and then to to_dtype; add: to = round(to + sum).
typedef struct RankSum {
    const float *own;
    int64_t own_stride;
    const void *others;  // by round, in `dtype`
    int64_t stride;
    Dtype dtype;
    int n, place, n_cuts;
    void *to;
    int64_t to_stride;
    Dtype to_dtype, rounded;
    bool add;
    int64_t len;
} RankSum;
void sum_ranks(const RankSum *sum, cudaStream_t s);

// to[q·to_stride + i] = full[cut(q)·full_stride + i] rounded to `dtype`, i < len, for messages q < n of a reduction:
// cut(q) = (q mod n_cuts)·group_size + (local + first_round + q / n_cuts) mod group_size.
typedef struct Pack {
    const float *full;
    int64_t full_stride;
    void *to;
    int64_t to_stride;
    Dtype dtype;
    int n, n_cuts, group_size, local, first_round;
    int64_t len;
} Pack;
void pack_cuts(const Pack *pack, cudaStream_t s);

#endif
