// ranks: several ranks in one process, each a thread with its own part of a toy model's state, and the collectives
// between them that checkpoints use. The program that includes this defines zero/comm.h's host collectives itself.
#ifndef TEST_RANKS_H
#define TEST_RANKS_H

#include <assert.h>
#include <pthread.h>

#include "test/check.h"
#include "test/toy_units.h"
#include "zero/checkpoint.h"
#include "zero/saver.h"

enum { MAX_RANKS = 8 };

typedef struct World {
    int size;
    pthread_barrier_t barrier;
    void *shared;  // the root's data
    const double *doubles[MAX_RANKS];
    const Hash128 *hashes[MAX_RANKS];
} World;

struct Comm {
    World *world;
    int rank;
};

int comm_rank(const Comm *comm) {
    return comm->rank;
}

int comm_size(const Comm *comm) {
    return comm->world->size;
}

Status comm_max(Comm *comm, const char *what, double *values, int n) {
    (void)what;
    double largest[8];
    assert(n <= 8);
    comm->world->doubles[comm->rank] = values;
    pthread_barrier_wait(&comm->world->barrier);
    for (int i = 0; i < n; i++) {
        largest[i] = values[i];
        for (int r = 0; r < comm->world->size; r++)
            if (comm->world->doubles[r][i] > largest[i])
                largest[i] = comm->world->doubles[r][i];
    }
    pthread_barrier_wait(&comm->world->barrier);
    memcpy(values, largest, (size_t)n * sizeof *values);
    return OK;
}

Status comm_sum_u128(Comm *comm, const char *what, unsigned __int128 *values, int n) {
    (void)what;
    Hash128 sum[8] = {0};
    assert(n <= 8);
    comm->world->hashes[comm->rank] = values;
    pthread_barrier_wait(&comm->world->barrier);
    for (int i = 0; i < n; i++)
        for (int r = 0; r < comm->world->size; r++)
            sum[i] += comm->world->hashes[r][i];
    pthread_barrier_wait(&comm->world->barrier);
    memcpy(values, sum, (size_t)n * sizeof *values);
    return OK;
}

Status comm_broadcast(Comm *comm, const char *what, void *data, size_t bytes, int root) {
    (void)what;
    if (comm->rank == root)
        comm->world->shared = data;
    pthread_barrier_wait(&comm->world->barrier);
    if (comm->rank != root)
        memcpy(data, comm->world->shared, bytes);
    pthread_barrier_wait(&comm->world->barrier);
    return OK;
}

void comm_set_patience(Comm *comm, double seconds) {
    (void)comm, (void)seconds;
}

double comm_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

typedef struct Rank {
    Comm comm;
    Layout layout;
    StateView view;
    float *state[STATE_KINDS][TOY_UNITS];
    RunState run;
    Saver *saver;   // JOB_START opens it, ranks_close closes it
    Device *device;
    int n_reports;  // saves that ended
    bool saved;     // the last of them
    char report[STATUS_MESSAGE_BYTES];
    char notes[1024], weights[HASH_TEXT_BYTES], moments[HASH_TEXT_BYTES];
    Status status;
    char message[STATUS_MESSAGE_BYTES];
    const struct Job *job;
} Rank;

typedef struct Job {
    enum { JOB_SAVE, JOB_LOAD, JOB_HASH, JOB_START, JOB_FINISH } what;  // START, FINISH: with a saver
    const char *path;
    CheckpointRun run;
    bool async;  // JOB_START
    int64_t keep, keep_every;
} Job;

static Status toy_fetch(void *context, StateKind kind, int u, int64_t begin, int64_t len, float *to) {
    Rank *rank = context;
    memcpy(to, rank->state[kind][u] + begin, (size_t)len * sizeof *to);
    return OK;
}

static Status toy_store(void *context, StateKind kind, int u, int64_t begin, int64_t len, const float *from) {
    Rank *rank = context;
    memcpy(rank->state[kind][u] + begin, from, (size_t)len * sizeof *from);
    return OK;
}

// What element i of a unit holds after `step`: zero in gaps and padding.
static float toy_value(const UnitSpec *unit, StateKind kind, int u, int64_t i, int64_t step) {
    for (int t = 0; t < unit->n_tensors; t++)
        if (i >= unit->tensors[t].offset && i < unit->tensors[t].offset + unit->tensors[t].len)
            return (float)((i * 2654435761 + u * 97 + (int)kind * 31 + step) % 100003) * 0.01f - 500.0f;
    return 0.0f;
}

static void ranks_open(Rank *ranks, int n, int group, int64_t scale) {
    UnitSpec units[TOY_UNITS];
    toy_units(units, scale);
    World *world = calloc(1, sizeof *world);
    world->size = n;
    pthread_barrier_init(&world->barrier, NULL, (unsigned)n);
    for (int r = 0; r < n; r++) {
        Rank *rank = &ranks[r];
        *rank = (Rank){.comm = {world, r}};
        assert_ok(layout_from_units(units, TOY_UNITS, true, n, group, r, &rank->layout));
        rank->view = (StateView){.has = {true, true, true},
                                 .staging = malloc(STATE_PIECE_BYTES),
                                 .context = rank,
                                 .fetch = toy_fetch,
                                 .store = toy_store};
        for (StateKind kind = 0; kind < STATE_KINDS; kind++)
            for (int u = 0; u < TOY_UNITS; u++)
                rank->state[kind][u] = calloc((size_t)rank->layout.units[u].shard_len, sizeof(float));
    }
}

