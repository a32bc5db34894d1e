// The CUDA runtime API: devices, errors, attributes of kernels.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include "dev/cudasim/block.h"
#include "dev/cudasim/memory.h"
#include "dev/cudasim/report.h"
#include "dev/cudasim/runtime.h"
#include "dev/cudasim/settings.h"

namespace cudasim {
namespace {

enum { DEFAULT_SHARED_BYTES = 48 << 10, THREADS_PER_MULTIPROCESSOR = 2048, BLOCKS_PER_MULTIPROCESSOR = 32 };
cudaError_t last_error = cudaSuccess;
int device_in_use;

std::map<const void *, size_t> &allowed() {
    static auto &a = *new std::map<const void *, size_t>;
    return a;
}

struct ErrorName {
    cudaError_t error;
    const char *name, *text;
};
const ErrorName ERROR_NAMES[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};
const ErrorName &error_name(cudaError_t error) {
    static const ErrorName unknown{cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
    for (const ErrorName &e : ERROR_NAMES)
        if (e.error == error)
            return e;
    return unknown;
}

}  // namespace

cudaError_t failed(cudaError_t error) {
    return last_error = error;
}

size_t allowed_shared_bytes(const void *kernel) {
    auto it = allowed().find(kernel);
    return it == allowed().end() ? size_t{DEFAULT_SHARED_BYTES} : it->second;
}

}  // namespace cudasim

using namespace cudasim;
extern "C" {

const char *cudaGetErrorName(cudaError_t error) {
    return error_name(error).name;
}
const char *cudaGetErrorString(cudaError_t error) {
    return error_name(error).text;
}
cudaError_t cudaGetLastError() {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError() {
    return last_error;
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = settings().devices;
    return settings().devices ? cudaSuccess : failed(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= settings().devices)
        return failed(cudaErrorInvalidDevice);
    device_in_use = device;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = device_in_use;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

// A small sm_90.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
    if (device < 0 || device >= settings().devices)
        return failed(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "cudasim");
    p->major = 9;
    p->totalGlobalMem = settings().memory_bytes;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = INT32_MAX;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->multiProcessorCount = settings().multiprocessors;
    p->maxThreadsPerMultiProcessor = THREADS_PER_MULTIPROCESSOR;
    p->sharedMemPerBlock = DEFAULT_SHARED_BYTES;
    p->sharedMemPerBlockOptin = SHARED_BLOCK_LIMIT;
    p->sharedMemPerMultiprocessor = SHARED_BLOCK_LIMIT + 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->asyncEngineCount = 2;
    p->concurrentKernels = 1;
    p->unifiedAddressing = 1;
    p->l2CacheSize = 50 << 20;
    p->pciDeviceID = device;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    cudaDeviceProp p;
    if (cudaError_t error = cudaGetDeviceProperties(&p, device))
        return error;
    switch (attribute) {
        case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
        case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
        case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(p.sharedMemPerBlock); break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(p.sharedMemPerBlockOptin); break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
            *value = static_cast<int>(p.sharedMemPerMultiprocessor);
            break;
        case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
        case cudaDevAttrClockRate: *value = 1000000; break;  // kHz
        default: return failed(cudaErrorNotSupported);
    }
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *name, int bytes, int device) {
    snprintf(name, static_cast<size_t>(bytes), "0000:%02x:00.0", device);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = settings().memory_bytes;
    *free_bytes = settings().memory_bytes - device_memory().allocated_bytes();
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value) {
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || static_cast<size_t>(value) > SHARED_BLOCK_LIMIT)
            return failed(cudaErrorInvalidValue);
        allowed()[kernel] = static_cast<size_t>(value);
        return cudaSuccess;
    }
    return attribute == cudaFuncAttributePreferredSharedMemoryCarveout ? cudaSuccess : failed(cudaErrorInvalidValue);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *, int threads,
                                                                   size_t shared, unsigned) {
    int by_threads = THREADS_PER_MULTIPROCESSOR / std::max(threads, 1);
    size_t by_shared = (SHARED_BLOCK_LIMIT + 1024) / (shared + 1024);  // the system keeps 1 KiB a block
    *blocks =
        static_cast<int>(std::min({static_cast<size_t>(by_threads), by_shared, size_t{BLOCKS_PER_MULTIPROCESSOR}}));
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int threads, size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads, shared, 0);
}

}  // extern "C"
