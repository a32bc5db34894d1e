// stats: how often each operation ran, and in the race build the bytes of device memory it moved, counted by the hooks
// of its loads and stores. For kernels, every access of every thread counts; "distinct" counts bytes once a launch,
// which is what must cross the memory bus at least.
//
// CUDASIM_STATS=FILE writes the table at the end of the program, tab-separated with a header line:
//     name launches threads seconds load_bytes store_bytes loads stores distinct_load_bytes distinct_store_bytes
#ifndef DEV_CUDASIM_STATS_H
#define DEV_CUDASIM_STATS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CudasimStats {
    uint64_t launches;
    uint64_t threads;  // of kernels
    double seconds;    // in the simulator
    uint64_t load_bytes, store_bytes;
    uint64_t loads, stores;  // single accesses: bytes / accesses is the mean width
    uint64_t distinct_load_bytes, distinct_store_bytes;
} CudasimStats;

// For every name since the last reset, in alphabetical order. Waits for nothing: synchronise first.
void cudasim_stats_each(void (*visit)(const char *name, const CudasimStats *stats, void *context), void *context);
void cudasim_stats_reset(void);

#ifdef __cplusplus
}

namespace cudasim {
struct Operation;
void stats_begin(const Operation &operation);
void stats_end(const Operation &operation, bool finished);
void stats_threads(uint64_t threads);  // of the running kernel
CudasimStats *stats_running();         // of the running operation; NULL: none
}  // namespace cudasim
#endif
#endif
