// manifest: what a checkpoint holds, in one JSON file that the loader trusts once it has checked it.
//
// manifest.json says where every element of the state is: for each rank file its size and hash, the byte offset and
// length of each dataset, and a 64-bit hash (XXH64, 16 hexadecimal digits) of each 4 MiB of it. Its last member is a
// hash of all text before that hash, so a flipped byte anywhere is found. A reader still treats every field as hostile:
// counts are bounded before memory is allocated, lengths must add up, and no name is used as a path.
//
//   { "format": "zero.c checkpoint", "version": 2, "uuid": …,
//     "run":    step, updates, samples, skips, length of the log, loss scaler, last losses and norms
//     "config": the run's options, "data": fingerprint of the shards, "environment": device, threads, libraries,
//     "ranks", "shard_group", "reduce_group", "zero_stage", "dtype", "tied", "kinds": ["master", "m", "v"],
//     "units":  [{"len", "tensors": [{"name", "shape", "offset"}]}],
//     "datasets": [{"unit", "kind", "offset"}],              the same in every rank file, ascending offset
//     "files":  [{"name", "bytes", "hash", "pieces": [[hash, …], …]}],      pieces: one list a dataset
//     "index":  {"name", "bytes", "hash"},                                   absent above 512 rank files
//     "hash":   … }
//
// Integers stay below 2^53, so that every JSON reader has them exactly; other doubles are printed with 17 digits.
#ifndef ZERO_MANIFEST_H
#define ZERO_MANIFEST_H

#include "llm/config.h"
#include "llm/loss_scale.h"
#include "zero/spikes.h"
#include "zero/state.h"

enum { MANIFEST_VERSION = 2, UUID_BYTES = 33, FILE_NAME_BYTES = 80 };

// Everything besides weights and moments that makes the next step the same.
typedef struct RunState {
    int64_t step;     // steps finished
    int64_t updates;  // optimizer updates applied (Adam's t)
    int64_t samples;  // samples of the order consumed: step · global batch
    int64_t skipped;  // steps skipped in all, not finite or spikes
    int64_t skipped_in_a_row;  // not finite
    int64_t log_bytes;  // length of log.jsonl when the checkpoint was written: a resumed log is cut to it
    LossScale scale;
    SpikeWindow losses, norms;
} RunState;

// One dataset of every rank file: /unit_0003/master, the rank's shard_len fp32 elements.
typedef struct StateDataset {
    int unit;
    StateKind kind;
    int64_t len;          // elements
    int64_t offset;       // bytes from the start of the file
    int64_t first_piece;  // index of its first hash among the file's hashes
    int64_t n_pieces;
} StateDataset;

typedef struct RankFile {
    int64_t bytes;
    uint64_t hash;     // of the whole file, see rank_file.h
    uint64_t *pieces;  // (n_pieces) of all datasets, one after the other
} RankFile;

typedef struct Manifest {
    char uuid[UUID_BYTES];  // 32 hexadecimal digits, new for every save
    Layout layout;          // how the state was cut: N ranks, S rank files
    int reduce_group;       // G, ranks whose gradients are added first: it decides the bits of a sum
    int zero_stage;
    Dtype dtype;
    RunState run;
    struct cJSON *config;
    char *data, *environment;
    int n_datasets;
    StateDataset *datasets;
    int64_t n_pieces;     // of one rank file
    RankFile *files;      // (layout.group)
    int64_t index_bytes;  // 0: there is no index.h5
    uint64_t index_hash;
} Manifest;

// The tables for a layout: datasets without offsets, in order of unit and kind, and room for every file's hashes.
Status manifest_tables(Manifest *manifest, const bool has[STATE_KINDS]);
void manifest_number_pieces(Manifest *manifest);  // after the datasets were put in order
void manifest_free(Manifest *manifest);           // a zeroed one is fine

// directory/manifest.json: make and sync it; read and check it.
Status manifest_write(const Manifest *manifest, const char *directory);
Status manifest_read(Manifest *manifest, const char *directory);

// "shards-<uuid>/rank_00003.h5", and "/unit_0003/master".
void manifest_file_name(const Manifest *manifest, int file, char name[FILE_NAME_BYTES]);
void state_dataset_name(int unit, StateKind kind, char name[FILE_NAME_BYTES]);

// The last line of manifest.json, and how the hash in it is formed: shared by writer and reader.
enum { MANIFEST_SEAL_BYTES = 16 + 4 };  // hash, quote, newline, brace, newline
void manifest_seal(const char *text, size_t bytes, char seal[MANIFEST_SEAL_BYTES + 1]);

#endif
