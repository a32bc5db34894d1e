#include "zero/comm_mpi_thread.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "zero/comm_mpi_world.h"

// Sleep between polls: a tenth of the time since something moved, or an eighth of the time between the last
// moves (large messages follow each other: the next will take as long), within these bounds. Each poll takes a core from compute
// for a moment. While no job is there MPI still needs a call now and then, for messages that it has taken but not yet sent.
enum { PAUSE_MIN_US = 20, PAUSE_BUSY_MAX_US = 1000, PAUSE_IDLE_MAX_US = 20000 };

static struct {
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex;  // guards what follows, and the flows' `allowed` and `done`
    pthread_cond_t asked;   // there is something new for the MPI thread
    pthread_cond_t moved;   // a flow went on, or MPI is up
    bool has_news;
    MpiJob *jobs[MPI_LANES];
    CommWorld *world;  // where to tell the ranks; NULL once that is done
    Status start_status;
    char start_message[STATUS_MESSAGE_BYTES];
    bool stop;
    const char *abort_message;  // NULL: go on
    Status abort_status;
} mpi = {.mutex = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};

// ---- random delays, for tests: ZERO_TEST_COMM_DELAY_US in the environment is the longest ----

static int longest_delay_us(void) {
    static int longest = -1;
    if (longest < 0) {
        const char *text = getenv("ZERO_TEST_COMM_DELAY_US");
        longest = text ? atoi(text) : 0;
    }
    return longest;
}

static double random_delay(void) {
    static _Thread_local uint64_t state;
    if (longest_delay_us() == 0)
        return 0;
    state = state * 6364136223846793005u + 1442695040888963407u + (uint64_t)mpi_world_rank();
    return (state >> 62) ? 0 : 1e-6 * (double)(state >> 33) / 0x1p31 * 4 * longest_delay_us();
}

// ---- one poll ----

static void start_message(MpiJob *job, MpiFlow *flow) {
    MpiMessage m = flow->message(job->context, flow->next);
    MPI_Request *request = &flow->open[flow->n_open];
    MPI_Comm comm = mpi_world_lane(job->lane);
    int error = flow->sends ? MPI_Isend(m.data, (int)m.bytes, MPI_BYTE, m.peer, job->tag, comm, request)
                            : MPI_Irecv(m.data, (int)m.bytes, MPI_BYTE, m.peer, job->tag, comm, request);
    if (error != MPI_SUCCESS)
        mpi_end_message_failed(job, error, m.peer);
    flow->open_index[flow->n_open] = flow->next;
    flow->open_peer[flow->n_open] = m.peer;
    flow->n_open++;
    flow->next++;
    flow->not_before = comm_clock() + random_delay();
}

static void start_messages(MpiJob *job) {
    for (int f = 0; f < job->n_flows; f++) {
        MpiFlow *flow = &job->flows[f];
        while (flow->next < flow->may_start && flow->n_open < MPI_WINDOW &&
               (longest_delay_us() == 0 || comm_clock() >= flow->not_before))
            start_message(job, flow);
    }
}

// Forget message `slot` of those under way; the last one takes its place.
static void close_message(MpiFlow *flow, int slot) {
    int last = --flow->n_open;
    flow->open[slot] = flow->open[last];
    flow->open_index[slot] = flow->open_index[last];
    flow->open_peer[slot] = flow->open_peer[last];
}

typedef struct UnderWay {
    MpiJob *job;
    MpiFlow *flow;
    int slot;
} UnderWay;

// Close a message that has finished.
static void finish(const UnderWay *w, const MPI_Status *status) {
    MpiFlow *flow = w->flow;
    MpiMessage m = flow->message(w->job->context, flow->open_index[w->slot]);
    int bytes = 0;
    if (!flow->sends)
        MPI_Get_count(status, MPI_BYTE, &bytes);
    if (!flow->sends && bytes != m.bytes)
        mpi_end_message_failed(w->job, MPI_ERR_TRUNCATE, m.peer);  // MPI says so itself only when it was too long
    flow->open[w->slot] = MPI_REQUEST_NULL;
}

static void close_finished(MpiFlow *flow) {
    for (int slot = flow->n_open - 1; slot >= 0; slot--)
        if (flow->open[slot] == MPI_REQUEST_NULL)
            close_message(flow, slot);
}