static void ranks_close(Rank *ranks, int n) {
    pthread_barrier_destroy(&ranks[0].comm.world->barrier);
    free(ranks[0].comm.world);
    for (int r = 0; r < n; r++) {
        saver_close(ranks[r].saver);
        device_close(ranks[r].device);
        for (StateKind kind = 0; kind < STATE_KINDS; kind++)
            for (int u = 0; u < TOY_UNITS; u++)
                free(ranks[r].state[kind][u]);
        free(ranks[r].view.staging);
        layout_free(&ranks[r].layout);
    }
}

static void ranks_fill(Rank *ranks, int n, int64_t step) {
    for (int r = 0; r < n; r++) {
        ranks[r].run = (RunState){.step = step,
                                  .updates = step - step / 10,
                                  .samples = 480 * step,
                                  .skipped = step / 10,
                                  .log_bytes = ((int64_t)1 << 52) + step,
                                  .scale = {.scale = 65536.0 / 3.0,
                                            .dynamic = true,
                                            .iteration = step,
                                            .last_overflow = -1,
                                            .hysteresis_left = 1,
                                            .window = 1000,
                                            .hysteresis = 2,
                                            .factor = 2.0,
                                            .minimum = 0.1}};
        for (int i = 0; i < 40; i++)
            ranks[r].run.losses.values[ranks[r].run.losses.n++] = 1.0 / (double)(step + i);
        ranks[r].run.norms = (SpikeWindow){2, {0.1, 1e300}};
        for (StateKind kind = 0; kind < STATE_KINDS; kind++)
            for (int u = 0; u < TOY_UNITS; u++) {
                const UnitLayout *unit = &ranks[r].layout.units[u];
                for (int64_t i = 0; i < unit->shard_len; i++)
                    ranks[r].state[kind][u][i] =
                        toy_value(&unit->spec, kind, u, ranks[r].layout.shard * unit->shard_len + i, step);
            }
    }
}

// Whether the ranks hold exactly what ranks_fill gives for `step`.
static void ranks_expect(Rank *ranks, int n, int64_t step) {
    Rank *expected = calloc((size_t)n, sizeof *expected);
    ranks_open(expected, n, ranks[0].layout.group, ranks[0].layout.units[0].spec.tensors[0].shape[0] / 37);
    ranks_fill(expected, n, step);
    for (int r = 0; r < n; r++) {
        assert_memory_equal(&ranks[r].run, &expected[r].run, sizeof(RunState));
        for (StateKind kind = 0; kind < STATE_KINDS; kind++)
            for (int u = 0; u < TOY_UNITS; u++)
                assert_memory_equal(ranks[r].state[kind][u], expected[r].state[kind][u],
                                    (size_t)ranks[r].layout.units[u].shard_len * sizeof(float));
    }
    ranks_close(expected, n);
    free(expected);
}

static void save_ended(void *context, const SaveReport *report) {
    Rank *rank = context;
    rank->n_reports++;
    rank->saved = report->saved;
    strcpy(rank->report, report->message);
}

static Status start_save(Rank *rank, const Job *job) {
    DeviceOptions device = {.kind = DEVICE_CPU, .threads = 1};
    SaverOptions options = {.out = job->path, .async = job->async, .keep = job->keep, .keep_every = job->keep_every,
                            .ended = save_ended, .context = rank};
    if (!rank->saver) {
        TRY(device_open(&device, &rank->device));
        TRY(saver_open(rank->device, &options, &rank->layout, &rank->comm, &rank->view, &rank->saver));
        assert(device_host_bytes_of(rank->device, SNAPSHOT_NAME) ==
               (job->async ? saver_snapshot_bytes(&rank->layout, rank->view.has) : 0));
    }
    return saver_start(rank->saver, &job->run, &rank->run);
}

static void *rank_thread(void *argument) {
    Rank *rank = argument;
    const Job *job = rank->job;
    status_clear();
    switch (job->what) {
        case JOB_SAVE:
            rank->status = checkpoint_save(job->path, &job->run, &rank->layout, &rank->comm, &rank->view, &rank->run);
            break;
        case JOB_LOAD:
            rank->status = checkpoint_load(job->path, &job->run, &rank->layout, &rank->comm, &rank->view, &rank->run,
                                           rank->notes, sizeof rank->notes);
            break;
        case JOB_HASH:
            rank->status = state_hashes(&rank->layout, &rank->comm, &rank->view, rank->weights, rank->moments);
            break;
        case JOB_START:
            rank->status = start_save(rank, job);
            break;
        case JOB_FINISH:
            rank->status = saver_finish(rank->saver);
            break;
    }
    strcpy(rank->message, status_message());
    return NULL;
}

// Run a job on all ranks. All must agree on how it went; rank 0's message becomes this thread's.
static Status ranks_run(Rank *ranks, int n, const Job *job) {
    pthread_t threads[MAX_RANKS];
    for (int r = 0; r < n; r++) {
        ranks[r].job = job;
        pthread_create(&threads[r], NULL, rank_thread, &ranks[r]);
    }
    for (int r = 0; r < n; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < n; r++)
        assert_int_equal(ranks[r].status, ranks[0].status);
    return ranks[0].status == OK ? OK : fail("%s", ranks[0].message);
}

#endif
