// guard: red zones inside an allocation. cudaMalloc leaves one around every allocation; an allocator that cuts tensors
// out of one large block leaves gaps of CUDASIM_GUARD_BYTES between them and marks each with cudasim_guard. ASan and
// the race build stop an access to a gap at once; the plain build finds a changed gap when the block is freed or the
// program ends.
#ifndef DEV_CUDASIM_GUARD_H
#define DEV_CUDASIM_GUARD_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CUDASIM_GUARD_BYTES = 256 };

// Both ends aligned to 8 bytes, inside one allocation of device or pinned memory. Until that is freed.
void cudasim_guard(void *gap, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