// Test all that is under way, in one call: each call makes MPI look at every connection. moved[lane]: something of this
// lane's job finished.
static void test_jobs(MpiJob *const jobs[MPI_LANES], bool moved[MPI_LANES]) {
    UnderWay under_way[MPI_LANES * MPI_MAX_FLOWS * MPI_WINDOW];
    MPI_Request requests[MPI_LANES * MPI_MAX_FLOWS * MPI_WINDOW];
    MPI_Status statuses[MPI_LANES * MPI_MAX_FLOWS * MPI_WINDOW];
    int finished[MPI_LANES * MPI_MAX_FLOWS * MPI_WINDOW], n = 0, n_finished = 0;
    for (int lane = 0; lane < MPI_LANES; lane++) {
        for (int f = 0; jobs[lane] && f < jobs[lane]->n_flows; f++) {
            MpiFlow *flow = &jobs[lane]->flows[f];
            for (int slot = 0; slot < flow->n_open; slot++) {
                requests[n] = flow->open[slot];
                under_way[n++] = (UnderWay){jobs[lane], flow, slot};
            }
        }
    }
    if (n == 0)
        return;
    int error = MPI_Testsome(n, requests, &n_finished, finished, statuses);
    for (int i = 0; error == MPI_ERR_IN_STATUS && i < n_finished; i++)
        if (statuses[i].MPI_ERROR != MPI_SUCCESS)
            mpi_end_message_failed(under_way[finished[i]].job, statuses[i].MPI_ERROR,
                                   under_way[finished[i]].flow->open_peer[under_way[finished[i]].slot]);
    if (error != MPI_SUCCESS)
        mpi_end_message_failed(under_way[0].job, error, under_way[0].flow->open_peer[under_way[0].slot]);
    for (int i = 0; i < n_finished; i++) {
        finish(&under_way[finished[i]], &statuses[i]);
        moved[under_way[finished[i]].job->lane] = true;
    }
    for (int lane = 0; lane < MPI_LANES; lane++)
        for (int f = 0; moved[lane] && f < jobs[lane]->n_flows; f++)
            close_finished(&jobs[lane]->flows[f]);
}

static int64_t complete_before(const MpiFlow *flow) {
    int64_t done = flow->next;
    for (int w = 0; w < flow->n_open; w++)
        if (flow->open_index[w] < done)
            done = flow->open_index[w];
    return done;
}

// Tell the job's owner how far it is. Once all is done the owner may take the job away: it is not touched any more.
static bool publish(MpiJob *job) {
    bool all = true;
    for (int f = 0; f < job->n_flows; f++) {
        MpiFlow *flow = &job->flows[f];
        flow->done = complete_before(flow);
        flow->may_start = flow->allowed;
        all = all && flow->done == flow->n;
    }
    if (all)
        mpi.jobs[job->lane] = NULL;
    return all;
}

// Returns whether anything moved; *busy: whether jobs are left. Called with the mutex held, which is released
// meanwhile.
static bool poll_jobs(bool *busy) {
    MpiJob *jobs[MPI_LANES];
    memcpy(jobs, mpi.jobs, sizeof jobs);
    pthread_mutex_unlock(&mpi.mutex);
    mpi_heed_others();
    mpi_watch_collectives();
    bool any = false, moved[MPI_LANES] = {false};
    for (int lane = 0; lane < MPI_LANES; lane++)
        if (jobs[lane])
            start_messages(jobs[lane]);
    test_jobs(jobs, moved);
    for (int lane = 0; lane < MPI_LANES; lane++) {
        if (jobs[lane])
            mpi_watch(jobs[lane], moved[lane]);
        any = any || moved[lane];
    }
    pthread_mutex_lock(&mpi.mutex);
    *busy = false;
    for (int lane = 0; lane < MPI_LANES; lane++) {
        if (!jobs[lane])
            continue;
        if (publish(jobs[lane]))
            any = true;
        else
            *busy = true;
    }
    if (any)
        pthread_cond_broadcast(&mpi.moved);
    return any;
}

// ---- the thread ----

static void wait_for_news(int microseconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += microseconds * 1000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    if (!mpi.has_news)
        pthread_cond_timedwait(&mpi.asked, &mpi.mutex, &until);
    mpi.has_news = false;
}

static int pause_us(double since_move, double between_moves, bool busy) {
    double pause = 1e6 * fmax(since_move / 10, between_moves / 8);
    double longest = busy ? PAUSE_BUSY_MAX_US : PAUSE_IDLE_MAX_US;
    return pause < PAUSE_MIN_US ? PAUSE_MIN_US : (int)(pause < longest ? pause : longest);
}

