// comm_mpi_watch: the MPI thread's eye on collectives that it does not carry itself (NCCL's).
//
// A collective that this rank has come to and that is not over within the timeout, an error of the transport and a lost
// process of this host end the run on all ranks with one message, as for messages of MPI. To name whom a collective
// waits for, the MPI thread asks those of the other ranks how many collectives they have come to: the count is the same
// on all ranks, because all enqueue the same ones.
#ifndef ZERO_COMM_MPI_WATCH_H
#define ZERO_COMM_MPI_WATCH_H

#include <stdint.h>

enum { COMM_WATCHES = 2, WATCH_TEXT_BYTES = 96 };  // a watch for each communicator

typedef struct WatchProgress {
    int64_t begun;                // collectives that this rank has come to
    int64_t done;                 // of these, how many are over
    char what[WATCH_TEXT_BYTES];  // the last one begun: "all_gather of unit 3 in step 17"
    const char *error;            // what the transport says went wrong; NULL: nothing
} WatchProgress;

typedef struct CommWatch {
    int first, n_ranks;  // who takes part: ranks first … first + n_ranks - 1
    double timeout;
    void (*look)(void *context, WatchProgress *progress);  // called by the MPI thread now and then
    void *context;
} CommWatch;

void mpi_watch_begin(int number, const CommWatch *watch);
void mpi_watch_end(int number);  // `look` is not called from here on

#endif
