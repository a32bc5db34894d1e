// block: the threads of the block that runs. Internal to the simulator.
#ifndef DEV_CUDASIM_BLOCK_H
#define DEV_CUDASIM_BLOCK_H

#include <cstdint>
#include <functional>
#include <vector>

#include "dev/cudasim/fiber.h"
#include "dev/cudasim/kernel.h"
#include "dev/cudasim/warp.h"

namespace cudasim {

struct WarpCall {  // what a lane waits in
    const char *what;
    uint32_t mask;
    Combine combine;
    void *slot;
    bool orders_memory;
};

struct AsyncCopy {  // of cp.async
    void *shared;
    const void *global;
    int bytes, source_bytes;
    unsigned group;
};

struct Thread {
    enum State : uint8_t { NEW, READY, AT_BARRIER, IN_WARP_CALL, ENDED } state;
    unsigned number;  // in the block: x fastest
    uint3 index;
    Fiber *fiber;
    BarrierSite site;  // AT_BARRIER
    bool vote;
    WarpCall call;                  // IN_WARP_CALL
    std::vector<AsyncCopy> copies;  // issued, not yet waited for
    unsigned copy_groups;           // committed

    unsigned lane() const {
        return number % 32;
    }
    unsigned warp() const {
        return number / 32;
    }
};

extern Thread *current_thread;  // NULL: host code, or an operation that is no kernel

// The three counters that say when an access happened; two accesses of one block with the same barrier epoch (and, in
// one warp, the same warp epoch) are not ordered.
extern uint32_t block_serial;   // of all blocks that ever ran
extern uint32_t barrier_epoch;  // of the block
uint32_t warp_epoch(unsigned warp);

void block_run(const dim3 &size, const std::function<void()> &body);
Thread &block_thread(unsigned number);
uint32_t lanes_waiting(unsigned warp);
uint32_t lanes_alive(unsigned warp);

// The lanes that `thread` waits for are there: do their exchange, wake them. Else false (warp.cpp).
bool rendezvous_complete(Thread &thread);
// For rendezvous: the running thread waits; `lanes` of a warp go on, their exchange is done.
void block_wait_in_warp_call();
void block_warp_call_done(unsigned warp, uint32_t lanes, bool orders_memory);

// ---- shared memory of the block (shared.cpp) ----
enum : size_t { SHARED_STATIC_LIMIT = 48 << 10, SHARED_BLOCK_LIMIT = 227 << 10 };  // sm_90; nvcc refuses more static
void shared_begin_block(size_t dynamic_bytes);
bool is_shared(const void *address, size_t bytes);  // inside the arena of shared memory
char *shared_base();
size_t shared_arena_bytes();

void run_grid(const LaunchConfig &config, const std::function<void()> &body);  // grid.cpp

}  // namespace cudasim

#endif