static void *thread_main(void *unused) {
    (void)unused;
    Status status = mpi_world_open(mpi.world);
    pthread_mutex_lock(&mpi.mutex);
    mpi.start_status = status;
    snprintf(mpi.start_message, sizeof mpi.start_message, "%s", status_message());
    mpi.world = NULL;
    pthread_cond_broadcast(&mpi.moved);
    double last_move = comm_clock(), between_moves = 0;
    while (!mpi.stop && status == OK) {
        if (mpi.abort_message)
            mpi_end_run(mpi.abort_status, mpi.abort_message);
        bool busy, moved = poll_jobs(&busy);
        double now = comm_clock();
        if (moved)
            between_moves = fmax(now - last_move, between_moves / 2);  // both ways of a message end nearly together
        if (moved || mpi.has_news)
            last_move = now;
        if (!moved)
            wait_for_news(pause_us(now - last_move, between_moves, busy));
    }
    pthread_mutex_unlock(&mpi.mutex);
    if (status == OK)
        mpi_world_close();
    return NULL;
}

Status comm_mpi_start(CommWorld *world) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&mpi.asked, &monotonic);
    pthread_condattr_destroy(&monotonic);
    mpi.world = world;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the main thread
    int error = pthread_create(&mpi.thread, NULL, thread_main, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return fail("cannot start the thread for MPI: %s", strerror(error));
    pthread_mutex_lock(&mpi.mutex);
    while (mpi.world)
        pthread_cond_wait(&mpi.moved, &mpi.mutex);
    pthread_mutex_unlock(&mpi.mutex);
    mpi.started = mpi.start_status == OK;
    if (mpi.started)
        return OK;
    pthread_join(mpi.thread, NULL);
    return fail("%s", mpi.start_message);
}

static void tell(void) {
    mpi.has_news = true;
    pthread_cond_signal(&mpi.asked);
}

void mpi_thread_stop(void) {
    pthread_mutex_lock(&mpi.mutex);
    mpi.stop = true;
    tell();
    pthread_mutex_unlock(&mpi.mutex);
    pthread_join(mpi.thread, NULL);
    mpi.started = false;
}

bool comm_mpi_started(void) {
    return mpi.started;
}

void comm_mpi_abort(Status status, const char *message) {
    pthread_mutex_lock(&mpi.mutex);
    if (!mpi.abort_message) {
        mpi.abort_message = message;
        mpi.abort_status = status;
    }
    tell();
    pthread_mutex_unlock(&mpi.mutex);
    fflush(stdout);
    for (;;)
        pause();
}

double mpi_thread_cpu_seconds(void) {
    clockid_t clock;
    struct timespec t;
    if (pthread_getcpuclockid(mpi.thread, &clock) != 0 || clock_gettime(clock, &t) != 0)
        return 0;
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- for the owners of jobs ----

void mpi_job_begin(MpiJob *job) {
    static int n_jobs[MPI_LANES];
    double delay = random_delay();
    if (delay > 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)(delay * 1e9)}, NULL);
    pthread_mutex_lock(&mpi.mutex);
    job->tag = n_jobs[job->lane]++ & 0x3fff;  // a rank with other collectives waits, rather than take the wrong message
    job->stall.looked = comm_clock();
    for (int f = 0; f < job->n_flows; f++)
        job->flows[f].may_start = job->flows[f].allowed;
    mpi.jobs[job->lane] = job;
    tell();
    pthread_mutex_unlock(&mpi.mutex);
}

void mpi_flow_allow(MpiJob *job, int flow, int64_t n) {
    MpiFlow *f = &job->flows[flow];
    pthread_mutex_lock(&mpi.mutex);
    f->allowed = n < f->n ? n : f->n;
    tell();
    pthread_mutex_unlock(&mpi.mutex);
}

void mpi_flow_wait(MpiJob *job, int flow, int64_t n) {
    MpiFlow *f = &job->flows[flow];
    pthread_mutex_lock(&mpi.mutex);
    while (f->done < n && f->done < f->n)
        pthread_cond_wait(&mpi.moved, &mpi.mutex);
    pthread_mutex_unlock(&mpi.mutex);
}

void mpi_job_end(MpiJob *job) {
    pthread_mutex_lock(&mpi.mutex);
    while (mpi.jobs[job->lane] == job)
        pthread_cond_wait(&mpi.moved, &mpi.mutex);
    pthread_mutex_unlock(&mpi.mutex);
}
