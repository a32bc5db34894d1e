// nvme_queue: the two ways in which zero/nvme_file.c moves bytes.
#ifndef ZERO_NVME_QUEUE_H
#define ZERO_NVME_QUEUE_H

#include "zero/nvme_file.h"

typedef struct NvmeEngine {
    // Allocates what it needs for a file descriptor and a depth; returns -errno, and then the next engine is tried.
    int (*open)(int fd, int depth, void **impl);
    void (*close)(void *impl);                        // nothing is in flight
    int (*submit)(void *impl, NvmeRequest *request);  // returns -errno
    // Wait until some request is done, set its result and clear in_flight. Returns -errno.
    int (*complete)(void *impl);
} NvmeEngine;

#ifdef HAVE_LIBURING
extern const NvmeEngine nvme_uring;
#endif
extern const NvmeEngine nvme_threads;

#endif
