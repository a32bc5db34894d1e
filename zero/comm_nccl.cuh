// comm_nccl: what the files of the NCCL implementation share.
//
// Opening and closing, the way of a collective: comm_nccl.cu. Reductions in rank order: comm_nccl_reduce.cu, with the
// kernels of comm_nccl_sum.cu; by NCCL's own: comm_nccl_native.cu. How far collectives are: comm_nccl_progress.cu. Memory
// that NCCL maps once: comm_nccl_register.cu.
//
// All-gathers and reductions have communicators of their own, so that they can travel at the same time. All ranks
// enqueue in the same order; NCCL is told to keep it on the device (NCCL_LAUNCH_ORDER_IMPLICIT, since 2.26; comm_start sets
// it), because two communicators that wait for each other's multiprocessors in different orders would never end. Hence
// older ones are refused.
#ifndef ZERO_COMM_NCCL_CUH
#define ZERO_COMM_NCCL_CUH

#include <nccl.h>

#include "llm/cuda/cuda.cuh"
#include "llm/cuda/library.cuh"

extern "C" {
#include "zero/comm_backend.h"
#include "zero/comm_mpi_host.h"
#include "zero/comm_mpi_watch.h"
}

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 0), "zero.c needs NCCL 2.26 or newer: see above");

#define NCCL_FUNCTIONS(X)                                                                           \
    X(ncclAllGather) X(ncclAllReduce) X(ncclCommAbort) X(ncclCommDeregister) X(ncclCommDestroy)     \
    X(ncclCommGetAsyncError) X(ncclCommInitRank) X(ncclCommRegister) X(ncclCommSplit)               \
    X(ncclGetErrorString) X(ncclGetLastError) X(ncclGetUniqueId) X(ncclGetVersion) X(ncclGroupEnd)  \
    X(ncclGroupStart) X(ncclRecv) X(ncclReduceScatter) X(ncclSend)

LIBRARY(NcclLibrary, NCCL_FUNCTIONS);
extern NcclLibrary nccl;

// How far the collectives of one communicator are: in pinned memory, written by the GPU, read by the MPI thread.
typedef struct NcclProgress {
    int64_t begun, done;  // numbers of the last one, from 1
    uint32_t what[WATCH_TEXT_BYTES / 4];
} NcclProgress;

// The collectives of one communicator, in the order in which they are enqueued.
enum { GATHERS, REDUCTIONS };
typedef struct NcclLane {
    ncclComm_t comm;      // whose errors are looked at
    ncclComm_t across;    // the same, or NULL
    int64_t n_issued;
    NcclProgress *progress;
} NcclLane;

// Memory that NCCL has mapped once (ncclCommRegister), by communicator.
enum { MAX_REGISTERED = 16 };
typedef struct NcclRegistered {
    const void *memory;
    void *handles[4];
} NcclRegistered;

typedef struct CommNccl {
    Comm base;
    bool is_open;       // on this rank
    ncclComm_t world;   // all ranks: reductions in rank order, and what the others are split from
    ncclComm_t gather;  // the ranks of this shard group
    ncclComm_t inside;  // native reductions: the ranks of this shard group,
    ncclComm_t across;  // and in hybrid sharding those at the same place in the other groups
    NcclLane lanes[COMM_WATCHES];
    NcclProgress *progress;  // (COMM_WATCHES)
    // Collectives that are called on the compute stream run on this one. Compute waits for it, and that wait is counted.
    Stream *stand_in;
    Event *called, *returned;
    NcclRegistered registered[MAX_REGISTERED];
    int n_registered;
    // reductions
    const Stream *reduces;  // the stream that owns the staging
    char *staging;
    Stream *sums;           // adds one piece while the next one travels
    Event *ready, *finished;  // a reduction's input (on its stream), its result (on `sums`)
    Event *packed[2], *exchanged[2], *summed[2], *crossed[2];  // of an even or odd piece; crossed: level 2's exchange
} CommNccl;

static inline CommNccl *comm_nccl(Comm *comm) {
    return reinterpret_cast<CommNccl *>(comm);
}

// A collective under way: between nccl_begin and nccl_end.
typedef struct NcclCall {
    CommNccl *comm;
    NcclLane *lane;
    Stream *caller, *stream;  // the one it was called on, and the one it runs on
    cudaStream_t s;           // of `stream`
    char what[WATCH_TEXT_BYTES];  // "all_gather of unit 3 in step 17"
} NcclCall;

// false: the stream has failed before.
bool nccl_begin(CommNccl *comm, int lane, Collective collective, Stream *stream, const char *what, NcclCall *call);
void nccl_end(const NcclCall *call);
// A stream of comm's; NULL if it has failed, and then its error is the caller's.
cudaStream_t nccl_own_stream(const NcclCall *call, Stream *stream);
// What NCCL says of a call becomes the caller's stream's error.
void nccl_check(const NcclCall *call, ncclResult_t result);
Status nccl_fail(const char *doing, ncclResult_t result);
ncclDataType_t nccl_type(Dtype dtype);

// Piece by piece, in rank order and in fp32, as comm_mpi.
void nccl_reduce_in_order(const NcclCall *call, void *shard, Dtype shard_dtype, const float *full, int64_t len, bool add);
// With ncclReduceScatter and ncclAllReduce.
void nccl_reduce_natively(const NcclCall *call, void *shard, Dtype shard_dtype, const float *full, int64_t len,
                          bool add);

// ---- comm_nccl_register.cu ----

Status nccl_register(Comm *comm, void *memory, size_t bytes);
void nccl_unregister(Comm *comm, const void *memory);

// ---- comm_nccl_progress.cu ----

// On the lane's stream: a collective begins, and is over.
void progress_begin(NcclLane *lane, cudaStream_t s, const char *what);
void progress_end(NcclLane *lane, cudaStream_t s);
// The same for what the host does by itself.
void progress_begin_now(NcclLane *lane, const char *what);
void progress_end_now(NcclLane *lane);
// CommWatch.look; the context is a lane.
void progress_look(void *lane, WatchProgress *progress);

#endif
