#include "dev/cudasim/stream.h"

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "dev/cudasim/memory.h"
#include "dev/cudasim/report.h"
#include "dev/cudasim/settings.h"
#include "dev/cudasim/stats.h"

namespace cudasim {

Operation *running_operation;

namespace {

using Stream = CUstream_st;

struct Streams {
    std::vector<Stream *> all;  // all[0] is the legacy default stream; stream number = index + 1
    OperationRef last_default;  // of the legacy default stream
    uint64_t operations = 0;
    Clock host;
    uint64_t waits = 0;
    Streams() {
        all.push_back(new Stream(1, true));
    }
};
Streams &streams() {
    static Streams &s = *new Streams;  // outlives static destructors
    return s;
}

Stream *of_handle(cudaStream_t handle) {
    if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread)
        return streams().all[0];
    if (handle->destroyed)
        fatal("a stream is used after cudaStreamDestroy");
    return handle;
}

bool is_first_thread() {
    static const std::thread::id first = std::this_thread::get_id();
    return std::this_thread::get_id() == first;
}

void check_host_thread() {
    if (!is_first_thread())
        fatal("two host threads use CUDA: the simulator, like the program, drives a device from one");
    if (running_operation)
        fatal("CUDA is called from within device work (a kernel or a host function)");
}

void merge(Clock &clock, const Clock &other) {
    if (clock.size() < other.size())
        clock.resize(other.size());
    for (size_t i = 0; i < other.size(); i++)
        clock[i] = std::max(clock[i], other[i]);
}

void tick(Clock &clock, size_t stream, uint32_t sequence) {
    if (clock.size() <= stream)
        clock.resize(stream + 1);
    clock[stream] = sequence;
}

bool may_run(Operation &o) {
    while (!o.after.empty() && o.after.back()->done)
        o.after.pop_back();
    return o.after.empty();
}

// Mark what `target` needs, itself included.
uint64_t mark_wanted(const OperationRef &target) {
    uint64_t mark = ++streams().waits;
    std::vector<Operation *> open{target.get()};
    while (!open.empty()) {
        Operation *o = open.back();
        open.pop_back();
        if (o->done || o->wanted == mark)
            continue;
        o->wanted = mark;
        for (const OperationRef &other : o->after)
            open.push_back(other.get());
    }
    return mark;
}

// The streams whose first operation may run, in the order to try them; with a mark, only those with work that is
// wanted. Empty: nothing can run.
std::vector<Stream *> runnable(uint64_t mark) {
    std::vector<Stream *> found;
    for (Stream *s : streams().all)
        if (!s->queue.empty() && may_run(*s->queue.front()) && (!mark || s->queue.front()->wanted == mark))
            found.push_back(s);
    Order order = settings().streams;
    if (order == Order::RANDOM)
        std::shuffle(found.begin(), found.end(), random_numbers());
    else
        std::sort(found.begin(), found.end(), [&](const Stream *a, const Stream *b) {
            return (a->queue.front()->id < b->queue.front()->id) == (order == Order::IN_ORDER);
        });
    return found;
}

// Try the first operation of one stream; true: it is done.
bool step(Stream *s) {
    OperationRef o = s->queue.front();
    running_operation = o.get();
    stats_begin(*o);
    bool finished = o->step();
    stats_end(*o, finished);
    running_operation = nullptr;
    if (!finished)
        return false;
    o->done = true;
    o->step = nullptr;
    s->queue.pop_front();
    return true;
}

bool step_any(const std::vector<Stream *> &candidates) {
    for (Stream *s : candidates)
        if (step(s))
            return true;
    return false;
}

void report_stream_deadlock() {
    for (const Stream *s : streams().all)
        if (!s->queue.empty())
            fprintf(stderr, "    stream %d waits at %s\n", s->number, s->queue.front()->name.c_str());
    fatal("deadlock: streams wait for each other");
}

// A wait runs only what it wants, which is the laziest legal order; in random order one wait in sixteen runs
// everything.
void run_until(const std::function<bool()> &done, uint64_t mark) {
    check_host_thread();
    DeviceWindow window(true);
    if (settings().streams == Order::RANDOM && random_numbers()() % 16 == 0)
        mark = 0;
    unsigned idle = 0;
    while (!done()) {
        std::vector<Stream *> candidates = runnable(mark);
        if (candidates.empty())
            report_stream_deadlock();
        if (step_any(candidates)) {
            idle = 0;
        } else if (++idle > 4) {  // collectives that wait for other processes: let these have the core
            timespec pause{0, 100000};
            nanosleep(&pause, nullptr);
        }
    }
}

void order_host_after(const OperationRef &o) {
    if (o)
        merge(streams().host, o->clock);
}

}  // namespace

const Clock &host_clock() {
    if (streams().host.empty())
        streams().host.resize(1);
    return streams().host;
}

OperationRef enqueue(cudaStream_t handle, std::string name, std::function<bool()> what,
                     std::vector<OperationRef> after) {
    check_host_thread();
    Stream *s = of_handle(handle), *null_stream = streams().all[0];
    auto o = std::make_shared<Operation>();
    o->name = std::move(name);
    o->step = std::move(what);
    o->after = std::move(after);
    if (s->last)
        o->after.push_back(s->last);
    // The legacy default stream comes after everything before it in blocking streams, and before everything behind it.
    if (s == null_stream) {
        for (Stream *other : streams().all)
            if (other->blocking && other->last)
                o->after.push_back(other->last);
        streams().last_default = o;
    } else if (s->blocking && streams().last_default) {
        o->after.push_back(streams().last_default);
    }
    Clock &host = streams().host;
    tick(host, HOST, host.empty() ? 1 : host[HOST] + 1);
    o->id = ++streams().operations;
    o->clock = host;
    for (const OperationRef &other : o->after)
        merge(o->clock, other->clock);
    o->stream = s->number;
    o->sequence = ++s->enqueued;
    tick(o->clock, static_cast<size_t>(s->number), o->sequence);
    s->last = o;
    s->queue.push_back(o);
    return o;
}

void wait_for(const OperationRef &o) {
    if (!o)
        return;
    if (!o->done)
        run_until([&] { return o->done; }, mark_wanted(o));
    order_host_after(o);
}

void wait_for_all() {
    run_until(
        [] {
            return std::all_of(streams().all.begin(), streams().all.end(), [](Stream *s) { return s->queue.empty(); });
        },
        0);
    for (Stream *s : streams().all)
        order_host_after(s->last);
}

bool poll(const OperationRef &o) {
    if (!o)
        return true;
    check_host_thread();
    if (!o->done) {
        DeviceWindow window(true);
        step_any(runnable(mark_wanted(o)));
    }
    if (o->done)
        order_host_after(o);
    return o->done;
}

void work_meanwhile() {
    DeviceWindow window(true);
    if (!step_any(runnable(0))) {
        timespec pause{0, 100000};
        nanosleep(&pause, nullptr);
    }
}

bool drives_device() {
    return is_first_thread();
}
OperationRef last_operation(cudaStream_t stream) {
    return of_handle(stream)->last;
}
bool is_null_stream(cudaStream_t stream) {
    return of_handle(stream) == streams().all[0];
}

}  // namespace cudasim

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    auto &all = cudasim::streams().all;
    *stream = new CUstream_st(static_cast<int>(all.size()) + 1, !(flags & cudaStreamNonBlocking));
    all.push_back(*stream);
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    cudasim::of_handle(stream)->destroyed = true;  // its work goes on; the caller does not wait
    return cudaSuccess;
}

}  // extern "C"
