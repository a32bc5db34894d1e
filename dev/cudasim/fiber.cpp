#include "dev/cudasim/fiber.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dev/cudasim/report.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#error "cudasim switches stacks with x86-64 instructions"
#endif

// void cudasim_switch(void **save_stack_pointer, void *stack_pointer): push what the ABI says a call preserves, change
// stacks, pop the same of the other side.
asm(R"(
.text
.globl cudasim_switch
.type cudasim_switch, @function
cudasim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cudasim_switch, .-cudasim_switch
)");
extern "C" void cudasim_switch(void **save_stack_pointer, void *stack_pointer);

namespace cudasim {

struct Fiber {
    void *stack_pointer = nullptr;  // while it does not run
    const void *stack = nullptr;    // lowest usable address
    size_t stack_bytes = 0;
    void *fake_stack = nullptr;  // AddressSanitizer's
};

namespace {
enum : size_t { STACK_BYTES = 256 << 10, GUARD_PAGE = 4096, SAVED_REGISTERS = 6 };

Fiber host, *running = &host, *previous;
std::vector<Fiber *> &unused = *new std::vector<Fiber *>;  // outlives static destructors

Fiber *make(void (*entry)()) {
    void *memory = mmap(nullptr, GUARD_PAGE + STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, GUARD_PAGE, PROT_NONE) != 0)
        fatal("no memory for the stack of a simulated thread");
    auto *fiber = new Fiber;
    fiber->stack = static_cast<char *>(memory) + GUARD_PAGE;
    fiber->stack_bytes = STACK_BYTES;
    // As cudasim_switch leaves a stack: registers (zero), then the address to return to. `entry` finds its stack
    // aligned as after a call; the word behind the return address stands for its own.
    auto **top = reinterpret_cast<void **>(static_cast<char *>(memory) + GUARD_PAGE + STACK_BYTES - 64);
    top[-2] = reinterpret_cast<void *>(entry);
    fiber->stack_pointer = top - 2 - SAVED_REGISTERS;
    return fiber;
}
}  // namespace

Fiber *fiber_running() {
    return running;
}
Fiber *fiber_host() {
    return &host;
}

Fiber *fiber_take(void (*entry)()) {
    if (unused.empty())
        return make(entry);
    Fiber *fiber = unused.back();
    unused.pop_back();
    return fiber;
}

void fiber_give_back(Fiber *fiber) {
    unused.push_back(fiber);
}

void fiber_switch(Fiber *to) {
    Fiber *from = running;
    previous = from;
    running = to;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
    cudasim_switch(&from->stack_pointer, to->stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}

void fiber_entered() {
#if defined(__SANITIZE_ADDRESS__)
    // The only way to learn where the host's stack is: AddressSanitizer tells which stack we came from.
    const void *stack;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
    if (previous == &host) {
        host.stack = stack;
        host.stack_bytes = bytes;
    }
#endif
}

}  // namespace cudasim
