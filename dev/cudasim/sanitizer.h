// sanitizer: marks memory as forbidden for AddressSanitizer builds; nothing elsewhere.
#ifndef DEV_CUDASIM_SANITIZER_H
#define DEV_CUDASIM_SANITIZER_H

#include <cstddef>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace cudasim {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool HAVE_ASAN = true;
inline void forbid(const void *memory, size_t bytes) {
    __asan_poison_memory_region(memory, bytes);
}
inline void allow(const void *memory, size_t bytes) {
    __asan_unpoison_memory_region(memory, bytes);
}
#else
constexpr bool HAVE_ASAN = false;
inline void forbid(const void *, size_t) {
}
inline void allow(const void *, size_t) {
}
#endif

}  // namespace cudasim

#endif
