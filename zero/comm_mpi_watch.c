#include "zero/comm_mpi_watch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "zero/comm_mpi_world.h"

static const double LOOK_SECONDS = 0.01, ANSWER_SECONDS = 1.0, DEATH_SECONDS = 1.0;

static struct {
    pthread_mutex_t mutex;  // guards `watches`; the rest is the MPI thread's
    CommWatch watches[COMM_WATCHES];
    WatchProgress last[COMM_WATCHES];
    MpiStall stalls[COMM_WATCHES];
    double next_look;
} all = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void mpi_watch_begin(int number, const CommWatch *watch) {
    pthread_mutex_lock(&all.mutex);
    all.watches[number] = *watch;
    pthread_mutex_unlock(&all.mutex);
}

void mpi_watch_end(int number) {
    pthread_mutex_lock(&all.mutex);
    all.watches[number] = (CommWatch){.look = NULL};
    pthread_mutex_unlock(&all.mutex);
}

// ---- how far are the others? ----

// Answer those who ask: the question is the number of a watch.
static void answer(void) {
    int asked = 0, number;
    MPI_Status from;
    while (MPI_Iprobe(MPI_ANY_SOURCE, NOTICE_QUESTION, mpi_world_notices(), &asked, &from) == MPI_SUCCESS && asked) {
        MPI_Recv(&number, 1, MPI_INT, from.MPI_SOURCE, NOTICE_QUESTION, mpi_world_notices(), MPI_STATUS_IGNORE);
        int64_t begun = all.last[number].begun;
        MPI_Send(&begun, sizeof begun, MPI_BYTE, from.MPI_SOURCE, NOTICE_ANSWER, mpi_world_notices());
    }
}

// Take what has been answered; come[r] is set if rank first + r has come to collective `begun`. Returns how many did.
static int take_answers(const CommWatch *watch, int64_t begun, bool *come) {
    int answered = 0, n_come = 0;
    MPI_Status from;
    int64_t theirs;
    while (MPI_Iprobe(MPI_ANY_SOURCE, NOTICE_ANSWER, mpi_world_notices(), &answered, &from) == MPI_SUCCESS &&
           answered) {
        MPI_Recv(&theirs, sizeof theirs, MPI_BYTE, from.MPI_SOURCE, NOTICE_ANSWER, mpi_world_notices(),
                 MPI_STATUS_IGNORE);
        come[from.MPI_SOURCE - watch->first] = theirs >= begun;
        n_come += theirs >= begun;
    }
    return n_come;
}

// Which ranks have not come to the collective that was begun last: the first few in `missing`; returns how many. Those
// that do not answer within a second count. Questions are not withdrawn: the run ends after this.
static int ask(int number, const CommWatch *watch, int missing[], int max) {
    int n = watch->n_ranks, n_come = 1, n_missing = 0;
    bool *come = calloc((size_t)n, sizeof *come);
    MPI_Request *questions = calloc((size_t)n, sizeof(MPI_Request));
    if (!come || !questions)
        return 0;
    come[mpi_world_rank() - watch->first] = true;
    for (int r = 0; r < n; r++)
        if (!come[r])
            MPI_Isend(&number, 1, MPI_INT, watch->first + r, NOTICE_QUESTION, mpi_world_notices(), &questions[r]);
    for (double until = comm_clock() + ANSWER_SECONDS; comm_clock() < until && n_come < n;) {
        mpi_heed_others();
        answer();
        n_come += take_answers(watch, all.last[number].begun, come);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    for (int r = 0; r < n; r++)
        if (!come[r] && n_missing++ < max)
            missing[n_missing - 1] = watch->first + r;
    free(come);
    return n_missing;
}

// ---- looking ----

// A rank that dies closes its connections first and is gone a moment later: then it is named.
static void end_with_error(const WatchProgress *p) {
    char message[STATUS_MESSAGE_BYTES];
    for (double until = comm_clock() + DEATH_SECONDS; comm_clock() < until;) {
        mpi_heed_others();
        mpi_end_if_peer_is_gone(p->what);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    snprintf(message, sizeof message, "%s failed: %s. Nothing is saved", p->what, p->error);
    mpi_end_run(FAILED, message);
}

static void look_at(int number, const CommWatch *watch) {
    WatchProgress *last = &all.last[number], now = {.begun = 0};
    watch->look(watch->context, &now);
    bool stands = now.begun > now.done && now.begun == last->begun && now.done == last->done;
    *last = now;
    if (now.error)
        end_with_error(&now);
    StallState state = mpi_stall(&all.stalls[number], stands, watch->timeout);
    if (state != STALL_NONE)
        mpi_end_if_peer_is_gone(now.what);
    if (state == STALL_TIMEOUT) {
        int missing[SHOWN_RANKS];
        int n = ask(number, watch, missing, SHOWN_RANKS);
        mpi_end_stalled(now.what, watch->timeout, missing, n);
    }
}

void mpi_watch_collectives(void) {
    double time = comm_clock();
    if (time < all.next_look)
        return;
    all.next_look = time + LOOK_SECONDS;
    answer();
    pthread_mutex_lock(&all.mutex);
    for (int i = 0; i < COMM_WATCHES; i++)
        if (all.watches[i].look)
            look_at(i, &all.watches[i]);
    pthread_mutex_unlock(&all.mutex);
}
