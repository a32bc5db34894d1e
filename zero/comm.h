// comm: collectives on streams between the ranks of a run. One interface; comm_local (one rank), comm_mpi and comm_nccl
// implement it.
//
// Collectives are enqueued on a stream and happen in its order; every rank enqueues the same collectives in the same order
// on the same stream. Reductions are made in fp32 in a fixed order of ranks: within groups of G consecutive ranks in rank
// order, then over the groups in order, so that the result does not depend on timing, overlap or the size of pieces.
//
// comm counts, per collective, the bytes that this rank sends and the seconds that the compute stream waited for them.
// A collective that does not finish within the timeout ends the run on every rank, with one message naming rank, unit,
// collective and step.
#ifndef ZERO_COMM_H
#define ZERO_COMM_H

#include "llm/device.h"
#include "llm/dtype.h"

typedef enum Collective { COMM_ALL_GATHER, COMM_REDUCE_SCATTER, COMM_ALL_REDUCE, COMM_COLLECTIVES } Collective;

extern const char *const collective_names[COMM_COLLECTIVES];  // "all_gather", …

typedef struct Comm Comm;

typedef struct CommStats {
    int64_t bytes_sent[COMM_COLLECTIVES];
    double wait_seconds;  // time that compute stood still for communication
} CommStats;

// One rank without MPI. `wire` is the dtype that reductions round to, as if they travelled.
Status comm_open_local(Device *device, Dtype wire, Comm **comm);
size_t comm_local_staging_bytes(Dtype wire);
void comm_close(Comm *comm);  // NULL is fine

int comm_rank(const Comm *comm);
int comm_size(const Comm *comm);
int comm_local_rank(const Comm *comm);  // among the ranks of this host
int comm_local_size(const Comm *comm);

// full (S·len) = the group's shards (len) in rank order. `shard` may lie inside `full` at its own place. `what` names the
// collective in messages ("unit 3").
void comm_all_gather(Comm *comm, Stream *stream, const char *what, void *full, const void *shard, int64_t len, Dtype dtype);

// shard (len, shard_dtype) = own cut of Σ over ranks of full (S·len, fp32), reduced as described above. What travels is in
// `wire`; the result is rounded to `wire` and then to shard_dtype. add: shard = round(shard + result). `shard` may be the
// own cut of `full` itself.
void comm_reduce_scatter(Comm *comm, Stream *stream, const char *what, void *shard, Dtype shard_dtype, const float *full,
                         int64_t len, Dtype wire, bool add);

// Host values, for the few numbers a step agrees on. Blocking.
Status comm_sum(Comm *comm, const char *what, double *values, int n);      // in rank order, the same bits on every rank
Status comm_max(Comm *comm, const char *what, double *values, int n);
Status comm_sum_u128(Comm *comm, const char *what, unsigned __int128 *values, int n);
Status comm_broadcast(Comm *comm, const char *what, void *data, size_t bytes, int root);
Status comm_barrier(Comm *comm, const char *what);

CommStats comm_stats(const Comm *comm);  // since the last comm_stats_reset
void comm_stats_reset(Comm *comm);

#endif
