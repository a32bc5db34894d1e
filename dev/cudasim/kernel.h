// kernel: where a simulated thread is, how a kernel is launched, the block's shared memory, its barriers and fences.
#ifndef DEV_CUDASIM_KERNEL_H
#define DEV_CUDASIM_KERNEL_H

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "dev/cudasim/race.h"

namespace cudasim {

// Of the thread that runs now. One host thread runs all simulated threads, one block at a time.
extern uint3 thread_index, block_index;
extern dim3 block_size, grid_size;

struct LaunchConfig {
    dim3 grid, block;
    size_t shared_bytes;  // of dynamic shared memory
    cudaStream_t stream;

    LaunchConfig(dim3 grid_, dim3 block_, size_t shared_bytes_ = 0, cudaStream_t stream_ = nullptr)
        : grid(grid_), block(block_), shared_bytes(shared_bytes_), stream(stream_) {
    }
};

void launch(const char *name, const void *kernel, const LaunchConfig &config, std::function<void()> body);

// Arguments are converted to the kernel's parameter types when it is launched, as CUDA does.
template <class... Parameters, class... Arguments>
void launch_kernel(const char *name, const LaunchConfig &config, void (*kernel)(Parameters...),
                   Arguments &&...arguments) {
    static_assert(sizeof...(Parameters) == sizeof...(Arguments), "wrong number of kernel arguments");
    static_assert((std::is_trivially_copyable_v<Parameters> && ...), "kernel parameters are copied byte by byte");
    static_assert((sizeof(Parameters) + ... + 0) <= 4096, "CUDA passes at most 4 KiB of parameters");
    std::tuple<Parameters...> parameters{static_cast<Parameters>(arguments)...};
    launch(name, reinterpret_cast<const void *>(kernel), config,
           [kernel, parameters] { std::apply(kernel, parameters); });
}

// One __shared__ array of a kernel: its place in the running block's shared memory, found when the block's first thread
// passes the declaration. Contents start as NaN, with a red zone behind.
class SharedArray {
   public:
    constexpr SharedArray(const char *name, size_t bytes) : name_(name), bytes_(bytes) {
    }
    void *get();

   private:
    const char *name_;
    size_t bytes_;
    uint32_t block_ = 0;  // serial number of the block for which `place_` holds
    void *place_ = nullptr;
};
void *dynamic_shared();

// A barrier knows where it stands in the source, so that threads that meet at different ones are told apart.
struct BarrierSite {
    const char *file;
    int line;
};
void barrier(BarrierSite site);
int barrier_vote(BarrierSite site, bool predicate);  // how many are in favour

}  // namespace cudasim

#define threadIdx ::cudasim::thread_index
#define blockIdx  ::cudasim::block_index
#define blockDim  ::cudasim::block_size
#define gridDim   ::cudasim::grid_size
constexpr int warpSize = 32;
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __shared__
#define __shared__ shared_memory_is_declared_with_SHARED  // llm/cuda/launch.cuh

#define CUDASIM_LAUNCH(kernel, config, ...) \
    ::cudasim::launch_kernel(#kernel, ::cudasim::LaunchConfig config, kernel, ##__VA_ARGS__)
#define CUDASIM_SHARED(type, name, ...)                                           \
    static ::cudasim::SharedArray name##_shared(#name, sizeof(type __VA_ARGS__)); \
    auto &name = *reinterpret_cast<type(*) __VA_ARGS__>(name##_shared.get())
#define CUDASIM_DYN_SHARED(type, name) type *name = static_cast<type *>(::cudasim::dynamic_shared())

#define CUDASIM_HERE           (::cudasim::BarrierSite{__FILE__, __LINE__})
#define __syncthreads()        ::cudasim::barrier(CUDASIM_HERE)
#define __syncthreads_count(p) (::cudasim::barrier_vote(CUDASIM_HERE, (p)))
#define __syncthreads_or(p)    (::cudasim::barrier_vote(CUDASIM_HERE, (p)) > 0)
#define __syncthreads_and(p)   (::cudasim::barrier_vote(CUDASIM_HERE, !(p)) == 0)

// With an atomic behind it, hands this block's writes to other blocks.
inline void __threadfence() {
    cudasim::race_fence();
}
inline void __threadfence_system() {
    cudasim::race_fence();
}
inline void __threadfence_block() {
}

template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), attribute, value);
}

#endif
