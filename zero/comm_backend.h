// comm_backend: what comm_local, comm_mpi and comm_nccl implement behind comm.h.
#ifndef ZERO_COMM_BACKEND_H
#define ZERO_COMM_BACKEND_H

#include "zero/comm.h"

typedef struct CommBackend {
    void (*close)(Comm *comm);
    void (*all_gather)(Comm *comm, Stream *stream, const char *what, void *full, const void *shard, int64_t len,
                       Dtype dtype);
    void (*reduce_scatter)(Comm *comm, Stream *stream, const char *what, void *shard, Dtype shard_dtype,
                           const float *full, int64_t len, Dtype wire, bool add);
    Status (*sum)(Comm *comm, const char *what, double *values, int n);
    Status (*max)(Comm *comm, const char *what, double *values, int n);
    Status (*sum_u128)(Comm *comm, const char *what, unsigned __int128 *values, int n);
    Status (*broadcast)(Comm *comm, const char *what, void *data, size_t bytes, int root);
    Status (*barrier)(Comm *comm, const char *what);
    double (*cpu_seconds)(void);  // NULL: no thread of its own
    Status (*register_memory)(Comm *comm, void *memory, size_t bytes);  // NULL, as the next: nothing to do
    void (*unregister_memory)(Comm *comm, const void *memory);
} CommBackend;

struct Comm {
    const CommBackend *backend;
    Device *device;
    Stream *compute;  // its waits are counted
    CommOptions options;
    int rank, size;
    int64_t step;
    double patience;  // comm_set_patience
    CommStats stats;
    double cpu_at_reset;
    int64_t n_issued;     // collectives since comm_check_order
    uint64_t order_hash;  // of them, in order
    char *host_values;    // rank 0 of many: (N, HOST_PIECE_BYTES), what the ranks sent (comm_mpi_host.h)
};

Status comm_open_local(Device *device, Stream *compute, const CommOptions *options, Comm **comm);
Status comm_open_mpi(Device *device, Stream *compute, const CommOptions *options, Comm **comm);
Status comm_open_nccl(Device *device, Stream *compute, const CommOptions *options, Comm **comm);

// Start, stop and end MPI: comm_start and friends when this process has company.
Status comm_mpi_start(CommWorld *world);
void comm_mpi_stop(void);  // waits for all ranks
__attribute__((noreturn)) void comm_mpi_abort(Status status, const char *message);
bool comm_mpi_started(void);

// The elements of each cut that a reduction of many ranks handles at a time.
int64_t comm_piece_len(const CommOptions *options);
int64_t comm_piece_bytes(const CommOptions *options);  // the longest message of other collectives
enum { LOCAL_PIECE_LEN = 1 << 20 };                    // the same with one rank

#endif
