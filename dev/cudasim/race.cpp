// The race build. The program's own code is compiled with -fsanitize=thread, whose hooks (tsan_hooks.cpp) come here;
// libtsan is not linked. Each two bytes of device, pinned and shared memory have a cell: who wrote them last, who read
// them since (two readers). An access that is not ordered after those is a race: within a block by barriers and
// __syncwarp, between blocks by fence and atomic, between operations and the host by vector clocks (stream.h). Reads of
// memory that nobody wrote and accesses outside of allocations are found on the way. One finding a kind and pair of
// names is reported; the program ends with status 66.
//
// Accesses of one byte are checked as if they were two.
#include "dev/cudasim/race.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "dev/cudasim/block.h"
#include "dev/cudasim/memory.h"
#include "dev/cudasim/race_hooks.h"
#include "dev/cudasim/report.h"
#include "dev/cudasim/stats.h"
#include "dev/cudasim/stream.h"

namespace cudasim {
namespace {

struct Access {
    uint32_t actor;    // index into actors(); 0: none
    uint32_t block;    // serial number; 0: no kernel
    uint32_t barrier;  // epochs
    uint32_t thread : 10, warp : 21, atomic : 1;
};
struct Cell {
    Access write, read, read2;
    enum State : uint32_t { NOWHERE, FRESH, WRITTEN } state;  // not allocated, not initialised, initialised
};
enum { CELL = 2, PAGE = 4096 };  // bytes of memory a cell; bytes of a page of them

// Who accesses memory: an operation of a stream, or the host between two of its calls.
struct Actor {
    std::string name;
    int stream;
    uint32_t sequence;
};
std::vector<Actor> &actors() {
    static auto &a = *new std::vector<Actor>(1);
    return a;
}

uint32_t actor_now() {
    static uint32_t last;
    int stream = running_operation ? running_operation->stream : int{HOST};
    // What the host does after its k-th call has number k + 1: operation k + 1 is ordered after it.
    uint32_t sequence = running_operation ? running_operation->sequence : host_clock()[HOST] + 1;
    const Actor &a = actors()[last];
    if (last == 0 || a.stream != stream || a.sequence != sequence) {
        actors().push_back({running_operation ? running_operation->name : "host code", stream, sequence});
        last = static_cast<uint32_t>(actors().size() - 1);
    }
    return last;
}
const Clock &clock_now() {
    return running_operation ? running_operation->clock : host_clock();
}

// ---- cells ----

class Shadow {
   public:
    void cover(char *base, size_t bytes) {
        base_ = base;
        bytes_ = bytes;
        void *memory = mmap(nullptr, bytes / CELL * sizeof(Cell), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            fatal("no address space for the race build's cells");
        cells_ = static_cast<Cell *>(memory);
    }
    bool has(const void *p) const {
        return static_cast<size_t>(static_cast<const char *>(p) - base_) < bytes_;
    }
    Cell *first(const void *p) const {
        return cells_ + (static_cast<const char *>(p) - base_) / CELL;
    }
    Cell *end(const void *p, size_t bytes) const {
        return first(static_cast<const char *>(p) + bytes - 1) + 1;
    }

   private:
    char *base_ = nullptr;
    size_t bytes_ = 0;  // 0: covers nothing yet
    Cell *cells_ = nullptr;
};
Shadow shadows[3];  // shared, device, pinned

const char *kind_of(const Shadow *s) {
    static const char *const kinds[] = {"shared", "device", "pinned"};
    return kinds[s - shadows];
}

Shadow *shadow_of(const void *p) {
    for (Shadow &s : shadows)
        if (s.has(p))
            return &s;
    return nullptr;
}

void cover_once() {
    Arena *arenas[] = {&device_memory(), &pinned_memory()};
    static bool covered[3];
    if (!covered[0])
        shadows[0].cover(shared_base(), shared_arena_bytes());
    covered[0] = true;
    for (int i = 0; i < 2; i++)
        if (!covered[1 + i] && arenas[i]->base()) {
            shadows[1 + i].cover(arenas[i]->base(), ARENA_ADDRESS_BYTES);
            covered[1 + i] = true;
        }
}

// ---- findings ----

enum { MAX_SHOWN = 10, EXIT_STATUS = 66 };

void exit_with_findings();

std::string source_line(void *pc) {
    Dl_info info;
    if (!pc || !dladdr(pc, &info) || !info.dli_fname)
        return "";
    char command[600], line[400] = "";
    snprintf(command, sizeof command, "addr2line -e '%s' %#zx 2>/dev/null", info.dli_fname,
             static_cast<size_t>(static_cast<char *>(pc) - static_cast<char *>(info.dli_fbase)) - 1);
    if (FILE *pipe = popen(command, "r")) {
        if (!fgets(line, sizeof line, pipe))
            line[0] = 0;
        pclose(pipe);
    }
    line[strcspn(line, "\n")] = 0;
    return line;
}

std::set<std::string> &findings() {
    static auto &f = *new std::set<std::string>;
    return f;
}

void report(const char *what, const void *p, const Shadow *shadow, const Access *earlier, void *pc) {
    std::string me = running_operation ? running_operation->name : "host code";
    std::string other = earlier ? actors()[earlier->actor].name : "";
    if (!findings().insert(std::string(what) + "|" + me + "|" + other + "|" + kind_of(shadow)).second)
        return;
    if (findings().size() == 1)
        atexit(exit_with_findings);
    if (findings().size() > MAX_SHOWN)
        return;
    fflush(stdout);
    fprintf(stderr, "\n==CUDASIM RACE: %s, %s memory at %p\n", what, kind_of(shadow), p);
    if (!current_thread)
        fprintf(stderr, "    now    %s %s\n", me.c_str(), source_line(pc).c_str());
    else
        fprintf(stderr, "    now    %s, block (%u,%u,%u), thread %u %s\n", me.c_str(), block_index.x, block_index.y,
                block_index.z, current_thread->number, source_line(pc).c_str());
    if (earlier && earlier->block)
        fprintf(stderr, "    before %s, thread %u of %s block\n", other.c_str(), static_cast<unsigned>(earlier->thread),
                earlier->block == block_serial ? "the same" : "another");
    else if (earlier)
        fprintf(stderr, "    before %s\n", other.c_str());
}

void exit_with_findings() {
    fprintf(stderr, "\n==CUDASIM RACE: %zu finding(s)\n", findings().size());
    fflush(nullptr);
    _exit(EXIT_STATUS);
}

// ---- order ----

// Hand-off between blocks: writes, __threadfence, (barrier,) an atomic on global memory (an allocation or a __device__
// variable) by one thread; whoever does such an atomic later, and its block from then on, is ordered after them.
struct Release {
    uint32_t barrier;
    unsigned thread;
};
std::map<uint32_t, Release> &released() {  // block serial → its last release
    static auto &r = *new std::map<uint32_t, Release>;
    return r;
}
bool fenced, acquired;  // of the running block

bool handed_off(const Access &a) {
    auto it = acquired ? released().find(a.block) : released().end();
    return it != released().end() && (a.barrier < it->second.barrier || a.thread == it->second.thread);
}

bool ordered(const Access &a, uint32_t actor) {
    if (a.actor != actor) {
        const Actor &other = actors()[a.actor];
        const Clock &clock = clock_now();
        auto stream = static_cast<size_t>(other.stream);
        return (!running_operation && other.stream == HOST) ||
               (stream < clock.size() && clock[stream] >= other.sequence);
    }
    if (!current_thread)
        return true;
    if (a.block != block_serial)
        return handed_off(a);
    return a.thread == current_thread->number || a.barrier != barrier_epoch ||
           (a.thread / 32 == current_thread->warp() && a.warp != (warp_epoch(current_thread->warp()) & 0x1fffff));
}

// ---- the check ----

struct Counts {
    unsigned new_loads, new_stores;  // cells that this operation had not loaded, stored before
};

void check_cell(Cell &c, const void *p, const Shadow *shadow, const Access &now, bool write, void *pc, Counts *counts) {
    if (c.state == Cell::NOWHERE)
        report(write ? "write outside of any allocation" : "read outside of any allocation", p, shadow, nullptr, pc);
    if (!write && c.state == Cell::FRESH)
        report("read of uninitialised memory", p, shadow, nullptr, pc);
    if (c.write.actor && !(now.atomic && c.write.atomic) && !ordered(c.write, now.actor))
        report(write ? "two writes without order" : "read without order after a write", p, shadow, &c.write, pc);
    if (write) {
        for (const Access *read : {&c.read, &c.read2})
            if (read->actor && !(now.atomic && read->atomic) && !ordered(*read, now.actor))
                report("write without order after a read", p, shadow, read, pc);
        counts->new_stores += c.write.actor != now.actor;
        c.write = now;
        c.read.actor = c.read2.actor = 0;
        if (c.state == Cell::FRESH)
            c.state = Cell::WRITTEN;
    } else {
        counts->new_loads += c.write.actor != now.actor && c.read.actor != now.actor && c.read2.actor != now.actor;
        (!c.read.actor || ordered(c.read, now.actor) ? c.read : c.read2) = now;
    }
}

void check(const void *p, size_t bytes, bool write, bool atomic, void *pc) {
    Shadow *shadow = shadow_of(p);
    if (!shadow || !bytes)
        return;
    if (!running_operation && shadow == &shadows[1]) {
        report("host code touches device memory", p, shadow, nullptr, pc);
        return;
    }
    Access now{actor_now(), 0, 0, 0, 0, atomic};
    if (current_thread) {
        now.block = block_serial;
        now.barrier = barrier_epoch;
        now.thread = current_thread->number & 1023;
        now.warp = warp_epoch(current_thread->warp()) & 0x1fffff;
    }
    Counts counts{0, 0};
    auto *at = static_cast<const char *>(p);
    for (Cell *c = shadow->first(p), *end = shadow->end(p, bytes); c != end; c++, at += CELL)
        check_cell(*c, at, shadow, now, write, pc, &counts);
    CudasimStats *stats = stats_running();
    if (stats && shadow == &shadows[1]) {
        (write ? stats->store_bytes : stats->load_bytes) += bytes;
        (write ? stats->stores : stats->loads)++;
        stats->distinct_load_bytes += CELL * counts.new_loads;
        stats->distinct_store_bytes += CELL * counts.new_stores;
    }
}

thread_local bool other_thread = true;  // threads of the host that do not drive the device are not looked at
bool is_device_thread() {
    static bool found = (other_thread = false, true);
    return found && !other_thread;
}

void set_state(const void *p, size_t bytes, Cell::State state) {
    is_device_thread();
    cover_once();
    if (!bytes)
        return;
    Shadow *shadow = shadow_of(p);
    Cell *begin = shadow->first(p), *end = shadow->end(p, bytes);
    // Whole pages of cells that are nowhere, which is all bits zero, go back to the system.
    auto page = (reinterpret_cast<uintptr_t>(begin) + PAGE - 1) & ~uintptr_t{PAGE - 1};
    auto page_end = reinterpret_cast<uintptr_t>(end) & ~uintptr_t{PAGE - 1};
    if (state == Cell::NOWHERE && page < page_end)
        madvise(reinterpret_cast<void *>(page), page_end - page, MADV_DONTNEED);
    for (Cell *c = begin; c != end; c++) {
        auto address = reinterpret_cast<uintptr_t>(c);
        if (state != Cell::NOWHERE || address < page || address + sizeof *c > page_end)
            *c = Cell{{}, {}, {}, state};
    }
}

}  // namespace

// Pinned memory counts as written: the host fills it by calls that are not seen here (memcpy, read).
void race_allocate(const void *memory, size_t bytes) {
    set_state(memory, bytes, pinned_memory().contains(memory) ? Cell::WRITTEN : Cell::FRESH);
}
void race_release(const void *memory, size_t bytes) {
    set_state(memory, bytes, Cell::NOWHERE);
}
void race_access(const void *memory, size_t bytes, bool write) {
    check(memory, bytes, write, false, nullptr);
}
void race_begin_block() {
    fenced = acquired = false;
}
void race_hook(const void *memory, size_t bytes, bool write, void *pc) {
    if (!other_thread)
        check(memory, bytes, write, false, pc);
}

void race_atomic(const void *p, size_t bytes) {
    check(p, bytes, true, true, nullptr);
    if (!current_thread || shadows[0].has(p))
        return;
    acquired = true;
    if (fenced)
        released()[block_serial] = {barrier_epoch, current_thread->number};
}
void race_fence() {
    fenced = true;
}

}  // namespace cudasim
