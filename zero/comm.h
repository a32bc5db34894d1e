// comm: collectives on streams between the ranks of a run. One interface; comm_local (one rank), comm_mpi (many ranks on
// CPUs) and comm_nccl (on GPUs) implement it.
//
// Collectives are enqueued on a stream and happen in its order; every rank enqueues the same collectives in the same
// order on the same stream. Reductions are made in fp32 in a fixed order of ranks: within groups of G consecutive ranks
// in rank order, then over the groups in order, so that the result does not depend on timing, overlap or the size of
// pieces.
//
// comm counts, per collective, the bytes that this rank sends and the seconds that the compute stream waited for them.
// A collective in which nothing moves for the timeout, a lost peer and an error of the transport end the run on every
// rank with one message naming rank, unit, collective and step, and exit status 1: nothing is saved, nothing hangs.
//
//     comm_start → device_open → comm_shape_make → comm_open → … → comm_close → comm_stop        comm_fail at any time
#ifndef ZERO_COMM_H
#define ZERO_COMM_H

#include "llm/device.h"
#include "llm/dtype.h"

// ---- the ranks ----

typedef struct CommWorld {
    int rank, size;
    int local_rank, local_size;  // among the ranks of this host
    int host_group;  // ranks on each host, if all hosts have as many and their ranks are consecutive; else `size`
} CommWorld;

// Learn who this rank is, before anything else is opened. MPI is started only if mpirun or srun started this process
// with others; a process by itself is rank 0 of 1. Fails when it was started with others but cannot talk to them.
Status comm_start(CommWorld *world);
// The end of a run that went well: waits for all ranks. After a failure, comm_fail.
void comm_stop(void);
// Says this thread's message as the last one. Of many ranks it ends all, with `status` as the exit status, and does not
// return; ranks that fail alike print one message. A rank alone closes what it opened. Works before comm_start as well.
void comm_fail(Status status);

// How N ranks share the work of a reduction and the pieces of a unit.
typedef struct CommShape {
    int n_ranks;       // N
    int shard_group;   // S: a unit is sharded over S consecutive ranks, and each group of S holds all of it
    int reduce_group;  // G: what is added first. S < N (hybrid sharding): G = S
} CommShape;

// 0 means: S = N, and G = S in hybrid sharding, else world->host_group, or N where each host has one rank: groups of one
// and a group of all add in the same order, but the sums of groups travel in fp32. Checks that S and G divide N.
Status comm_shape_make(const CommWorld *world, int shard_group, int reduce_group, CommShape *shape);

// ---- a communicator ----

typedef enum Collective {
    COMM_ALL_GATHER,
    COMM_REDUCE_SCATTER,
    COMM_ALL_REDUCE,   // hybrid sharding: the part of a reduction that crosses shard groups
    COMM_HOST_VALUES,  // the few numbers a step agrees on
    COMM_COLLECTIVES
} Collective;

extern const char *const collective_names[COMM_COLLECTIVES];  // "all_gather", …

typedef struct Comm Comm;

typedef struct CommOptions {
    CommShape shape;
    Dtype wire;           // what travels in comm_reduce_scatter
    int64_t max_len;      // the longest shard that will be reduced
    int64_t piece_bytes;  // longest message; 0: 512 KiB. Does not change results
    double timeout;       // seconds without progress that end the run
    bool native;          // NCCL's own reductions, in an order of its own choice (--deterministic off); needs G = S
} CommOptions;

typedef struct CommStats {
    int64_t bytes_sent[COMM_COLLECTIVES];  // by collectives enqueued since comm_stats_reset
    double wait_seconds;                   // time that compute stood still for communication
    double cpu_seconds;                    // of the thread that moves messages
} CommStats;

// Open what fits shape and device: comm_local for one rank, else comm_mpi or comm_nccl. Collective. `compute` is the
// stream whose waits count.
Status comm_open(Device *device, Stream *compute, const CommOptions *options, Comm **comm);
void comm_close(Comm *comm);  // NULL is fine

int comm_rank(const Comm *comm);
int comm_size(const Comm *comm);
CommShape comm_shape(const Comm *comm);

void comm_set_step(Comm *comm, int64_t step);  // for messages; 0: outside of any step
int64_t comm_step(const Comm *comm);

// Memory of the device in which collectives will be made again and again: the transport may map it once (NCCL's user
// buffer registration). All ranks register the same memory in the same order, and forget it before they free it.
Status comm_register(Comm *comm, void *memory, size_t bytes);
void comm_unregister(Comm *comm, const void *memory);  // NULL, and what was not registered, is fine

// full (S·len) = the group's shards (len) in rank order. `shard` may lie inside `full` at its own place. `what` names
// the collective in messages ("unit 3").
void comm_all_gather(Comm *comm, Stream *stream, const char *what, void *full, const void *shard, int64_t len,
                     Dtype dtype);

// shard (len, shard_dtype) = own cut of Σ over all ranks of full (S·len, fp32), reduced as described above. Each rank's
// addends are rounded to `wire`; the result is rounded to `wire` and then to shard_dtype. add: shard = round(shard +
// result). `shard` may be the own cut of `full` itself. At most one stream reduces.
void comm_reduce_scatter(Comm *comm, Stream *stream, const char *what, void *shard, Dtype shard_dtype,
                         const float *full, int64_t len, Dtype wire, bool add);

// Host values, for the few numbers a step agrees on. Blocking.
Status comm_sum(Comm *comm, const char *what, double *values, int n);  // in rank order, the same bits on every rank
Status comm_max(Comm *comm, const char *what, double *values, int n);
Status comm_sum_u128(Comm *comm, const char *what, unsigned __int128 *values, int n);
Status comm_broadcast(Comm *comm, const char *what, void *data, size_t bytes, int root);
Status comm_barrier(Comm *comm, const char *what);

// How many seconds longer than the timeout host values may be waited for from now on: a rank reads or writes files first.
// Ranks that die are noticed all the same.
void comm_set_patience(Comm *comm, double seconds);

// All ranks must have the same text (configuration, build, data); else fails on every rank, naming the first line that
// differs and the two ranks. `name` says what it is ("configuration").
Status comm_agree(Comm *comm, const char *name, const char *text);
Status comm_agree_build(Comm *comm);  // the same for this program's file
// Have all ranks enqueued the same collectives since the last call? For tests.
Status comm_check_order(Comm *comm);

CommStats comm_stats(Comm *comm);  // since the last comm_stats_reset
void comm_stats_reset(Comm *comm);
double comm_clock(void);  // seconds of a clock that never jumps

// ---- what it costs: pure functions, for the planner and for tests ----

// Bytes that one rank sends. A reduction sends comm_reduce_scatter_bytes + comm_all_reduce_bytes. With NCCL's own
// algorithms these are the textbook's; a switch that adds or copies may spare a rank some of them.
int64_t comm_all_gather_bytes(CommShape shape, int64_t len, Dtype dtype);     // (S-1)·len elements
int64_t comm_reduce_scatter_bytes(CommShape shape, int64_t len, Dtype wire);  // S = N = G: (N-1)·len elements
int64_t comm_all_reduce_bytes(CommShape shape, int64_t len);                  // (N/S-1)·len fp32 elements
// What comm_open allocates (MEM_STAGING "reduction").
size_t comm_staging_bytes(const CommOptions *options);

#endif
