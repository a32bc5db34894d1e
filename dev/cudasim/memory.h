// memory: device memory and pinned host memory, two arenas of address space that are never used twice, so that a
// pointer to freed memory always is one. Every allocation lies between red zones and starts as NaN (0xff in every
// byte).
#ifndef DEV_CUDASIM_MEMORY_H
#define DEV_CUDASIM_MEMORY_H

#include <cstddef>
#include <map>
#include <vector>

namespace cudasim {

struct Gap {  // a red zone
    char *start;
    size_t bytes;
};

struct Allocation {
    char *start;
    size_t bytes;
    Gap red_zones[2];         // before and behind
    std::vector<Gap> guards;  // inside, of cudasim_guard
};

class Arena {
   public:
    explicit Arena(const char *name) : name_(name) {
    }
    void *allocate(size_t bytes);
    bool release(void *start);  // false: not the start of an allocation
    Allocation *find(const void *address);
    bool contains(const void *address) const;
    size_t allocated_bytes() const {
        return allocated_bytes_;
    }
    void check_red_zones();       // of all allocations; plain build
    void protect(bool readable);  // all that was ever allocated
    const char *name() const {
        return name_;
    }
    char *base() const {
        return base_;
    }

   private:
    void reserve();
    const char *name_;
    char *base_ = nullptr;
    size_t used_ = 0;  // bytes of address space given out
    size_t allocated_bytes_ = 0;
    bool readable_ = true;
    std::map<char *, Allocation> allocations_;
};

enum : size_t { ARENA_ADDRESS_BYTES = size_t{64} << 30 };
Arena &device_memory();
Arena &pinned_memory();

// Stop unless the bytes lie inside one live allocation and outside of its guards. Other memory is not checked.
void check_device_range(const void *memory, size_t bytes, const char *what);
// An operation that is no kernel reads or writes these bytes: the check above, and the race build's.
void touch(const void *memory, size_t bytes, bool write, const char *what);

// While one lives, device memory is open to this thread (CUDASIM_PROTECT); host functions close it for a while.
class DeviceWindow {
   public:
    explicit DeviceWindow(bool open);
    ~DeviceWindow();

   private:
    bool before_;
};

}  // namespace cudasim

#endif
