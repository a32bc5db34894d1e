// shard_file: one shard on disk. Checked once when it is opened; after that it is "attached" (a descriptor, or HDF5
// handles) only while it is in use, so that thousands of shards need few descriptors.
//
// A contiguous dataset is a plain array inside of the file: it is read with pread at its offset, without the HDF5
// library and its global lock. Chunked, compressed and compact ones are read through HDF5, in pieces of at most 8 MiB,
// so that a checkpoint that is being written by another thread gets its turn.
#ifndef DATA_SHARD_FILE_H
#define DATA_SHARD_FILE_H

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "llm/status.h"

typedef struct ShardFile {
    char *path;            // owned
    int64_t n_tokens;      // length of /tokens
    int token_bytes;       // 2 or 4, little endian
    int64_t offset;        // byte of token 0 in the file; -1: read through HDF5
    int64_t chunk_tokens;  // what HDF5 decodes at a time; 0: not chunked
    int64_t vocab_size;    // root attribute; 0: none
    struct stat seen;      // the file that was checked
    int fd;                // attached: >= 0, when offset >= 0
    hid_t file, dataset;   // attached: >= 0, when offset < 0
} ShardFile;

// Validate a file and fill in `shard`, not attached. Fails for: not HDF5, truncated, no /tokens, wrong rank or type,
// empty.
Status shard_file_open(const char *path, ShardFile *shard);
void shard_file_close(ShardFile *shard);

Status shard_file_attach(ShardFile *shard);
void shard_file_detach(ShardFile *shard);
static inline bool shard_file_attached(const ShardFile *shard) {
    return shard->fd >= 0 || shard->dataset >= 0;
}

// Tokens [first, first+n) as they are on disk (n·token_bytes, little endian) into raw. The shard must be attached.
Status shard_file_read(const ShardFile *shard, int64_t first, int64_t n, void *raw);

#endif
