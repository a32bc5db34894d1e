// saver: when a run saves, who does the writing, and what may be deleted afterwards.
//
// An asynchronous save delays the step by a copy of the state into host memory (the snapshot, made at start, so that no
// save can fail for want of memory); a writer thread does the rest. A streamed save goes piece by piece through one
// fixed buffer, while the step waits. Both make the same checkpoint (zero/checkpoint_save.h).
//
// The ranks' writers end at different times, and only the main thread may talk to other ranks. So each rank asks at the
// boundaries that all ranks pass together (every micro-batch) whether its own writer is busy, the ranks combine the
// answers, and once none is busy all of them call saver_advance. One save is under way at a time.
//
// A save that fails is no failure of the run: the functions below return OK, and the report says what happened. The
// checkpoint before it stays the newest.
#ifndef ZERO_SAVER_H
#define ZERO_SAVER_H

#include "llm/device.h"
#include "zero/checkpoint.h"

typedef struct Saver Saver;

// A save has ended.
typedef struct SaveReport {
    int64_t step;
    bool saved;
    double seconds;       // from its start to its end
    const char *message;  // why it failed, or what could not be deleted afterwards; "" if all is well
} SaveReport;

typedef struct SaverOptions {
    const char *out;
    bool async;                // copy, then write while training goes on
    int64_t keep, keep_every;  // checkpoint_prune's
    void (*ended)(void *context, const SaveReport *report);  // called on every rank, by the functions below
    void *context;
} SaverOptions;

// Host memory that asynchronous saves take on a rank: its shards of the kinds of state, and a buffer. 0 for ranks beyond
// the first shard group, which write nothing. What a device counts under this name (device_host_bytes_of) is the same.
#define SNAPSHOT_NAME "snapshot of a save"
size_t saver_snapshot_bytes(const Layout *layout, const bool has[STATE_KINDS]);

// `view` is the live state.
Status saver_open(Device *device, const SaverOptions *options, const Layout *layout, Comm *comm, const StateView *view,
                  Saver **saver);
void saver_close(Saver *saver);  // waits for this rank's writer. NULL is fine, here and below: nothing is ever saved

// Save `state`, after the save that is under way, if there is one. Streamed: it has ended when this returns. Collective.
Status saver_start(Saver *saver, const CheckpointRun *run, const RunState *state);
int64_t saver_under_way(const Saver *saver);  // the step that is being saved; -1: none
bool saver_busy(const Saver *saver);          // this rank's writer is at work
// Go on with the save under way: no rank is busy. Collective, and short.
Status saver_advance(Saver *saver);
// Wait until the save under way has ended. Collective.
Status saver_finish(Saver *saver);

#endif
