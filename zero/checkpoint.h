// checkpoint: a run's whole state on disk, complete or absent.
//
// OUT/step_00001000/
//     shards-<uuid>/rank_00000.h5   that rank's shards: a contiguous fp32 dataset a unit and kind, /unit_0003/master, …
//     manifest.json                 what the loader trusts: where everything is, hashes, counters (zero/manifest.h)
//     index.h5                      for people and h5py: each unit whole, as virtual datasets (zero/index_file.h)
//
// Written as step_00001000.tmp/, every file synced, then renamed, then the parent synced: a name without .tmp is whole.
// The loader reads rank files with pread through the manifest, never through HDF5's virtual datasets (a missing source
// would silently read as fill values). It reads what a rank's shard needs, however many ranks wrote: any N, stage and
// device.
//
// All errors are a Status; none but main decides what a failed save means for the run.
#ifndef ZERO_CHECKPOINT_H
#define ZERO_CHECKPOINT_H

#include "zero/durable.h"
#include "zero/manifest.h"

// What a checkpoint says of the run that wrote it, and a resumed run is compared with.
typedef struct CheckpointRun {
    const Config *config;
    const char *data;         // fingerprint of the training data (shards_fingerprint)
    const char *environment;  // device model, threads a rank, library versions: what the same bits depend on
    int reduce_group;         // G, ranks whose gradients are added first; bits depend on it, and on N
} CheckpointRun;

// Save to out/step_%08lld. Collective. On failure the previous checkpoint is untouched, the partial directory is
// removed, and no partial directory ever has a final name. A checkpoint of the same step is replaced.
Status checkpoint_save(const char *out, const CheckpointRun *run, const Layout *layout, Comm *comm,
                       const StateView *view, const RunState *state);

// Seconds that the files of one rank's state may take, on a very slow disk (10 MB/s): the others wait for it so much longer
// than for a collective.
double checkpoint_patience(const Layout *layout, const bool has[STATE_KINDS]);

// The newest complete checkpoint of `out`: writes its path, or "" when there is none. Complete by its name; damage is
// for checkpoint_load to find.
Status checkpoint_newest(const char *out, char *path, size_t path_bytes);

// What a user means by a path: a checkpoint, or a run's directory, which stands for its newest one.
Status checkpoint_find(const char *given, char path[PATH_BYTES]);

// Whether two paths lead to one directory.
bool checkpoint_is_same(const char *a, const char *b);

// Whether all ranks see the directory that rank 0 sees. Collective.
Status checkpoint_out_is_shared(const char *out, Comm *comm);

// Whether the checkpoint at `path` lies in `out`.
bool checkpoint_is_in(const char *out, const char *path);

// Load the rank's shards through `view` and the counters into `state`; the caller then publishes the parameters
// (optimizer_state_loaded). Collective. Every byte read is checked against its hash. Fails, naming what differs, for
// another model, and for a changed config or data unless config->resume_changed. `notes` gets a line for each thing
// that differs and was accepted ("" if none): bits may then differ from those of an uninterrupted run.
Status checkpoint_load(const char *path, const CheckpointRun *run, const Layout *layout, Comm *comm,
                       const StateView *view, RunState *state, char *notes, size_t notes_bytes);

// Delete leftover .tmp directories and, with keep > 0, what is older than the newest `keep` complete checkpoints; with
// keep_every > 0, not those of its multiples. One rank calls it, not during a save. What is damaged does not count as
// complete, so the newest complete one always stays.
Status checkpoint_prune(const char *out, int64_t keep, int64_t keep_every);

// Tools, one process, no device. verify checks every byte and prints a line a file. hash prints weights_hash and
// state_hash as a run does at its end (state_hashes), then both for each tensor.
Status checkpoint_verify(const char *path, FILE *file);
Status checkpoint_hash(const char *path, FILE *file);

// The checkpoints of `out` by name, ascending: allocates *steps, which the caller frees. A missing `out` has none.
Status checkpoint_steps(const char *out, int64_t **steps, int *n_steps);
Status checkpoint_path(char path[PATH_BYTES], const char *out, int64_t step);  // out/step_%08lld

#endif
