// comm_mpi_host: values in host memory, between many ranks over MPI, whatever carries their collectives on streams. The
// host's part of comm_mpi and comm_nccl.
#ifndef ZERO_COMM_MPI_HOST_H
#define ZERO_COMM_MPI_HOST_H

#include "zero/comm_backend.h"

enum { HOST_PIECE_BYTES = 1 << 16 };

Status mpi_host_open(Comm *comm);  // room for what rank 0 collects
void mpi_host_close(Comm *comm);

Status mpi_sum(Comm *comm, const char *what, double *values, int n);
Status mpi_max(Comm *comm, const char *what, double *values, int n);
Status mpi_sum_u128(Comm *comm, const char *what, unsigned __int128 *values, int n);
Status mpi_broadcast(Comm *comm, const char *what, void *data, size_t bytes, int root);
Status mpi_barrier(Comm *comm, const char *what);

int mpi_world_rank(void);
int mpi_world_size(void);
double mpi_thread_cpu_seconds(void);

#endif
