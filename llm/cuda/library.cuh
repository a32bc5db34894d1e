// library: shared libraries that are loaded when a GPU is used, and not before. cuBLASLt and NCCL keep some 200 MB resident
// once they are there, and a run on the CPU needs neither, nor that they exist.
//
//     #define FUNCTIONS(X) X(ncclSend) X(ncclRecv)
//     LIBRARY(NcclLibrary, FUNCTIONS);                          // struct NcclLibrary: pointers to these functions
//     NcclLibrary nccl;
//     TRY(nccl.load(LIBRARY_FILE("libnccl", NCCL_MAJOR)));      // libnccl.so.2
//     nccl.ncclSend(…);
#ifndef LLM_CUDA_LIBRARY_CUH
#define LLM_CUDA_LIBRARY_CUH

#include <dlfcn.h>

extern "C" {
#include "llm/status.h"
}

#define LIBRARY_FILE_(name, major) name ".so." #major
#define LIBRARY_FILE(name, major)  LIBRARY_FILE_(name, major)

#define LIBRARY_POINTER(name) decltype(&::name) name;
#define LIBRARY(type, functions)             \
    struct type {                            \
        functions(LIBRARY_POINTER)           \
        Status load(const char *file) {      \
            void *handle;                    \
            TRY(library_open(file, &handle)); \
            functions(LIBRARY_FUNCTION)      \
            return OK;                       \
        }                                    \
    }

#ifdef CUDASIM  // the simulator's are linked

#define LIBRARY_FUNCTION(name) this->name = ::name;
static inline Status library_open(const char *, void **handle) {
    *handle = nullptr;
    return OK;
}

#else

#define LIBRARY_FUNCTION(name) TRY(library_function(handle, file, #name, reinterpret_cast<void **>(&this->name)));
static inline Status library_open(const char *file, void **handle) {
    *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    return *handle ? OK : fail("cannot load a library that GPUs need: %s; use --device cpu", dlerror());
}
static inline Status library_function(void *handle, const char *file, const char *name, void **function) {
    *function = dlsym(handle, name);
    return *function ? OK : fail("%s has no %s: it is older than the one that this program was built with", file, name);
}

#endif
#endif
