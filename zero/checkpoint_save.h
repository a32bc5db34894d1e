// checkpoint_save: one save in four parts. Two are collective and short; the two that write may be the work of any
// thread, so that training can go on meanwhile (zero/saver.h).
//
//     save_begin    all ranks, together     the directory without a final name, and what will be written
//     save_write    each rank, any thread   its rank file, written and synced
//     save_collect  all ranks, together     sizes and hashes of all rank files, to rank 0
//     save_commit   rank 0, any thread      index, manifest, and the final name: now it is a checkpoint
//     save_end      all ranks, together     how it went; what has failed is deleted
//
// Parts come in this order, and a part begins when the one before is done on every rank; save_end may come after any.
#ifndef ZERO_CHECKPOINT_SAVE_H
#define ZERO_CHECKPOINT_SAVE_H

#include "zero/checkpoint.h"

typedef struct Save Save;

// What the arguments point to must live until save_end, but what `state` and run->config hold is copied. A failure
// leaves nothing behind.
Status save_begin(const char *out, const CheckpointRun *run, const Layout *layout, Comm *comm,
                  const bool has[STATE_KINDS], const RunState *state, Save **save);
Status save_write(Save *save, const StateView *view);
// `written`: how this rank's save_write went, with the calling thread's message.
Status save_collect(Save *save, Status written);
Status save_commit(Save *save);
// `status`: how the save has gone on this rank so far. Returns how it went on all; frees.
Status save_end(Save *save, Status status);

#endif
