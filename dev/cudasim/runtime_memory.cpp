// The CUDA runtime API: allocation, copies, fills. A copy obeys what CUDA promises of it and nothing more: pinned
// memory is read or written when the stream gets there, pageable memory before the call returns.
#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "dev/cudasim/memory.h"
#include "dev/cudasim/report.h"
#include "dev/cudasim/runtime.h"
#include "dev/cudasim/settings.h"
#include "dev/cudasim/stream.h"

namespace cudasim {
namespace {

std::map<const char *, size_t> &registered() {  // host memory of others that cudaHostRegister has pinned
    static auto &r = *new std::map<const char *, size_t>;
    return r;
}

bool is_pinned(const void *memory) {
    if (pinned_memory().contains(memory))
        return true;
    auto *p = static_cast<const char *>(memory);
    auto it = registered().upper_bound(p);
    return it != registered().begin() && (--it, p < it->first + it->second);
}
bool is_device(const void *memory) {
    return device_memory().contains(memory);
}

bool right_direction(const void *to, const void *from, cudaMemcpyKind kind) {
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    return kind == cudaMemcpyDefault || (is_device(to) == to_device && is_device(from) == from_device);
}

cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream,
                 bool asynchronous) {
    if (!bytes)
        return cudaSuccess;
    if (!right_direction(to, from, kind))
        return failed(cudaErrorInvalidMemcpyDirection);
    bool pageable_from = !is_device(from) && !is_pinned(from), pageable_to = !is_device(to) && !is_pinned(to);
    if (asynchronous && pageable_from) {  // staged before the call returns; the rest happens later
        auto *bytes_from = static_cast<const char *>(from);
        auto staged = std::make_shared<std::vector<char>>(bytes_from, bytes_from + bytes);
        enqueue(stream, "copy (pageable)", [=] {
            touch(to, bytes, true, "cudaMemcpyAsync");
            memcpy(to, staged->data(), bytes);
            return true;
        });
        return cudaSuccess;
    }
    OperationRef o = enqueue(stream, "copy", [=] {
        touch(from, bytes, false, "cudaMemcpy");
        touch(to, bytes, true, "cudaMemcpy");
        memcpy(to, from, bytes);
        return true;
    });
    if (!asynchronous || pageable_to)
        wait_for(o);
    return cudaSuccess;
}

}  // namespace
}  // namespace cudasim

using namespace cudasim;
extern "C" {

cudaError_t cudaMalloc(void **memory, size_t bytes) {
    *memory = nullptr;
    if (!bytes)
        return cudaSuccess;
    static int allocations = 0;
    if (++allocations == settings().malloc_fail ||
        bytes > settings().memory_bytes - device_memory().allocated_bytes())
        return failed(cudaErrorMemoryAllocation);
    *memory = device_memory().allocate(bytes);
    return cudaSuccess;
}
cudaError_t cudaFree(void *memory) {
    wait_for_all();  // CUDA does, too
    return !memory || device_memory().release(memory) ? cudaSuccess : failed(cudaErrorInvalidValue);
}
cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned) {
    *memory = bytes ? pinned_memory().allocate(bytes) : nullptr;
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **memory, size_t bytes) {
    return cudaHostAlloc(memory, bytes, cudaHostAllocDefault);
}
cudaError_t cudaFreeHost(void *memory) {
    wait_for_all();
    return !memory || pinned_memory().release(memory) ? cudaSuccess : failed(cudaErrorInvalidValue);
}
cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned) {
    registered()[static_cast<char *>(memory)] = bytes;
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *memory) {
    wait_for_all();
    return registered().erase(static_cast<char *>(memory)) ? cudaSuccess : failed(cudaErrorInvalidValue);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *memory) {
    memset(attributes, 0, sizeof *attributes);
    attributes->type = is_device(memory)   ? cudaMemoryTypeDevice
                       : is_pinned(memory) ? cudaMemoryTypeHost
                                           : cudaMemoryTypeUnregistered;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    return copy(to, from, bytes, kind, stream, true);
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    return copy(to, from, bytes, kind, nullptr, false);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    if (width > to_pitch || width > from_pitch)
        return failed(cudaErrorInvalidValue);
    for (size_t row = 0; row < height; row++)
        if (cudaError_t error = copy(static_cast<char *>(to) + row * to_pitch,
                                     static_cast<const char *>(from) + row * from_pitch, width, kind, stream, true))
            return error;
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream) {
    if (bytes)
        enqueue(stream, "memset", [=] {
            touch(memory, bytes, true, "cudaMemset");
            memset(memory, value, bytes);
            return true;
        });
    return cudaSuccess;
}
cudaError_t cudaMemset(void *memory, int value, size_t bytes) {
    return cudaMemsetAsync(memory, value, bytes, nullptr);
}

}  // extern "C"
