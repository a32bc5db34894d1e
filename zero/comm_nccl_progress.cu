// How far the collectives are. A collective begins when its stream comes to it, which only the GPU knows; so a tiny
// kernel before each writes what it is, and one after it that it is over, into pinned memory. The MPI thread reads that
// without a call of CUDA's, which might block where a collective stands still (comm_mpi_watch.h).
#include <cstdio>
#include <cstring>

#include "zero/comm_nccl.cuh"

typedef struct Mark {
    int64_t number;
    uint32_t what[WATCH_TEXT_BYTES / 4];
} Mark;

// One thread each.
__global__ void mark_begun(NcclProgress *progress, Mark mark) {
    for (int i = 0; i < WATCH_TEXT_BYTES / 4; i++)
        progress->what[i] = mark.what[i];
    __threadfence_system();
    *static_cast<volatile int64_t *>(&progress->begun) = mark.number;
}
__global__ void mark_done(NcclProgress *progress, int64_t number) {
    *static_cast<volatile int64_t *>(&progress->done) = number;
}

void progress_begin(NcclLane *lane, cudaStream_t s, const char *what) {
    Mark mark = {};
    mark.number = ++lane->n_issued;
    snprintf(reinterpret_cast<char *>(mark.what), sizeof mark.what, "%s", what);
    LAUNCH((mark_begun), (1, 1, 0, s), lane->progress, mark);
}

void progress_end(NcclLane *lane, cudaStream_t s) {
    LAUNCH((mark_done), (1, 1, 0, s), lane->progress, lane->n_issued);
}

void progress_begin_now(NcclLane *lane, const char *what) {
    snprintf(reinterpret_cast<char *>(lane->progress->what), sizeof lane->progress->what, "%s", what);
    __atomic_store_n(&lane->progress->begun, ++lane->n_issued, __ATOMIC_RELEASE);
}

void progress_end_now(NcclLane *lane) {
    __atomic_store_n(&lane->progress->done, lane->n_issued, __ATOMIC_RELEASE);
}

void progress_look(void *context, WatchProgress *to) {
    const NcclLane *lane = static_cast<const NcclLane *>(context);
    to->begun = __atomic_load_n(&lane->progress->begun, __ATOMIC_ACQUIRE);
    to->done = __atomic_load_n(&lane->progress->done, __ATOMIC_ACQUIRE);
    memcpy(to->what, lane->progress->what, sizeof to->what);
    to->what[sizeof to->what - 1] = '\0';
    for (ncclComm_t comm : {lane->comm, lane->across}) {
        ncclResult_t error = ncclSuccess;
        if (comm && nccl.ncclCommGetAsyncError(comm, &error) == ncclSuccess && error != ncclSuccess &&
            error != ncclInProgress)
            to->error = nccl.ncclGetErrorString(error);
    }
}
