// checkpoint: a run's whole state on disk, complete or absent.
//
// OUT/step_00001000/
//     shards-<uuid>/rank_00000.h5   that rank's shards: one contiguous fp32 dataset a unit and kind ("/unit_0003/master", …)
//     manifest.json                 what the loader trusts: format version, config, step, sample index, scaler, N, G, stage, dtype; for every
//                                   dataset of every rank its byte offset, length and a 64-bit hash per 4 MiB; file sizes; a hash of itself
//     index.h5                      for people and h5py: each unit whole, as a virtual dataset, tensors described by attributes
//
// Written as step_00001000.tmp/, every file synced, then renamed, then the parent synced: a name without .tmp is whole.
// The loader reads rank files with pread through the manifest, never through HDF5's virtual datasets (a missing source
// would silently read as fill values).
#ifndef ZERO_CHECKPOINT_H
#define ZERO_CHECKPOINT_H

#include "llm/config.h"
#include "llm/loss_scale.h"
#include "zero/comm.h"
#include "zero/layout.h"
#include "zero/optimizer.h"

// Everything besides weights and moments that makes the next step the same.
typedef struct RunState {
    int64_t step;          // steps finished
    int64_t updates;       // optimizer updates applied (Adam's t)
    int64_t samples;       // samples of the order consumed: step · global batch
    int64_t skipped;       // steps skipped in all
    int64_t skipped_in_a_row;
    int64_t log_bytes;     // length of log.jsonl when the checkpoint was written: a resumed log is cut to it
    LossScale scale;
} RunState;

// Save to out/step_%08lld. Collective. On failure the previous checkpoint is untouched and no partial directory keeps a
// final name. `data` identifies the training data (Σ of shard lengths, T, …: data_fingerprint) and is compared on resume.
Status checkpoint_save(const char *out, const Config *config, const char *data, const Layout *layout, Comm *comm,
                       Stream *stream, Optim *optimizer, const RunState *state);

// The newest complete checkpoint of `out`: writes its path, or "" when there is none.
Status checkpoint_newest(const char *out, char *path, size_t path_bytes);

// Load into the optimizer state (then publish parameters) and `state`. Fails, naming what differs, for another model, and for a changed
// config unless config->resume_changed. Every byte read is checked against its hash.
Status checkpoint_load(const char *path, const Config *config, const char *data, const Layout *layout, Comm *comm,
                       Stream *stream, Optim *optimizer, RunState *state);

// Delete old checkpoints: all but the newest `keep` complete ones (0: keep all), and leftover .tmp directories.
Status checkpoint_prune(const char *out, int64_t keep);

// Tools, one process, no device: check every byte; print weights and state hash, then one line a tensor.
Status checkpoint_verify(const char *path, FILE *file);
Status checkpoint_hash(const char *path, FILE *file);

#endif
