#include "zero/nvme_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "llm/hooks.h"
#include "zero/durable.h"
#include "zero/nvme_queue.h"

struct NvmeFile {
    int fd;
    const char *what;
    int rank;
    bool direct;
    char directory[PATH_BYTES];
};

struct NvmeQueue {
    const NvmeFile *file;
    const NvmeEngine *engine;
    void *impl;
    int depth, in_flight;
};

// ---- the file ----

// A file without a name. The one that has a name for a moment gets it for itself alone (O_EXCL).
static int open_nameless(const NvmeFile *f) {
    int fd = open(f->directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
        return fd;
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/.zero_rank_%d_%ld_XXXXXX", f->directory, f->rank, (long)getpid());
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    return fd;
}

static Status too_full(const NvmeFile *f, int64_t bytes) {
    struct statvfs info;
    double available = statvfs(f->directory, &info) == 0 ? (double)info.f_bavail * (double)info.f_frsize : 0;
    return fail(
        "--nvme-path %s: rank %d needs %lld bytes for its %s, and %.0f are free there: free some, or choose another "
        "--nvme-path, --zero stage or number of ranks",
        f->directory, f->rank, (long long)bytes, f->what, available);
}

static Status open_file(NvmeFile *f, int64_t bytes) {
    struct statvfs info;
    f->fd = open_nameless(f);
    if (f->fd < 0)
        return fail("--nvme-path %s: rank %d cannot make a file for its %s there: %s", f->directory, f->rank, f->what,
                    strerror(errno));
    if (fstatvfs(f->fd, &info) == 0 && (double)info.f_bavail * (double)info.f_frsize < (double)bytes)
        return too_full(f, bytes);
    int error = bytes ? posix_fallocate(f->fd, 0, bytes) : 0;
    if (error == ENOSPC || error == EFBIG || error == EDQUOT)
        return too_full(f, bytes);
    if (error)
        return fail("--nvme-path %s: rank %d cannot allocate %lld bytes for its %s: %s", f->directory, f->rank,
                    (long long)bytes, f->what, strerror(error));
    int flags = fcntl(f->fd, F_GETFL);
    f->direct = flags >= 0 && fcntl(f->fd, F_SETFL, flags | O_DIRECT) == 0;
    return OK;
}

Status nvme_open(const char *directory, const char *what, int rank, int64_t bytes, NvmeFile **file) {
    *file = NULL;
    NvmeFile *f = calloc(1, sizeof *f);
    if (!f)
        return fail("out of host memory");
    *f = (NvmeFile){.fd = -1, .what = what, .rank = rank};
    Status status = OK;
    if (snprintf(f->directory, sizeof f->directory, "%s", directory) >= (int)sizeof f->directory)
        status = fail("--nvme-path %s: the path is too long", directory);
    if (status == OK)
        status = open_file(f, bytes);
    if (status == OK)
        *file = f;
    else
        nvme_close(f);
    return status;
}

void nvme_close(NvmeFile *f) {
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    free(f);
}

// ---- requests ----

Status nvme_queue_open(NvmeFile *file, int depth, NvmeQueue **queue) {
    static const NvmeEngine *const engines[] = {
#ifdef HAVE_LIBURING
        &nvme_uring,  // a kernel, or a container's filter, may not have it
#endif
        &nvme_threads};
    *queue = NULL;
    NvmeQueue *q = calloc(1, sizeof *q);
    if (!q)
        return fail("out of host memory");
    *q = (NvmeQueue){.file = file, .depth = depth};
    int error = 0;
    for (size_t i = hook_io_threads() ? sizeof engines / sizeof *engines - 1 : 0;
         i < sizeof engines / sizeof *engines && !q->engine; i++) {
        error = engines[i]->open(file->fd, depth, &q->impl);
        q->engine = error ? NULL : engines[i];
    }
    if (!q->engine) {
        free(q);
        return fail("rank %d cannot start reading and writing its %s: %s", file->rank, file->what, strerror(-error));
    }
    *queue = q;
    return OK;
}

static Status complete_one(NvmeQueue *q) {
    int error = q->engine->complete(q->impl);
    if (error)
        return fail("rank %d: waiting for its %s in %s failed: %s", q->file->rank, q->file->what, q->file->directory,
                    strerror(-error));
    q->in_flight--;
    return OK;
}

void nvme_queue_close(NvmeQueue *q) {
    if (!q)
        return;
    while (q->in_flight > 0 && q->engine->complete(q->impl) == 0)
        q->in_flight--;
    q->engine->close(q->impl);
    free(q);
}

const char *nvme_describe(const NvmeQueue *q) {
    static const char *const ways[2][2] = {{"threads, through the page cache", "threads, past the page cache (O_DIRECT)"},
                                           {"io_uring, through the page cache", "io_uring, past the page cache (O_DIRECT)"}};
    return ways[q->engine != &nvme_threads][q->file->direct];
}

Status nvme_start(NvmeQueue *q, NvmeRequest *r) {
    if (q->in_flight == q->depth)
        TRY(complete_one(q));
    r->in_flight = true;
    int error = q->engine->submit(q->impl, r);
    if (error) {
        r->in_flight = false;
        return fail("rank %d cannot start to %s its %s in %s: %s", q->file->rank, r->write ? "write" : "read",
                    q->file->what, q->file->directory, strerror(-error));
    }
    r->started = true;
    q->in_flight++;
    return OK;
}

Status nvme_wait(NvmeQueue *q, NvmeRequest *r) {
    if (!r->started)
        return OK;
    while (r->in_flight)
        TRY(complete_one(q));
    const NvmeFile *f = q->file;
    const int64_t bytes = (int64_t)r->bytes, moved = hook_io(f->rank, r->write, r->result);
    r->started = false;
    if (moved == bytes)
        return OK;
    char why[160];
    if (moved < 0)
        snprintf(why, sizeof why, "%s", strerror((int)-moved));
    else
        snprintf(why, sizeof why, "only %lld bytes were %s", (long long)moved, r->write ? "written" : "read");
    return fail(
        "rank %d: %s %lld bytes at offset %lld of the file of %s in %s failed: %s. The run cannot go on without them; "
        "the last checkpoint is intact: check the disk, then resume from it",
        f->rank, r->write ? "writing" : "reading", (long long)bytes, (long long)r->offset, f->what, f->directory, why);
}
