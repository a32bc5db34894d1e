#include "dev/cudasim/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "dev/cudasim/guard.h"
#include "dev/cudasim/race.h"
#include "dev/cudasim/report.h"
#include "dev/cudasim/sanitizer.h"
#include "dev/cudasim/settings.h"

namespace cudasim {
namespace {

enum : size_t { ALIGNMENT = 256, PAGE = 4096, MAX_RED_ZONE = 64 << 10 };
enum : unsigned char { POISON = 0xff, RED_ZONE_BYTE = 0xfb };

size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

void mark_gap(Gap gap) {
    allow(gap.start, gap.bytes);
    memset(gap.start, RED_ZONE_BYTE, gap.bytes);
    forbid(gap.start, gap.bytes);
    race_release(gap.start, gap.bytes);
}

// A write past an end that nobody stopped when it happened.
void check_gap(const Allocation &a, Gap gap) {
    if (HAVE_ASAN)
        return;  // it would have stopped it, and does not let us look
    for (size_t i = 0; i < gap.bytes; i++)
        if (static_cast<unsigned char>(gap.start[i]) != RED_ZONE_BYTE)
            fatal(
                "a red zone was overwritten: byte %td of the allocation of %zu bytes at %p (the sanitizer and race "
                "builds "
                "say where)",
                gap.start + i - a.start, a.bytes, static_cast<void *>(a.start));
}
void check_gaps(const Allocation &a) {
    for (Gap gap : a.red_zones)
        check_gap(a, gap);
    for (Gap gap : a.guards)
        check_gap(a, gap);
}

bool device_open = false;

// Say what a segmentation fault was about. (AddressSanitizer has its own handler, and poison for what was freed.)
void on_segmentation_fault(int, siginfo_t *info, void *) {
    if (device_memory().contains(info->si_addr)) {
        const Allocation *a = device_memory().find(info->si_addr);
        if (!device_open)
            fatal("host code touches device memory at %p (allocation of %zu bytes)", info->si_addr, a ? a->bytes : 0);
        fatal("%p is in no allocation of device memory", info->si_addr);
    }
    signal(SIGSEGV, SIG_DFL);
}

void watch_segmentation_faults() {
    struct sigaction action = {};
    action.sa_sigaction = on_segmentation_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
}

void at_exit() {
    DeviceWindow window(true);
    device_memory().check_red_zones();
    pinned_memory().check_red_zones();
    for (const Arena *arena : {&device_memory(), &pinned_memory()})
        if (settings().leaks && arena->allocated_bytes())
            fatal("%zu bytes of %s memory are not freed", arena->allocated_bytes(), arena->name());
}

}  // namespace

Arena &device_memory() {
    static Arena &arena = *new Arena("device");  // outlives static destructors
    return arena;
}
Arena &pinned_memory() {
    static Arena &arena = *new Arena("pinned");
    return arena;
}

void Arena::reserve() {
    void *memory = mmap(nullptr, ARENA_ADDRESS_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        fatal("cannot reserve %zu bytes of address space for %s memory", size_t{ARENA_ADDRESS_BYTES}, name_);
    base_ = static_cast<char *>(memory);
    readable_ = this != &device_memory() || !settings().protect;
    static bool once = false;
    if (once)
        return;
    once = true;
    atexit(at_exit);
    if (!HAVE_ASAN || settings().protect)
        watch_segmentation_faults();
}

void *Arena::allocate(size_t bytes) {
    if (!base_)
        reserve();
    // Larger allocations have larger red zones: strides over them are larger.
    size_t alignment = this == &pinned_memory() ? size_t{PAGE} : size_t{ALIGNMENT};
    size_t red_zone = std::clamp(round_up(bytes / 8, alignment), alignment, size_t{MAX_RED_ZONE});
    size_t behind = round_up(bytes + red_zone, ALIGNMENT) - bytes, total = round_up(red_zone + bytes + behind, PAGE);
    if (used_ + total > ARENA_ADDRESS_BYTES)
        fatal("%s memory: the address space is used up (%zu bytes were allocated over the run)", name_, used_);
    char *zone = base_ + used_;
    if (mprotect(zone, total, PROT_READ | PROT_WRITE) != 0)
        fatal("no memory for an allocation of %zu bytes", bytes);
    used_ += total;
    Allocation a{zone + red_zone, bytes, {}, {}};
    a.red_zones[0] = {zone, red_zone};
    a.red_zones[1] = {a.start + bytes, total - red_zone - bytes};
    for (Gap gap : a.red_zones)
        mark_gap(gap);
    allow(a.start, bytes);
    memset(a.start, POISON, bytes);
    race_allocate(a.start, bytes);
    if (!readable_)
        mprotect(zone, total, PROT_NONE);
    allocated_bytes_ += bytes;
    allocations_[a.start] = a;
    return a.start;
}

bool Arena::release(void *start) {
    auto it = allocations_.find(static_cast<char *>(start));
    if (it == allocations_.end())
        return false;
    DeviceWindow window(true);
    const Allocation &a = it->second;
    check_gaps(a);
    forbid(a.start, a.bytes);
    race_release(a.start, a.bytes);
    // The pages hold nothing else. Given back, and a later access to them faults in builds that do not catch it sooner.
    size_t total = static_cast<size_t>(a.red_zones[1].start + a.red_zones[1].bytes - a.red_zones[0].start);
    madvise(a.red_zones[0].start, total, MADV_DONTNEED);
    mprotect(a.red_zones[0].start, total, PROT_NONE);
    allocated_bytes_ -= a.bytes;
    allocations_.erase(it);
    return true;
}

Allocation *Arena::find(const void *address) {
    auto it = allocations_.upper_bound(static_cast<char *>(const_cast<void *>(address)));
    if (it == allocations_.begin())
        return nullptr;
    Allocation &a = (--it)->second;
    return static_cast<const char *>(address) < a.start + a.bytes ? &a : nullptr;
}

bool Arena::contains(const void *address) const {
    auto *p = static_cast<const char *>(address);
    return base_ && p >= base_ && p < base_ + ARENA_ADDRESS_BYTES;
}

void Arena::check_red_zones() {
    for (const auto &entry : allocations_)
        check_gaps(entry.second);
}

void Arena::protect(bool readable) {
    if (used_ && readable != readable_)
        mprotect(base_, used_, readable ? PROT_READ | PROT_WRITE : PROT_NONE);
    readable_ = readable;
}

DeviceWindow::DeviceWindow(bool open) : before_(device_open) {
    device_open = open;
    if (settings().protect)
        device_memory().protect(open);
}
DeviceWindow::~DeviceWindow() {
    device_open = before_;
    if (settings().protect)
        device_memory().protect(before_);
}

void check_device_range(const void *memory, size_t bytes, const char *what) {
    auto *p = static_cast<const char *>(memory);
    for (Arena *arena : {&device_memory(), &pinned_memory()}) {
        if (!arena->contains(memory))
            continue;
        const Allocation *a = arena->find(memory);
        if (!a)
            fatal("%s: %p is in no live allocation of %s memory", what, memory, arena->name());
        if (p + bytes > a->start + a->bytes)
            fatal("%s: %zu bytes at %p go %td bytes past the end of an allocation of %zu bytes", what, bytes, memory,
                  p + bytes - (a->start + a->bytes), a->bytes);
        for (Gap gap : a->guards)
            if (p < gap.start + gap.bytes && gap.start < p + bytes)
                fatal("%s: %zu bytes at %p reach into the gap between two tensors", what, bytes, memory);
    }
}

void touch(const void *memory, size_t bytes, bool write, const char *what) {
    check_device_range(memory, bytes, what);
    race_access(memory, bytes, write);
}

}  // namespace cudasim

void cudasim_guard(void *gap, size_t bytes) {
    using namespace cudasim;
    Arena &arena = device_memory().contains(gap) ? device_memory() : pinned_memory();
    Allocation *a = arena.find(gap);
    auto *start = static_cast<char *>(gap);
    if (!a || start + bytes > a->start + a->bytes || reinterpret_cast<uintptr_t>(gap) % 8 || bytes % 8)
        fatal("cudasim_guard: %zu bytes at %p: 8-aligned bytes inside one allocation", bytes, gap);
    DeviceWindow window(true);
    a->guards.push_back({start, bytes});
    mark_gap({start, bytes});
}
