#include "zero/comm_mpi_world.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HOST_BYTES = 64 };

typedef struct Peer {
    char host[HOST_BYTES];
    int leader, n_local;  // of its host: the first rank, and how many
    pid_t pid;            // 0: not on this host, or not visible from here
} Peer;

static int my_rank, n_ranks;
static MPI_Comm lanes[MPI_LANES], notices;
static Peer *peers;

static Status check(int error, const char *doing) {
    if (error == MPI_SUCCESS)
        return OK;
    char text[MPI_MAX_ERROR_STRING];
    int length;
    MPI_Error_string(error, text, &length);
    return fail("MPI failed while %s: %s", doing, text);
}

// Every rank learns host and process id of every other.
static Status meet(MPI_Comm host_comm) {
    peers = calloc((size_t)n_ranks, sizeof *peers);
    if (!peers)
        return fail("out of host memory");
    Peer me = {.leader = my_rank, .pid = getpid()};
    char name[MPI_MAX_PROCESSOR_NAME];
    int length;
    TRY(check(MPI_Get_processor_name(name, &length), "asking for the host's name"));
    snprintf(me.host, sizeof me.host, "%.*s", HOST_BYTES - 1, name);
    MPI_Comm_size(host_comm, &me.n_local);
    TRY(check(MPI_Bcast(&me.leader, 1, MPI_INT, 0, host_comm), "counting the ranks of each host"));
    TRY(check(MPI_Allgather(&me, sizeof me, MPI_BYTE, peers, sizeof me, MPI_BYTE, MPI_COMM_WORLD),
              "exchanging host names"));
    for (int r = 0; r < n_ranks; r++)
        if (peers[r].leader != me.leader || kill(peers[r].pid, 0) != 0)
            peers[r].pid = 0;
    return OK;
}

// Ranks on each host, if every host has as many and they are consecutive.
static int host_group(void) {
    for (int r = 0; r < n_ranks; r++)
        if (peers[r].n_local != peers[0].n_local || peers[r].leader != r - r % peers[0].n_local)
            return n_ranks;
    return peers[0].n_local;
}

Status mpi_world_open(CommWorld *world) {
    int provided;
    TRY(check(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided), "starting (MPI_Init_thread)"));
    if (provided < MPI_THREAD_FUNNELED)
        return fail(
            "this MPI library does not allow programs with threads (it provides level %d, MPI_THREAD_SINGLE; "
            "MPI_THREAD_FUNNELED is needed): use one that was built with thread support",
            provided);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    for (int lane = 0; lane < MPI_LANES; lane++)
        TRY(check(MPI_Comm_dup(MPI_COMM_WORLD, &lanes[lane]), "making a communicator"));  // inherits MPI_ERRORS_RETURN
    TRY(check(MPI_Comm_dup(MPI_COMM_WORLD, &notices), "making a communicator"));
    MPI_Comm host_comm;
    TRY(check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, my_rank, MPI_INFO_NULL, &host_comm),
              "finding the ranks of this host"));
    TRY(meet(host_comm));
    *world = (CommWorld){.rank = my_rank, .size = n_ranks, .host_group = host_group()};
    MPI_Comm_rank(host_comm, &world->local_rank);
    MPI_Comm_size(host_comm, &world->local_size);
    MPI_Comm_free(&host_comm);
    return OK;
}

void mpi_world_close(void) {
    for (int lane = 0; lane < MPI_LANES; lane++)
        MPI_Comm_free(&lanes[lane]);
    MPI_Comm_free(&notices);
    MPI_Finalize();
    free(peers);
    peers = NULL;
}

int mpi_world_rank(void) {
    return my_rank;
}
int mpi_world_size(void) {
    return n_ranks;
}
MPI_Comm mpi_world_notices(void) {
    return notices;
}
MPI_Comm mpi_world_lane(int lane) {
    return lanes[lane];
}
void mpi_world_describe(int rank, char *text, size_t text_bytes) {
    snprintf(text, text_bytes, "rank %d (host %s)", rank, peers[rank].host);
}
int mpi_world_lost_peer(void) {
    for (int r = 0; r < n_ranks; r++)
        if (peers[r].pid && kill(peers[r].pid, 0) != 0 && errno == ESRCH)
            return r;
    return -1;
}
