// settings: the environment of a simulated run, in one place.
//
//   CUDASIM_ORDER      inorder, reverse or random: of blocks, threads and streams, where the next three do not say
//   CUDASIM_BLOCKS     of the blocks of a grid (default inorder)
//   CUDASIM_THREADS    of the threads of a block (default inorder)
//   CUDASIM_STREAMS    between the streams of a device (default random)
//   CUDASIM_SEED       of every random choice (default 1); each rank of an MPI job draws differently
//   CUDASIM_MEM        bytes of device memory, with K, M or G (default 4G)
//   CUDASIM_DEVICES    devices that a process sees (default 8); each process simulates the one it uses
//   CUDASIM_SMS        multiprocessors that a device says it has (default 2)
//   CUDASIM_PROTECT    1: device memory is readable only while device work runs; host code that touches it stops
//   CUDASIM_LEAKS      1: a program that ends with device or pinned memory that it has not freed is stopped
//   CUDASIM_TIMEOUT    seconds of CPU time after which a kernel, and seconds of silence after which a collective,
//                      is stopped with its name (default 60)
//   CUDASIM_STATS      file for the table of dev/cudasim/stats.h, written when the program ends
//   CUDASIM_MALLOC_FAIL  n: the n-th allocation of device memory finds no room, whatever is free
//   CUDASIM_NCCL_FAIL  n: the n-th collective of a process never ends; its communicator reports an asynchronous error
#ifndef DEV_CUDASIM_SETTINGS_H
#define DEV_CUDASIM_SETTINGS_H

#include <cstddef>
#include <cstdint>
#include <random>

namespace cudasim {

enum class Order { IN_ORDER, REVERSE, RANDOM };

struct Settings {
    Order blocks, threads, streams;
    uint64_t seed;
    size_t memory_bytes;
    int devices, multiprocessors;
    bool protect, leaks;
    int timeout_seconds;
    const char *stats_file;  // NULL: none
    int malloc_fail;         // 0: never
    int nccl_fail;           // 0: never
};

const Settings &settings();
std::mt19937_64 &random_numbers();  // one sequence for a whole run, from the seed

}  // namespace cudasim

#endif
