// atomics: one host thread runs all simulated threads and switches only in barriers and rendezvous, so a plain
// read-modify-write is atomic. The race build is told that it is one.
#ifndef DEV_CUDASIM_ATOMICS_H
#define DEV_CUDASIM_ATOMICS_H

#include "dev/cudasim/race.h"

namespace cudasim {

template <class T, class Update>
__attribute__((noinline, no_sanitize("thread"))) T atomic_update(T *address, Update update) {
    race_atomic(address, sizeof(T));
    T before = *address;
    *address = update(before);
    return before;
}
template <class T>
struct Same {
    using type = T;  // keeps the second argument out of template argument deduction
};

}  // namespace cudasim

#define CUDASIM_ATOMIC(name, expression)                                                \
    template <class T>                                                                  \
    T name(T *address, typename cudasim::Same<T>::type value) {                         \
        return cudasim::atomic_update(address, [=](T old) -> T { return expression; }); \
    }
CUDASIM_ATOMIC(atomicAdd, old + value)
CUDASIM_ATOMIC(atomicSub, old - value)
CUDASIM_ATOMIC(atomicMax, old < value ? value : old)
CUDASIM_ATOMIC(atomicMin, value < old ? value : old)
CUDASIM_ATOMIC(atomicAnd, old &value)
CUDASIM_ATOMIC(atomicOr, old | value)
CUDASIM_ATOMIC(atomicXor, old ^ value)
CUDASIM_ATOMIC(atomicExch, (static_cast<void>(old), value))
CUDASIM_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
#undef CUDASIM_ATOMIC

template <class T>
T atomicCAS(T *address, typename cudasim::Same<T>::type compare, typename cudasim::Same<T>::type value) {
    return cudasim::atomic_update(address, [=](T old) -> T { return old == compare ? value : old; });
}

#endif
