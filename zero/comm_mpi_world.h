// comm_mpi_world: starting MPI, what is known of the other ranks, and ending them all. For the MPI thread only.
#ifndef ZERO_COMM_MPI_WORLD_H
#define ZERO_COMM_MPI_WORLD_H

#include "zero/comm_mpi_thread.h"

Status mpi_world_open(CommWorld *world);  // MPI_Init_thread, the lanes' communicators, hosts and process ids
void mpi_world_close(void);               // MPI_Finalize: all ranks

MPI_Comm mpi_world_lane(int lane);
void mpi_world_describe(int rank, char *text, size_t text_bytes);  // "rank 1 (host a)"
int mpi_world_lost_peer(void);  // a rank of this host whose process is gone; -1: none

// Print the message, tell the other ranks that it has been said, and end them.
_Noreturn void mpi_world_end(int status, const char *message);
// Has another rank done so? Then this one ends too, silently. Also lets MPI make progress.
void mpi_world_heed(void);

#endif
