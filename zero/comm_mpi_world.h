// comm_mpi_world: starting MPI, what is known of the other ranks, and ending them all. For the MPI thread only.
#ifndef ZERO_COMM_MPI_WORLD_H
#define ZERO_COMM_MPI_WORLD_H

#include "zero/comm_mpi_thread.h"

Status mpi_world_open(CommWorld *world);  // MPI_Init_thread, the lanes' communicators, hosts and process ids
void mpi_world_close(void);               // MPI_Finalize: all ranks

MPI_Comm mpi_world_lane(int lane);
MPI_Comm mpi_world_notices(void);                                  // apart from all jobs; what the messages are for:
enum { NOTICE_END, NOTICE_QUESTION, NOTICE_ANSWER };
void mpi_world_describe(int rank, char *text, size_t text_bytes);  // "rank 1 (host a)"
int mpi_world_lost_peer(void);  // a rank of this host whose process is gone; -1: none

// ---- comm_mpi_end.c ----

// Print the message and end all ranks with the exit status, unless another rank is heard to do so first.
_Noreturn void mpi_end_run(Status status, const char *message);
// Has another rank ended the run? Then this one ends too, silently. Also lets MPI make progress.
void mpi_heed_others(void);
// Look at a job: ends the run when nothing has moved for its timeout, or a rank of this host is gone.
void mpi_watch(MpiJob *job, bool moved);
// The same for collectives of other transports (comm_mpi_watch.c).
void mpi_watch_collectives(void);

// Something waits for other ranks, or does not: count the time for which it `stands`.
typedef enum StallState { STALL_NONE, STALL_CHECK_PEERS, STALL_TIMEOUT } StallState;
StallState mpi_stall(MpiStall *stall, bool stands, double timeout);
// End the run if a rank of this host is gone; `name` says what waits: "all_gather of unit 3 in step 17".
void mpi_end_if_peer_is_gone(const char *name);
// End the run after the timeout. n_ranks are known to be waited for; `ranks` has the first of them.
enum { SHOWN_RANKS = 4 };
_Noreturn void mpi_end_stalled(const char *name, double timeout, const int *ranks, int n_ranks);
_Noreturn void mpi_end_message_failed(const MpiJob *job, int error, int peer);

#endif
