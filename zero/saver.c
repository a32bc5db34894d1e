#include "zero/saver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "zero/checkpoint_save.h"
#include "zero/durable.h"
#include "zero/h5.h"

typedef enum Phase { IDLE, WRITING, COMMITTING } Phase;  // of the save under way, on every rank alike

enum { POLL_NANOSECONDS = 2000000 };

struct Saver {
    SaverOptions options;
    Device *device;
    const Layout *layout;
    Comm *comm;
    const StateView *live;
    StateView copy;                     // of the snapshot
    float *snapshot;                    // the shards, unit by unit and kind by kind; NULL: saves are streamed
    int64_t *unit_begin;                // (n_units) where a unit's shards begin in it; see shard_room
    // The save under way:
    Phase phase;
    Save *save;
    int64_t step;
    double started;
    // The writer's, while it is busy:
    pthread_t writer;
    bool threaded;                      // there is a thread to join
    atomic_bool busy;
    Status status;                      // how its part went, and its message
    char message[STATUS_MESSAGE_BYTES];
    char warning[STATUS_MESSAGE_BYTES];
};

// ---- snapshot ----

// Each shard begins at a page, from which it can be written past the page cache.
static int64_t shard_room(const Layout *layout, int u) {
    int64_t page = DIRECT_BYTES / sizeof(float);
    return (layout->units[u].shard_len + page - 1) / page * page;
}

static int64_t snapshot_len(const Layout *layout, const bool has[STATE_KINDS]) {
    int64_t len = 0;
    for (int u = 0; u < layout->n_units; u++)
        for (StateKind kind = 0; kind < STATE_KINDS; kind++)
            len += has[kind] ? shard_room(layout, u) : 0;
    return len;
}

size_t saver_snapshot_bytes(const Layout *layout, const bool has[STATE_KINDS]) {
    if (layout->rank >= layout->group)
        return 0;
    return (size_t)(snapshot_len(layout, has) + STATE_PIECE_LEN) * sizeof(float);
}

static float *snapshot_at(const Saver *s, StateKind kind, int u) {
    float *at = s->snapshot + s->unit_begin[u];
    for (StateKind before = 0; before < kind; before++)
        at += s->live->has[before] ? shard_room(s->layout, u) : 0;
    return at;
}

static const float *look_at_copy(void *context, StateKind kind, int u, int64_t begin) {
    return snapshot_at(context, kind, u) + begin;
}

static Status take_snapshot(Saver *s) {
    for (int u = 0; u < s->layout->n_units; u++) {
        int64_t shard_len = s->layout->units[u].shard_len;
        for (StateKind kind = 0; kind < STATE_KINDS; kind++) {
            for (int64_t begin = 0; begin < shard_len && s->live->has[kind]; begin += STATE_PIECE_LEN) {
                int64_t len = shard_len - begin < STATE_PIECE_LEN ? shard_len - begin : STATE_PIECE_LEN;
                TRY(s->live->fetch(s->live->context, kind, u, begin, len, snapshot_at(s, kind, u) + begin));
            }
        }
    }
    return OK;
}

static Status open_snapshot(Saver *s) {
    const Layout *layout = s->layout;
    size_t bytes = saver_snapshot_bytes(layout, s->live->has);
    if (bytes == 0)
        return OK;
    s->unit_begin = calloc((size_t)layout->n_units, sizeof *s->unit_begin);
    if (!s->unit_begin)
        return fail("out of host memory");
    TRY(device_host_alloc(s->device, SNAPSHOT_NAME, bytes, (void **)&s->snapshot));
    memset(s->snapshot, 0, bytes);  // every page exists from now on: want of memory shows here, not in the first save
    int64_t begin = 0;
    for (int u = 0; u < layout->n_units; u++) {
        s->unit_begin[u] = begin;
        for (StateKind kind = 0; kind < STATE_KINDS; kind++)
            begin += s->live->has[kind] ? shard_room(layout, u) : 0;
    }
    s->copy = (StateView){.context = s, .look = look_at_copy, .staging = s->snapshot + begin};
    memcpy(s->copy.has, s->live->has, sizeof s->copy.has);
    return OK;
}

Status saver_open(Device *device, const SaverOptions *options, const Layout *layout, Comm *comm, const StateView *view,
                  Saver **saver_out) {
    *saver_out = NULL;
    Saver *s = calloc(1, sizeof *s);
    if (!s)
        return fail("out of host memory");
    s->options = *options;
    s->device = device;
    s->layout = layout;
    s->comm = comm;
    s->live = view;
    s->step = -1;
    Status status = options->async ? open_snapshot(s) : OK;
    if (status == OK)
        *saver_out = s;
    else
        saver_close(s);
    return status;
}

