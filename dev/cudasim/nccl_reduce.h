// nccl_reduce: NCCL's element types and reductions, in rank order. Floats of 16 and 32 bits are summed in fp32 and
// rounded once; a GPU's own order differs, so tests of sums against a GPU need a tolerance.
#ifndef DEV_CUDASIM_NCCL_REDUCE_H
#define DEV_CUDASIM_NCCL_REDUCE_H

#include <nccl.h>

#include <cstddef>
#include <vector>

namespace cudasim {

size_t nccl_size(ncclDataType_t type);  // bytes of an element; 0: not a type
// to[i] = from[0][i] ∘ from[1][i] ∘ …
void nccl_reduce(void *to, const std::vector<const char *> &from, size_t count, ncclDataType_t type,
                 ncclRedOp_t operation);

}  // namespace cudasim

#endif
