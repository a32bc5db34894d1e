// durable: files that are complete on the disk, or absent.
//
// What a crash may leave: any prefix of what was not synced, in any order. So: write, sync the file, sync its
// directory, and only then rename the directory to the name that readers look for, and sync the parent (Pillai et al.
// 2014, "All File Systems Are Not Created Equal"). All errors name the path and the system's reason. Short reads and
// writes are resumed; a file that ends early is an error.
#ifndef ZERO_DURABLE_H
#define ZERO_DURABLE_H

#include <stddef.h>
#include <stdint.h>

#include "llm/status.h"

// `path` = directory/name; fails when it does not fit.
enum { PATH_BYTES = 4096 };
Status durable_join(char path[PATH_BYTES], const char *directory, const char *name);

// `bytes` at `offset` of an open file; path is for messages.
Status durable_write_at(int fd, const char *path, const void *data, size_t bytes, int64_t offset);
Status durable_read_at(int fd, const char *path, void *data, size_t bytes, int64_t offset);

// The same past the page cache, as far as memory, offset and file system allow: it spares the processor a copy of all
// bytes, and other programs their share of the cache. `direct` is a second descriptor of the file (durable_open_direct).
enum { DIRECT_BYTES = 4096 };                // alignment, in memory and on the disk
int durable_open_direct(const char *path);  // -1 where there is no such thing, which durable_write_direct takes
Status durable_write_direct(int direct, int fd, const char *path, const void *data, size_t bytes, int64_t offset);

// Open a regular file for reading and give its size.
Status durable_open(const char *path, int *fd, int64_t *bytes);
// A whole file into memory, with a 0 after it; the caller frees. Fails above max_bytes.
Status durable_read_file(const char *path, int64_t max_bytes, char **text, size_t *bytes);
// Make a new file with this content and sync it.
Status durable_write_file(const char *path, const void *data, size_t bytes);

Status durable_make_dir(const char *path);
// The directories above it, as far as they are missing.
Status durable_make_parents(const char *path);
// Sync what is already written, by whomever: a file's content, or a directory's list of names.
Status durable_sync(const char *path);
// Give the directory `from` the name `to`, in the same parent, and sync the parent. What had that name before is gone
// afterwards; there is no moment without a complete `to` (where the file system can exchange names: all local ones of
// Linux).
Status durable_publish(const char *from, const char *to);
// Delete a directory and everything in it; symbolic links are not followed. An absent directory is fine.
Status durable_remove_tree(const char *path);

#endif
