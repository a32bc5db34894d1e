// Kernels of reductions: each addend is read once, each result written once. Dtypes are arguments, not templates: all
// threads take the same branch, and the loads take much longer.
#include "llm/cuda/vec.cuh"
#include "zero/comm_nccl_sum.cuh"

__device__ inline float rounded_to(Dtype dtype, float x) {
    return dtype == DTYPE_BF16 ? to_fp32(from_fp32<bf16>(x)) : dtype == DTYPE_FP16 ? to_fp32(from_fp32<fp16>(x)) : x;
}

__device__ inline char *element(const void *p, Dtype dtype, int64_t i) {
    return const_cast<char *>(static_cast<const char *>(p)) + i * (dtype == DTYPE_FP32 ? 4 : 2);
}

__device__ inline int64_t first_element() {
    return (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * PACK;
}

template <bool ALIGNED>
__global__ void __launch_bounds__(THREADS) sum_in_rank_order(RankSum a) {
    const int64_t i = first_element(), cut = blockIdx.y;
    if (i >= a.len)
        return;
    float sum[PACK];
    for (int k = 0; k < a.n; k++) {
        float x[PACK];
        if (k == a.place) {
            load<ALIGNED>(x, a.own + cut * a.own_stride, i, a.len);
#pragma unroll
            for (int e = 0; e < PACK; e++)
                x[e] = rounded_to(a.dtype, x[e]);
        } else {
            const int64_t message = static_cast<int64_t>((a.place - k + a.n) % a.n - 1) * a.n_cuts + cut;
            load_any<ALIGNED>(x, element(a.others, a.dtype, message * a.stride), a.dtype, i, a.len);
        }
#pragma unroll
        for (int e = 0; e < PACK; e++)
            sum[e] = k == 0 ? x[e] : sum[e] + x[e];
    }
    char *to = element(a.to, a.to_dtype, cut * a.to_stride);
    float before[PACK] = {};
    if (a.add)
        load_any<ALIGNED>(before, to, a.to_dtype, i, a.len);
#pragma unroll
    for (int e = 0; e < PACK; e++) {
        const float result = rounded_to(a.rounded, sum[e]);
        sum[e] = a.add ? before[e] + result : result;
    }
    store_any<ALIGNED>(to, a.to_dtype, i, a.len, sum);
}

template <bool ALIGNED>
__global__ void __launch_bounds__(THREADS) round_messages(Pack a) {
    const int64_t i = first_element();
    const int q = static_cast<int>(blockIdx.y), round = a.first_round + q / a.n_cuts;
    const int64_t cut = static_cast<int64_t>(q % a.n_cuts) * a.group_size + (a.local + round) % a.group_size;
    if (i >= a.len)
        return;
    float x[PACK];
    load<ALIGNED>(x, a.full + cut * a.full_stride, i, a.len);
    store_any<ALIGNED>(element(a.to, a.dtype, q * a.to_stride), a.dtype, i, a.len, x);
}

static dim3 grid_of(int64_t len, int rows) {
    return dim3(static_cast<unsigned>(ceil_div(len, THREADS * PACK)), static_cast<unsigned>(rows));
}

void sum_ranks(const RankSum *a, cudaStream_t s) {
    bool aligned = aligned16(a->own, a->others, a->to) && rows_aligned16(a->own_stride, DTYPE_FP32) &&
                   rows_aligned16(a->stride, a->dtype) && rows_aligned16(a->to_stride, a->to_dtype);
    with_bool(aligned, [&](auto is_aligned) {
        LAUNCH((sum_in_rank_order<decltype(is_aligned)::value>), (grid_of(a->len, a->n_cuts), THREADS, 0, s), *a);
    });
}

void pack_cuts(const Pack *a, cudaStream_t s) {
    bool aligned = aligned16(a->full, a->to) && rows_aligned16(a->full_stride, DTYPE_FP32) &&
                   rows_aligned16(a->to_stride, a->dtype);
    with_bool(aligned, [&](auto is_aligned) {
        LAUNCH((round_messages<decltype(is_aligned)::value>), (grid_of(a->len, a->n), THREADS, 0, s), *a);
    });
}
