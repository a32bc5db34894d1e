// Launches and shared memory in one notation for both worlds: nvcc, and g++ with the simulator (dev/cudasim), which
// defines CUDASIM and the right-hand sides.
//
//     template <class T> __global__ void rows(T *y, const T *x) {
//         SHARED(float, tile, [8][32]);     // float tile[8][32], one per block, 16-byte aligned
//         DYN_SHARED(float, row);           // float *row: the bytes that the launch asked for, 128-byte aligned
//     }
//     LAUNCH((rows<T>), (grid, block, shared_bytes, stream), y, x);
//
// A kernel is named with all its template arguments. A type that contains a comma needs an alias. Errors of a launch
// come from cudaGetLastError, as CUDA has it. More than 48 KiB of dynamic shared memory must be allowed first:
// cudaFuncSetAttribute(rows<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes).
#ifndef LLM_CUDA_LAUNCH_CUH
#define LLM_CUDA_LAUNCH_CUH

#ifdef CUDASIM

#define LAUNCH     CUDASIM_LAUNCH
#define SHARED     CUDASIM_SHARED
#define DYN_SHARED CUDASIM_DYN_SHARED

#else

#define LAUNCH_UNWRAP(...)          __VA_ARGS__
#define LAUNCH(kernel, config, ...) LAUNCH_UNWRAP kernel<<<LAUNCH_UNWRAP config>>>(__VA_ARGS__)
#define SHARED(type, name, ...)     __shared__ __align__(16) type name __VA_ARGS__
#define DYN_SHARED(type, name)                                        \
    extern __shared__ __align__(128) unsigned char dynamic_shared_[]; \
    type *name = reinterpret_cast<type *>(dynamic_shared_)

#endif
#endif
