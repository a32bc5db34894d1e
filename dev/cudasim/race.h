// race: the race build's checks (-DCUDASIM_RACE; race.cpp, tsan_hooks.cpp). In other builds these are empty.
#ifndef DEV_CUDASIM_RACE_H
#define DEV_CUDASIM_RACE_H

#include <cstddef>

namespace cudasim {

#ifdef CUDASIM_RACE
void race_allocate(const void *memory, size_t bytes);  // may be used from now on; not initialised
void race_release(const void *memory, size_t bytes);   // may not be used any more
void race_access(const void *memory, size_t bytes, bool write);
void race_begin_block();
void race_atomic(const void *memory, size_t bytes);
void race_fence();
#else
inline void race_allocate(const void *, size_t) {
}
inline void race_release(const void *, size_t) {
}
inline void race_access(const void *, size_t, bool) {
}
inline void race_begin_block() {
}
inline void race_atomic(const void *, size_t) {
}
inline void race_fence() {
}
#endif

}  // namespace cudasim

#endif
