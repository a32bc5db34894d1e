// One block: a fiber for every thread that has begun, switched where threads wait for each other. Within these points
// the order of threads is free, and the settings choose it.
#include "dev/cudasim/block.h"

#include <cstdio>
#include <cstring>

#include "dev/cudasim/report.h"
#include "dev/cudasim/settings.h"

namespace cudasim {

uint3 thread_index, block_index;
dim3 block_size, grid_size;
Thread *current_thread;
uint32_t block_serial, barrier_epoch;

namespace {

struct Warp {
    uint32_t alive, waiting;  // lanes that have not ended; that wait in a warp call
    uint32_t epoch;           // of memory order
};

std::vector<Thread> threads;
std::vector<Warp> warps;
std::vector<unsigned> ready;  // numbers of the threads that can run; the next one is at the back
unsigned n_alive, n_at_barrier;
const std::function<void()> *kernel_body;

bool waits_alike(const Thread &a, const Thread &b) {
    if (a.state != b.state)
        return false;
    if (a.state == Thread::AT_BARRIER)
        return a.site.line == b.site.line;
    return a.state != Thread::IN_WARP_CALL ||
           (a.warp() == b.warp() && a.call.mask == b.call.mask && a.call.combine == b.call.combine);
}

void report_deadlock() {
    fprintf(stderr, "\n");
    for (size_t first = 0, end; first < threads.size(); first = end) {  // ranges of threads that wait alike
        const Thread &t = threads[first];
        for (end = first + 1; end < threads.size() && waits_alike(t, threads[end]); end++) {
        }
        if (t.state == Thread::AT_BARRIER)
            fprintf(stderr, "    threads %zu to %zu wait at __syncthreads, %s:%d\n", first, end - 1, t.site.file,
                    t.site.line);
        if (t.state == Thread::IN_WARP_CALL)
            fprintf(stderr, "    threads %zu to %zu wait in %s for the lanes %08x; arrived are %08x of %08x\n", first,
                    end - 1, t.call.what, t.call.mask, warps[t.warp()].waiting, warps[t.warp()].alive);
    }
    fatal(
        "deadlock: the threads of a block wait for each other (a wrong mask, or a barrier that only some threads "
        "reach)");
}

Thread *next_ready() {
    if (ready.empty())
        report_deadlock();
    if (settings().threads == Order::RANDOM)
        std::swap(ready[random_numbers()() % ready.size()], ready.back());
    Thread *thread = &threads[ready.back()];
    ready.pop_back();
    return thread;
}

// Make all threads that are in `state` ready, so that the settings' first one is at the back.
void make_ready(Thread::State state) {
    unsigned n = static_cast<unsigned>(threads.size());
    bool reverse = settings().threads == Order::REVERSE;
    for (unsigned i = 0; i < n; i++) {
        unsigned number = reverse ? i : n - 1 - i;
        if (threads[number].state == state) {
            if (state != Thread::NEW)
                threads[number].state = Thread::READY;
            ready.push_back(number);
        }
    }
}

void thread_main();

void set_current(Thread *thread) {
    current_thread = thread;
    thread_index = thread->index;
}

// Leave the running fiber where it is and go on with another thread.
void run(Thread *thread) {
    set_current(thread);
    if (thread->state == Thread::NEW) {
        thread->fiber = fiber_take(thread_main);
        thread->state = Thread::READY;
    }
    if (thread->fiber != fiber_running())
        fiber_switch(thread->fiber);
}

void release_barrier() {
    const Thread *first = nullptr;
    for (const Thread &t : threads) {
        if (t.state != Thread::AT_BARRIER)
            continue;
        if (!first)
            first = &t;
        else if (t.site.line != first->site.line || strcmp(t.site.file, first->site.file) != 0)
            fatal("divergent barrier: thread %u waits at __syncthreads %s:%d, thread %u at %s:%d", first->number,
                  first->site.file, first->site.line, t.number, t.site.file, t.site.line);
    }
    n_at_barrier = 0;
    barrier_epoch++;
    make_ready(Thread::AT_BARRIER);
}

// Did lanes wait in warp calls for the one that ended only?
void recheck_warp_calls(unsigned warp) {
    for (unsigned lane = 0; lane < 32; lane++)
        if (warps[warp].waiting >> lane & 1)
            rendezvous_complete(threads[warp * 32 + lane]);
}

void end_thread() {
    Thread *t = current_thread;
    t->state = Thread::ENDED;
    t->copies.clear();
    n_alive--;
    warps[t->warp()].alive &= ~(1u << t->lane());
    if (n_alive && n_at_barrier == n_alive)
        release_barrier();
    recheck_warp_calls(t->warp());
}

// What a fiber does: run one thread after another. A thread that has not begun takes over the fiber of one that ended,
// without a switch.
void thread_main() {
    fiber_entered();
    for (;;) {
        (*kernel_body)();
        end_thread();
        if (n_alive) {
            Thread *next = next_ready();
            if (next->state == Thread::NEW) {
                next->fiber = fiber_running();
                next->state = Thread::READY;
                set_current(next);
                continue;
            }
            fiber_give_back(fiber_running());
            run(next);
        } else {
            fiber_give_back(fiber_running());
            fiber_switch(fiber_host());
        }
        // Taken again, for the thread that run() has made current.
    }
}

}  // namespace

Thread &block_thread(unsigned number) {
    return threads[number];
}
uint32_t lanes_waiting(unsigned warp) {
    return warps[warp].waiting;
}
uint32_t lanes_alive(unsigned warp) {
    return warps[warp].alive;
}
uint32_t warp_epoch(unsigned warp) {
    return warps[warp].epoch;
}

void block_wait_in_warp_call() {
    Thread *t = current_thread;
    t->state = Thread::IN_WARP_CALL;
    warps[t->warp()].waiting |= 1u << t->lane();
    bool complete = rendezvous_complete(*t);
    // The last lane to arrive is ready like the others. It goes on at once unless the order is random.
    if (complete && settings().threads != Order::RANDOM) {
        ready.pop_back();
        return;
    }
    run(next_ready());
}

void block_warp_call_done(unsigned warp, uint32_t lanes, bool orders_memory) {
    warps[warp].waiting &= ~lanes;
    warps[warp].epoch += orders_memory;
    bool reverse = settings().threads == Order::REVERSE, current_is_one = false;
    for (unsigned i = 0; i < 32; i++) {
        unsigned lane = reverse ? i : 31 - i;
        if (!(lanes >> lane & 1))
            continue;
        Thread &t = threads[warp * 32 + lane];
        t.state = Thread::READY;
        if (&t == current_thread)
            current_is_one = true;
        else
            ready.push_back(t.number);
    }
    if (current_is_one)
        ready.push_back(current_thread->number);
}

void barrier(BarrierSite site) {
    Thread *t = current_thread;
    t->site = site;
    t->state = Thread::AT_BARRIER;
    if (++n_at_barrier == n_alive)
        release_barrier();
    run(next_ready());
}

int barrier_vote(BarrierSite site, bool predicate) {
    current_thread->vote = predicate;
    barrier(site);
    int in_favour = 0;
    for (const Thread &t : threads)
        in_favour += t.state != Thread::ENDED && t.vote;
    barrier(site);  // nobody changes its vote before all have counted
    return in_favour;
}

void block_run(const dim3 &size, const std::function<void()> &body) {
    unsigned n = size.x * size.y * size.z;
    block_serial++;
    barrier_epoch = 1;
    n_alive = n;
    n_at_barrier = 0;
    kernel_body = &body;
    threads.resize(n);
    for (unsigned i = 0; i < n; i++) {
        Thread &t = threads[i];
        t.state = Thread::NEW;
        t.number = i;
        t.index = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
        t.copy_groups = 0;
    }
    warps.assign((n + 31) / 32, Warp{0xffffffffu, 0, 0});
    if (n % 32)
        warps.back().alive = (1u << n % 32) - 1;
    ready.clear();
    make_ready(Thread::NEW);
    run(next_ready());
    current_thread = nullptr;
}

}  // namespace cudasim
