// How a run of many ranks ends before its time: one rank says why, and all end.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "zero/comm_mpi_world.h"

// Several ranks often find the same fault at the same time, or the end of one that has just said why. Before it speaks,
// each listens, a little longer than the one before it, so that only one of them is heard.
static const double SECONDS_BETWEEN_RANKS = 0.1;
static const double PEER_CHECK_SECONDS = 1.0;

static _Noreturn void speak_and_end(int status, const char *message) {
    char line[STATUS_MESSAGE_BYTES + 64];
    int length = snprintf(line, sizeof line, "rank %d: %s\n", mpi_world_rank(), message);
    if (length >= (int)sizeof line)
        length = (int)sizeof line - 1;
    if (write(STDERR_FILENO, line, (size_t)length) < 0)
        status = FAILED;  // nobody listens
    MPI_Request *requests = malloc((size_t)mpi_world_size() * sizeof *requests);
    for (int r = 0; requests && r < mpi_world_size(); r++) {
        requests[r] = MPI_REQUEST_NULL;
        if (r != mpi_world_rank())
            MPI_Isend(&status, 1, MPI_INT, r, NOTICE_END, mpi_world_notices(), &requests[r]);
    }
    int done = 0;
    for (int i = 0; requests && i < 100 && !done; i++) {  // a fifth of a second: some ranks may not answer
        MPI_Testall(mpi_world_size(), requests, &done, MPI_STATUSES_IGNORE);
        usleep(2000);
    }
    MPI_Abort(MPI_COMM_WORLD, status);
    _exit(status);
}

void mpi_heed_others(void) {
    int said = 0;
    MPI_Status from;
    if (MPI_Iprobe(MPI_ANY_SOURCE, NOTICE_END, mpi_world_notices(), &said, &from) != MPI_SUCCESS || !said)
        return;
    int status = FAILED;
    MPI_Recv(&status, 1, MPI_INT, from.MPI_SOURCE, NOTICE_END, mpi_world_notices(), MPI_STATUS_IGNORE);
    usleep(500000);  // the rank that has spoken ends this one; if it cannot, this one ends by itself
    _exit(status);
}

_Noreturn void mpi_end_run(Status status, const char *message) {
    int rank = mpi_world_rank();
    double until = comm_clock() + SECONDS_BETWEEN_RANKS * (rank < 10 ? rank + 1 : 11);
    while (comm_clock() < until) {
        mpi_heed_others();
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    speak_and_end(status, message);
}

// ---- what cannot go on ----

StallState mpi_stall(MpiStall *stall, bool stands, double timeout) {
    // A rank that was suspended and goes on must not take the time it missed for the others': a look counts at most a
    // second.
    double time = comm_clock(), passed = time - stall->looked;
    stall->looked = time;
    stall->seconds += passed < 1 ? passed : 1;
    if (!stands) {
        stall->seconds = stall->peers_checked = 0;
        return STALL_NONE;
    }
    bool check = stall->seconds > stall->peers_checked + PEER_CHECK_SECONDS;
    if (check)
        stall->peers_checked = stall->seconds;
    return stall->seconds > timeout ? STALL_TIMEOUT : check ? STALL_CHECK_PEERS : STALL_NONE;
}

void mpi_end_if_peer_is_gone(const char *name) {
    int lost = mpi_world_lost_peer();
    if (lost < 0)
        return;
    char who[96], message[STATUS_MESSAGE_BYTES];
    mpi_world_describe(lost, who, sizeof who);
    snprintf(message, sizeof message, "%s: %s is gone. Nothing is saved; its own output says why it ended", name, who);
    mpi_end_run(FAILED, message);
}

_Noreturn void mpi_end_stalled(const char *name, double timeout, const int *ranks, int n_ranks) {
    // "rank 1 (host a), rank 3 (host b) and others"
    char who[SHOWN_RANKS * 96] = "", message[STATUS_MESSAGE_BYTES];
    size_t used = 0;
    for (int i = 0; i < n_ranks && i < SHOWN_RANKS; i++) {
        char one[80];
        mpi_world_describe(ranks[i], one, sizeof one);
        used += (size_t)snprintf(who + used, sizeof who - used, "%s%s", i ? ", " : "", one);
    }
    if (n_ranks > 0)
        snprintf(message, sizeof message,
                 "%s did not finish within %g s; waiting for %s%s. Nothing is saved. Is that rank "
                 "stopped, or slow? --comm-timeout sets the limit",
                 name, timeout, who, n_ranks > SHOWN_RANKS ? " and others" : "");
    else
        snprintf(message, sizeof message,
                 "%s did not finish within %g s, though all ranks have come to it. Nothing is saved. Is the network "
                 "down? --comm-timeout sets the limit",
                 name, timeout);
    mpi_end_run(FAILED, message);
}

// ---- jobs ----

static const char *job_name(const MpiJob *job, char text[160]) {
    char step[32] = "";
    if (job->step > 0)
        snprintf(step, sizeof step, " in step %lld", (long long)job->step);
    snprintf(text, 160, "%s of %s%s", job->collective, job->what, step);
    return text;
}

// The peers of messages under way: how many, and the first of them.
static int awaited(const MpiJob *job, int ranks[SHOWN_RANKS]) {
    int n = 0;
    for (int f = 0; f < job->n_flows; f++) {
        for (int w = 0; w < job->flows[f].n_open; w++) {
            int peer = job->flows[f].open_peer[w];
            bool known = false;
            for (int k = 0; k < n && k < SHOWN_RANKS; k++)
                known = known || ranks[k] == peer;
            if (!known && n++ < SHOWN_RANKS)
                ranks[n - 1] = peer;
        }
    }
    return n;
}

void mpi_watch(MpiJob *job, bool moved) {
    bool under_way = false;  // else it is this rank that takes its time
    for (int f = 0; f < job->n_flows; f++)
        under_way = under_way || job->flows[f].n_open > 0;
    StallState state = mpi_stall(&job->stall, !moved && under_way, job->timeout);
    char name[160];
    if (state != STALL_NONE)
        mpi_end_if_peer_is_gone(job_name(job, name));
    if (state == STALL_TIMEOUT) {
        int ranks[SHOWN_RANKS];
        int n = awaited(job, ranks);
        mpi_end_stalled(job_name(job, name), job->timeout, ranks, n);
    }
}

_Noreturn void mpi_end_message_failed(const MpiJob *job, int error, int peer) {
    char text[MPI_MAX_ERROR_STRING] =
        "it sent another number of bytes. Do all ranks run the same program on the same data?";
    char name[160], who[96], message[STATUS_MESSAGE_BYTES];
    int length, kind;
    MPI_Error_class(error, &kind);
    if (kind != MPI_ERR_TRUNCATE)
        MPI_Error_string(error, text, &length);
    mpi_world_describe(peer, who, sizeof who);
    snprintf(message, sizeof message, "%s failed between this rank and %s: %s", job_name(job, name), who, text);
    mpi_end_run(FAILED, message);
}
