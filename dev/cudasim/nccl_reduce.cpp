#include "dev/cudasim/nccl_reduce.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "dev/cudasim/report.h"

namespace cudasim {
namespace {

template <class T>
T combine(T a, T b, ncclRedOp_t operation) {
    switch (operation) {
        case ncclProd: return a * b;
        case ncclMax: return std::max(a, b);
        case ncclMin: return std::min(a, b);
        default: return a + b;  // ncclSum, ncclAvg
    }
}

// Sum: what elements of type T are added in.
template <class T, class Sum>
void reduce(void *to, const std::vector<const char *> &from, size_t count, ncclRedOp_t operation) {
    for (size_t i = 0; i < count; i++) {
        auto value = [&](size_t rank) { return static_cast<Sum>(reinterpret_cast<const T *>(from[rank])[i]); };
        Sum sum = value(0);
        for (size_t rank = 1; rank < from.size(); rank++)
            sum = combine(sum, value(rank), operation);
        if (operation == ncclAvg)
            sum = sum / static_cast<Sum>(from.size());
        static_cast<T *>(to)[i] = static_cast<T>(sum);
    }
}

}  // namespace

size_t nccl_size(ncclDataType_t type) {
    switch (type) {
        case ncclInt8:
        case ncclUint8: return 1;
        case ncclFloat16:
        case ncclBfloat16: return 2;
        case ncclInt32:
        case ncclUint32:
        case ncclFloat32: return 4;
        case ncclInt64:
        case ncclUint64:
        case ncclFloat64: return 8;
        default: return 0;
    }
}

void nccl_reduce(void *to, const std::vector<const char *> &from, size_t count, ncclDataType_t type,
                 ncclRedOp_t operation) {
    switch (type) {
        case ncclInt8: return reduce<int8_t, int8_t>(to, from, count, operation);
        case ncclUint8: return reduce<uint8_t, uint8_t>(to, from, count, operation);
        case ncclInt32: return reduce<int32_t, int32_t>(to, from, count, operation);
        case ncclUint32: return reduce<uint32_t, uint32_t>(to, from, count, operation);
        case ncclInt64: return reduce<int64_t, int64_t>(to, from, count, operation);
        case ncclUint64: return reduce<uint64_t, uint64_t>(to, from, count, operation);
        case ncclFloat16: return reduce<__half, float>(to, from, count, operation);
        case ncclBfloat16: return reduce<__nv_bfloat16, float>(to, from, count, operation);
        case ncclFloat32: return reduce<float, float>(to, from, count, operation);
        case ncclFloat64: return reduce<double, double>(to, from, count, operation);
        default: fatal("nccl: type %d", type);
    }
}

}  // namespace cudasim
