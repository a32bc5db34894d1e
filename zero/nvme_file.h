// nvme_file: a file on a fast local disk that holds state which does not fit in memory, and its asynchronous requests.
//
// The file has no name (O_TMPFILE; where a file system lacks that, its name is removed as soon as it is open). So no other
// run's or older bytes can be read as state, its space is returned however the process ends, and nothing is left to clean
// up. Its space is allocated before anything else happens: a disk that is too full ends the run before training. Caches
// are bypassed (O_DIRECT) where the file system can do that.
//
// Requests go through a queue, of which each thread that makes requests has its own: io_uring, or a few threads with pread
// and pwrite where the library or the kernel does not have it. An error, or fewer bytes than asked, fails with the file, the
// offset and the rank.
#ifndef ZERO_NVME_FILE_H
#define ZERO_NVME_FILE_H

#include <stdint.h>

#include "llm/status.h"

enum { NVME_ALIGN = 4096 };  // bytes: memory, offsets and lengths of requests are multiples

typedef struct NvmeFile NvmeFile;
typedef struct NvmeQueue NvmeQueue;

typedef struct NvmeRequest {
    void *memory;
    int64_t offset;  // in the file
    size_t bytes;
    bool write;
    bool started;  // and not waited for. This and below belong to the queue
    bool in_flight;
    int64_t result;  // bytes moved, or -errno
} NvmeRequest;

// `what` names the file in messages and must outlive it (a literal).
Status nvme_open(const char *directory, const char *what, int rank, int64_t bytes, NvmeFile **file);
void nvme_close(NvmeFile *file);  // NULL is fine; its queues are closed before

// At most `depth` requests in flight.
Status nvme_queue_open(NvmeFile *file, int depth, NvmeQueue **queue);
void nvme_queue_close(NvmeQueue *queue);              // waits for what is in flight; NULL is fine
const char *nvme_describe(const NvmeQueue *queue);  // how its requests are made, for people

// Start a request, which stays where it is until nvme_wait returns. Waiting for one that was not started is fine.
Status nvme_start(NvmeQueue *queue, NvmeRequest *request);
Status nvme_wait(NvmeQueue *queue, NvmeRequest *request);

#endif
