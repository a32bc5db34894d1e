// warp: what the 32 lanes of a warp do together. Every primitive is a rendezvous: it goes on when all lanes of its mask
// that have not ended have arrived at the same primitive with the same mask; anything else is reported.
#ifndef DEV_CUDASIM_WARP_H
#define DEV_CUDASIM_WARP_H

#include <cstdint>
#include <cstring>

namespace cudasim {

// Does the exchange for all lanes at once. slots[lane] is what that lane brought, NULL for lanes that do not take part.
using Combine = void (*)(void *const *slots);
// orders_memory: accesses to memory before it, by any of these lanes, happen before those after it. CUDA promises this
// of
// __syncwarp only, not of shuffles and votes.
void rendezvous(const char *what, uint32_t mask, Combine combine, void *slot, bool orders_memory = false);
int lane_index();

template <class T>
struct Shuffle {
    T mine, received;
    int source;  // lane, or -1: outside of the segment, the lane keeps its own value
};
template <class T>
void shuffle_all(void *const *slots) {
    for (int lane = 0; lane < 32; lane++) {
        auto *to = static_cast<Shuffle<T> *>(slots[lane]);
        if (!to)
            continue;
        auto *from = to->source < 0 ? to : static_cast<Shuffle<T> *>(slots[to->source]);
        if (from)
            to->received = from->mine;
        else
            memset(static_cast<void *>(&to->received), 0xff, sizeof(T));  // CUDA: undefined. Here: NaN
    }
}
template <class T>
T shuffle(const char *what, uint32_t mask, T value, int source) {
    Shuffle<T> slot{value, value, source};
    rendezvous(what, mask, shuffle_all<T>, &slot);
    return slot.received;
}

struct Ballot {
    bool predicate;
    uint32_t votes;
};
uint32_t ballot(const char *what, uint32_t mask, bool predicate);

}  // namespace cudasim

void __syncwarp(uint32_t mask = 0xffffffffu);

// `width` (a power of two) splits the warp into segments that do not see each other.
template <class T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32) {
    int first = cudasim::lane_index() & ~(width - 1);
    return cudasim::shuffle("__shfl_sync", mask, value, first + (source & (width - 1)));
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int lane_mask, int width = 32) {
    int lane = cudasim::lane_index(), source = lane ^ lane_mask, end = (lane & ~(width - 1)) + width;
    return cudasim::shuffle("__shfl_xor_sync", mask, value, source < end ? source : -1);
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, unsigned delta, int width = 32) {
    int lane = cudasim::lane_index(), source = lane + static_cast<int>(delta), end = (lane & ~(width - 1)) + width;
    return cudasim::shuffle("__shfl_down_sync", mask, value, source < end ? source : -1);
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = 32) {
    int lane = cudasim::lane_index(), source = lane - static_cast<int>(delta), first = lane & ~(width - 1);
    return cudasim::shuffle("__shfl_up_sync", mask, value, source >= first ? source : -1);
}
inline uint32_t __ballot_sync(uint32_t mask, int predicate) {
    return cudasim::ballot("__ballot_sync", mask, predicate != 0);
}
inline int __any_sync(uint32_t mask, int predicate) {
    return cudasim::ballot("__any_sync", mask, predicate != 0) != 0;
}
inline int __all_sync(uint32_t mask, int predicate) {
    return cudasim::ballot("__all_sync", mask, predicate == 0) == 0;
}

#endif
