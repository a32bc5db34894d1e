// comm_mpi: what the files of the MPI implementation share.
#ifndef ZERO_COMM_MPI_H
#define ZERO_COMM_MPI_H

#include "zero/comm_mpi_host.h"
#include "zero/comm_mpi_thread.h"
#include "zero/comm_sum.h"

typedef struct CommMpi {
    Comm base;
    const Stream *lane_of[MPI_HOST_LANE];  // which stream a lane serves, in the order of their first collective
    int n_lanes;
    // reductions
    const Stream *reduces;  // the stream that owns the staging
    char *staging;
    Addend *addends;  // room for the addends of one sum
} CommMpi;

// The head of the arguments of a collective that was enqueued on a stream.
typedef struct MpiCall {
    CommMpi *comm;
    int lane;
    int64_t step;
    char what[MPI_WHAT_BYTES];
} MpiCall;

// A job for the collective, with what messages need to know filled in.
MpiJob mpi_job(const MpiCall *call, Collective collective);

// Fill in `call`, the first member of the arguments (bytes), and run function(arguments) on the stream.
void mpi_enqueue(CommMpi *comm, Stream *stream, const char *what, Status (*function)(void *), MpiCall *call,
                 size_t bytes);

void mpi_reduce_scatter(Comm *comm, Stream *stream, const char *what, void *shard, Dtype shard_dtype, const float *full,
                        int64_t len, Dtype wire, bool add);

#endif
