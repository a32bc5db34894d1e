// io_uring (Axboe 2019) through liburing: one submission a request, completions in any order.
#include "zero/nvme_queue.h"

#ifdef HAVE_LIBURING

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>

typedef struct Uring {
    struct io_uring ring;
    int fd;
} Uring;

static int uring_open(int fd, int depth, void **impl) {
    Uring *u = malloc(sizeof *u);
    if (!u)
        return -ENOMEM;
    u->fd = fd;
    int error = io_uring_queue_init((unsigned)depth, &u->ring, 0);
    if (error)
        free(u);
    else
        *impl = u;
    return error;
}

static void uring_close(void *impl) {
    Uring *u = impl;
    io_uring_queue_exit(&u->ring);
    free(u);
}

static int uring_submit(void *impl, NvmeRequest *r) {
    Uring *u = impl;
    struct io_uring_sqe *entry = io_uring_get_sqe(&u->ring);
    if (!entry)
        return -EBUSY;
    if (r->write)
        io_uring_prep_write(entry, u->fd, r->memory, (unsigned)r->bytes, (uint64_t)r->offset);
    else
        io_uring_prep_read(entry, u->fd, r->memory, (unsigned)r->bytes, (uint64_t)r->offset);
    io_uring_sqe_set_data(entry, r);
    int submitted = io_uring_submit(&u->ring);
    return submitted < 0 ? submitted : submitted == 1 ? 0 : -EBUSY;
}

static int uring_complete(void *impl) {
    Uring *u = impl;
    struct io_uring_cqe *entry;
    int error;
    do
        error = io_uring_wait_cqe(&u->ring, &entry);
    while (error == -EINTR);
    if (error)
        return error;
    NvmeRequest *r = io_uring_cqe_get_data(entry);
    r->result = entry->res;
    r->in_flight = false;
    io_uring_cqe_seen(&u->ring, entry);
    return 0;
}

const NvmeEngine nvme_uring = {uring_open, uring_close, uring_submit, uring_complete};

#endif
