// shards: tokenized text in HDF5 files, the order in which its samples are used, and a thread that reads ahead.
//
// A shard is an HDF5 file with a 1-D dataset /tokens of uint16 or uint32 (contiguous or chunked, compressed or not); root
// attributes vocab_size, tokenizer, eot_token and a vocabulary (data/vocab.h) are optional. Window j of a shard is tokens
// [jT, jT+T] (T inputs and T targets), ⌊(len-1)/T⌋ a shard; shards are sorted by name; no window crosses a shard.
//
// Sample i of a run is a pure function of (seed, T, the shards' lengths, i): epoch = i / n, a keyed permutation of the n
// windows for that epoch, then shard and offset. There is no state but i, so the order does not depend on the number
// of ranks, a resume is exact, and nothing is read twice in an epoch.
//
// Contiguous shards are read with pread at the dataset's offset in the file; others through HDF5 by one thread.
// Every token is checked against the model's vocabulary when it is read; an error names file, index and value.
#ifndef DATA_SHARDS_H
#define DATA_SHARDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "llm/status.h"

typedef struct Shards Shards;

// Open a file, a directory (its *.h5) or a glob pattern, and validate every shard. vocab_size: tokens must be below it
// (0: not known yet, see shards_set_vocab). Fails clearly for: nothing matches, not HDF5, no /tokens, wrong rank or type, empty, truncated.
Status shards_open(const char *pattern, int seq_len, Shards **shards);
void shards_close(Shards *shards);  // NULL is fine

int64_t shards_n_tokens(const Shards *shards);
int64_t shards_n_windows(const Shards *shards);   // n; 0 if every shard is shorter than T+1 (an error for training)
int shards_n_files(const Shards *shards);
int shards_seq_len(const Shards *shards);         // T
int64_t shards_vocab_size(const Shards *shards);  // the largest vocab_size attribute; 0 if no shard has one
const char *shards_path(const Shards *shards, int i);
void shards_set_vocab(Shards *shards, int64_t vocab_size);  // model's vocabulary, for the check of tokens
// A short text that is equal for equal data (file count, lengths, T): stored in checkpoints, compared on resume.
void shards_fingerprint(const Shards *shards, char *text, size_t text_bytes);

// Read window w of the concatenated windows (0 … n-1) into tokens (T+1 int32).
Status shards_read_window(Shards *shards, int64_t w, int32_t *tokens);

// The window of sample i: the keyed permutation. Pure.
int64_t sample_window(uint64_t seed, int64_t n_windows, int64_t i);

// A loader: a thread that reads batches ahead. Batch k of a run has `batch` samples; the caller says which by a function of
// k, so that data/ need not know of ranks. Sequential (validation): window k·stride + … in order, no permutation.
typedef struct Loader Loader;

typedef struct LoaderOptions {
    Shards *shards;
    uint64_t seed;
    bool shuffle;           // false: windows in order (validation)
    int batch;              // B sequences of a micro-batch
    int64_t first_sample;   // sample index of the first batch's first row
    int64_t stride;         // samples between the starts of consecutive batches of this rank
    int64_t n_samples;      // samples from this index on are padding (validation; at most n windows are read in order);
                            // 0: endless (training)
    int depth;              // batches to read ahead (2)
} LoaderOptions;

Status loader_open(const LoaderOptions *options, Loader **loader);
void loader_close(Loader *loader);  // NULL is fine

// The next batch: *tokens, *targets (B·T int32) stay valid until the call after next. Rows beyond n_samples have targets -1
// and tokens 0; n_valid is the number of valid targets (0: the end). wait_seconds gets the time this call waited.
Status loader_next(Loader *loader, const int32_t **tokens, const int32_t **targets, int64_t *n_valid, double *wait_seconds);

#endif