void saver_close(Saver *s) {
    if (!s)
        return;
    if (s->threaded)
        pthread_join(s->writer, NULL);
    device_host_free(s->device, s->snapshot);
    free(s->unit_begin);
    free(s);
}

// ---- the writer ----

static void keep_message(char message[STATUS_MESSAGE_BYTES]) {
    snprintf(message, STATUS_MESSAGE_BYTES, "%s", status_message());
    status_clear();
}

// Only what is durable makes an older one superfluous. What cannot be deleted is no failure of the save.
static Status commit(Saver *s) {
    TRY(save_commit(s->save));
    if (checkpoint_prune(s->options.out, s->options.keep, s->options.keep_every) != OK)
        keep_message(s->warning);
    return OK;
}

static void *write_part(void *argument) {
    Saver *s = argument;
    status_clear();
    s->status = s->phase == COMMITTING ? commit(s) : save_write(s->save, s->snapshot ? &s->copy : s->live);
    keep_message(s->message);
    atomic_store(&s->busy, false);
    return NULL;
}

// In a thread, or here: where saves are streamed, where HDF5 bears only one thread, or where there is none to be had.
static void begin_part(Saver *s, Phase phase) {
    bool writes = phase == COMMITTING ? s->layout->rank == 0 : s->layout->rank < s->layout->group;
    s->phase = phase;
    s->status = OK;
    s->message[0] = '\0';
    if (writes && phase == WRITING && s->snapshot)
        s->status = take_snapshot(s);
    if (s->status != OK)
        keep_message(s->message);
    if (!writes || s->status != OK)
        return;
    atomic_store(&s->busy, true);
    s->threaded = s->snapshot && h5_thread_safe() && pthread_create(&s->writer, NULL, write_part, s) == 0;
    if (!s->threaded)
        write_part(s);
}

// How the part went, with its message for this thread.
static Status end_part(Saver *s) {
    if (s->threaded)
        pthread_join(s->writer, NULL);
    s->threaded = false;
    return s->status == OK ? OK : fail("%s", s->message);
}

bool saver_busy(const Saver *s) {
    return s && atomic_load(&s->busy);
}

int64_t saver_under_way(const Saver *s) {
    return s && s->phase != IDLE ? s->step : -1;
}

// ---- the main thread's part ----

static void end(Saver *s, Status status) {
    if (status != OK)
        keep_message(s->message);
    SaveReport report = {.step = s->step,
                         .saved = status == OK,
                         .seconds = comm_clock() - s->started,
                         .message = status == OK ? s->warning : s->message};
    s->phase = IDLE;
    s->save = NULL;
    comm_set_patience(s->comm, 0);
    s->options.ended(s->options.context, &report);
}

Status saver_advance(Saver *s) {
    if (!s || s->phase == IDLE)
        return OK;
    Status status = end_part(s);
    if (s->phase == WRITING)
        status = save_collect(s->save, status);
    if (s->phase == WRITING && status == OK)
        begin_part(s, COMMITTING);
    else
        end(s, save_end(s->save, status));
    return OK;
}

Status saver_finish(Saver *s) {
    while (s && s->phase != IDLE) {
        double busy = saver_busy(s);  // asked often, so that no rank waits in one collective for as long as a save takes
        TRY(comm_max(s->comm, "progress of a save", &busy, 1));
        if (busy == 0)
            TRY(saver_advance(s));
        else
            nanosleep(&(struct timespec){.tv_nsec = POLL_NANOSECONDS}, NULL);
    }
    return OK;
}

Status saver_start(Saver *s, const CheckpointRun *run, const RunState *state) {
    if (!s)
        return OK;
    TRY(saver_finish(s));
    s->step = state->step;
    s->started = comm_clock();
    s->warning[0] = '\0';
    if (!s->options.async)  // ranks write at their own speeds, and meet then
        comm_set_patience(s->comm, checkpoint_patience(s->layout, s->live->has));
    Status status = save_begin(s->options.out, run, s->layout, s->comm, s->live->has, state, &s->save);
    if (status != OK) {
        end(s, status);
        return OK;
    }
    begin_part(s, WRITING);
    return s->options.async ? OK : saver_finish(s);
}
