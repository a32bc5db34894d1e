// comm_backend: what comm_local, comm_mpi and comm_nccl implement behind comm.h.
#ifndef ZERO_COMM_BACKEND_H
#define ZERO_COMM_BACKEND_H

#include "zero/comm.h"

typedef struct CommBackend {
    void (*close)(Comm *comm);
    void (*all_gather)(Comm *comm, Stream *stream, const char *what, void *full, const void *shard, int64_t len, Dtype dtype);
    void (*reduce_scatter)(Comm *comm, Stream *stream, const char *what, void *shard, Dtype shard_dtype, const float *full,
                           int64_t len, Dtype wire, bool add);
    Status (*sum)(Comm *comm, const char *what, double *values, int n);
    Status (*max)(Comm *comm, const char *what, double *values, int n);
    Status (*sum_u128)(Comm *comm, const char *what, unsigned __int128 *values, int n);
    Status (*broadcast)(Comm *comm, const char *what, void *data, size_t bytes, int root);
    Status (*barrier)(Comm *comm, const char *what);
} CommBackend;

struct Comm {
    const CommBackend *backend;
    Device *device;
    int rank, size, local_rank, local_size;
    CommStats stats;
};

#endif
