// Shared memory: one arena, used again by every block. Dynamic shared memory comes first, then the static arrays in the
// order in which the block's threads reach them, each with a red zone behind.
#include <cstdint>
#include <cstring>

#include "dev/cudasim/block.h"
#include "dev/cudasim/race.h"
#include "dev/cudasim/report.h"
#include "dev/cudasim/sanitizer.h"

namespace cudasim {
namespace {

enum : size_t { ARENA_BYTES = 512 << 10, RED_ZONE = 64, ALIGNMENT = 128 };
alignas(ALIGNMENT) char arena[ARENA_BYTES];
size_t used;                         // bytes of the arena, with red zones
size_t static_bytes, dynamic_bytes;  // that the kernel asked for

void *place(const char *name, size_t bytes) {
    size_t end = used + bytes, next = (end + RED_ZONE + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (next > ARENA_BYTES)
        fatal("shared memory: no room for %zu bytes of %s", bytes, name);
    char *memory = arena + used;
    allow(memory, bytes);
    memset(memory, 0xff, bytes);  // NaN in every float type
    race_allocate(memory, bytes);
    used = next;
    return memory;
}

}  // namespace

void shared_begin_block(size_t bytes) {
    race_release(arena, used);
    forbid(arena, ARENA_BYTES);
    used = static_bytes = 0;
    dynamic_bytes = bytes;
    place("dynamic shared memory", bytes);
}

void *dynamic_shared() {
    return arena;
}

void *SharedArray::get() {
    if (block_ == block_serial)
        return place_;
    static_bytes += bytes_;
    if (static_bytes > SHARED_STATIC_LIMIT || static_bytes + dynamic_bytes > SHARED_BLOCK_LIMIT)
        fatal(
            "shared memory: with %s (%zu bytes) the kernel has %zu bytes of static arrays (limit %zu) and %zu in all "
            "(limit %zu)",
            name_, bytes_, static_bytes, SHARED_STATIC_LIMIT, static_bytes + dynamic_bytes, SHARED_BLOCK_LIMIT);
    block_ = block_serial;
    place_ = place(name_, bytes_);
    return place_;
}

bool is_shared(const void *address, size_t bytes) {
    auto *p = static_cast<const char *>(address);
    return p >= arena && p + bytes <= arena + used;
}
char *shared_base() {
    return arena;
}
size_t shared_arena_bytes() {
    return ARENA_BYTES;
}

}  // namespace cudasim
