// The functions that code compiled with -fsanitize=thread calls, with gcc. Those of libtsan are not linked.
#include <cstddef>
#include <cstdint>

#include "dev/cudasim/race_hooks.h"

#define HERE __builtin_return_address(0)

extern "C" {

void __tsan_init() {
}
void __tsan_func_entry(void *) {
}
void __tsan_func_exit() {
}
void __tsan_vptr_update(void *, void *) {
}
void __tsan_vptr_read(void *) {
}
void __tsan_read_range(void *p, size_t bytes) {
    cudasim::race_hook(p, bytes, false, HERE);
}
void __tsan_write_range(void *p, size_t bytes) {
    cudasim::race_hook(p, bytes, true, HERE);
}

#define ACCESS(prefix, bytes)                      \
    void __tsan_##prefix##read##bytes(void *p) {   \
        cudasim::race_hook(p, bytes, false, HERE); \
    }                                              \
    void __tsan_##prefix##write##bytes(void *p) {  \
        cudasim::race_hook(p, bytes, true, HERE);  \
    }
#define ACCESSES(bytes) ACCESS(, bytes) ACCESS(unaligned_, bytes) ACCESS(volatile_, bytes)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

// Atomics of the host's C and C++, which instrumented code calls in place of instructions.
#define ATOMICS(bits, type)                                                                            \
    type __tsan_atomic##bits##_load(const type *p, int) {                                              \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                   \
    }                                                                                                  \
    void __tsan_atomic##bits##_store(type *p, type v, int) {                                           \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                      \
    }                                                                                                  \
    type __tsan_atomic##bits##_exchange(type *p, type v, int) {                                        \
        return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                            \
    }                                                                                                  \
    type __tsan_atomic##bits##_fetch_add(type *p, type v, int) {                                       \
        return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                                             \
    }                                                                                                  \
    type __tsan_atomic##bits##_fetch_sub(type *p, type v, int) {                                       \
        return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST);                                             \
    }                                                                                                  \
    type __tsan_atomic##bits##_fetch_and(type *p, type v, int) {                                       \
        return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST);                                             \
    }                                                                                                  \
    type __tsan_atomic##bits##_fetch_or(type *p, type v, int) {                                        \
        return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST);                                              \
    }                                                                                                  \
    bool __tsan_atomic##bits##_compare_exchange_strong(type *p, type *expected, type v, int, int) {    \
        return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    }                                                                                                  \
    bool __tsan_atomic##bits##_compare_exchange_weak(type *p, type *expected, type v, int, int) {      \
        return __atomic_compare_exchange_n(p, expected, v, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);  \
    }
ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)
void __tsan_atomic_thread_fence(int) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
void __tsan_atomic_signal_fence(int) {
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

}  // extern "C"
