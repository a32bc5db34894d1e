// comm_mpi_thread: the one thread of a rank that talks to MPI, and what others ask of it.
//
// A collective is a job: up to four flows, each a numbered sequence of messages that are all sent or all received. The
// thread that wants the collective (a stream's worker) describes the flows, begins the job, says how far each flow may
// go (the buffers of those messages are ready), waits until a flow has come far enough, and ends the job:
//
//     mpi_job_begin(&job);
//     mpi_flow_allow(&job, SEND, n);  mpi_flow_wait(&job, RECEIVE, n);
//     mpi_job_end(&job);
//
// The MPI thread starts messages in order, at most MPI_WINDOW of a flow at a time, and sleeps between polls rather than
// taking a core from compute. It is the only one to call MPI (MPI_THREAD_FUNNELED is enough). Jobs of different lanes
// progress at the same time, each lane on its own communicator. Jobs of one lane come one after another, in the same
// order on every rank.
//
// Deadlock. Message i of a sending flow must be message i of its receiver's flow for all ranks together (rotate peers:
// in round k send to rank+k and receive from rank-k). Then the message with the smallest number that is not yet
// complete anywhere is within the window on both sides, so it can go.
//
// Nothing here returns an error: a job that makes no progress for the timeout, a lost peer or a failing MPI call ends
// all ranks, with a message that names the job and the ranks it waits for.
#ifndef ZERO_COMM_MPI_THREAD_H
#define ZERO_COMM_MPI_THREAD_H

#include <mpi.h>

#include "zero/comm_mpi_host.h"

enum {
    MPI_LANES = 5,  // communicators: four for streams, one for host values
    MPI_HOST_LANE = 4,
    MPI_WINDOW = 8,  // messages of a flow that are under way at a time
    MPI_MAX_FLOWS = 4,
    MPI_WHAT_BYTES = 48,
};

// How long something that waits for other ranks has stood still.
typedef struct MpiStall {
    double looked;         // when it was last looked at
    double seconds;        // without progress
    double peers_checked;  // `seconds` when the processes of this host were last looked for
} MpiStall;

typedef struct MpiMessage {
    int peer;       // rank in the world
    void *data;     // not written when sending
    int64_t bytes;  // at most INT_MAX
} MpiMessage;

typedef struct MpiFlow {
    // Set before mpi_job_begin:
    bool sends;
    int64_t n;                                              // messages
    MpiMessage (*message)(const void *context, int64_t i);  // message i; called when it may start
    int64_t allowed;                                        // messages before this one may start (guarded by the mutex)
    // The MPI thread's:
    int64_t done;       // messages before this one are complete (guarded by the mutex)
    int64_t may_start;  // copy of `allowed`
    int64_t next;       // message to start next
    int n_open;         // messages under way
    int64_t open_index[MPI_WINDOW];
    int open_peer[MPI_WINDOW];
    MPI_Request open[MPI_WINDOW];
    double not_before;  // tests: a random delay
} MpiFlow;

typedef struct MpiJob {
    int lane;
    const char *collective;     // "all_gather"
    char what[MPI_WHAT_BYTES];  // "unit 3"
    int64_t step;               // 0: none
    double timeout;
    const void *context;  // for the flows
    int n_flows;
    MpiFlow flows[MPI_MAX_FLOWS];
    int tag;  // the MPI thread's, as the next
    MpiStall stall;
} MpiJob;

void mpi_job_begin(MpiJob *job);
void mpi_flow_allow(MpiJob *job, int flow, int64_t n);  // messages before n may start
void mpi_flow_wait(MpiJob *job, int flow, int64_t n);   // until messages before n are complete
void mpi_job_end(MpiJob *job);                          // all messages must have been allowed; waits for them

void mpi_thread_stop(void);  // MPI_Finalize: all ranks

#endif
