#include "dev/cudasim/warp.h"

#include "dev/cudasim/block.h"
#include "dev/cudasim/report.h"

namespace cudasim {

int lane_index() {
    return static_cast<int>(current_thread->lane());
}

void rendezvous(const char *what, uint32_t mask, Combine combine, void *slot, bool orders_memory) {
    Thread *t = current_thread;
    if (!(mask >> t->lane() & 1))
        fatal("%s: lane %u is not in its own mask %08x", what, t->lane(), mask);
    t->call = WarpCall{what, mask, combine, slot, orders_memory};
    block_wait_in_warp_call();
}

bool rendezvous_complete(Thread &thread) {
    unsigned warp = thread.warp();
    const WarpCall call = thread.call;
    uint32_t lanes = call.mask & lanes_alive(warp);
    if ((lanes_waiting(warp) & lanes) != lanes)
        return false;
    void *slots[32] = {};
    for (unsigned lane = 0; lane < 32; lane++) {
        if (!(lanes >> lane & 1))
            continue;
        const WarpCall &other = block_thread(warp * 32 + lane).call;
        if (other.mask != call.mask || other.combine != call.combine)
            fatal("lanes of a warp do not agree: lane %u is in %s with mask %08x, lane %u in %s with mask %08x",
                  thread.lane(), call.what, call.mask, lane, other.what, other.mask);
        slots[lane] = other.slot;
    }
    call.combine(slots);
    block_warp_call_done(warp, lanes, call.orders_memory);
    return true;
}

namespace {
void count_ballot(void *const *slots) {
    uint32_t votes = 0;
    for (int lane = 0; lane < 32; lane++)
        if (slots[lane] && static_cast<Ballot *>(slots[lane])->predicate)
            votes |= 1u << lane;
    for (int lane = 0; lane < 32; lane++)
        if (slots[lane])
            static_cast<Ballot *>(slots[lane])->votes = votes;
}
void nothing(void *const *) {
}
}  // namespace

uint32_t ballot(const char *what, uint32_t mask, bool predicate) {
    Ballot slot{predicate, 0};
    rendezvous(what, mask, count_ballot, &slot);
    return slot.votes;
}

}  // namespace cudasim

void __syncwarp(uint32_t mask) {
    cudasim::rendezvous("__syncwarp", mask, cudasim::nothing, nullptr, true);
}
