// pread and pwrite in a few threads: where there is no io_uring.
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "zero/nvme_queue.h"

enum { MAX_THREADS = 8 };

typedef struct Threads {
    int fd, depth, n_threads;
    pthread_mutex_t mutex;  // guards everything below
    pthread_cond_t changed;
    NvmeRequest **waiting;  // ring of `depth`; number k is at k % depth
    NvmeRequest **done;
    int64_t n_submitted, n_taken, n_done, n_completed;
    bool stop;
    pthread_t threads[MAX_THREADS];
} Threads;

static void *work(void *argument) {
    Threads *t = argument;
    pthread_mutex_lock(&t->mutex);
    for (;;) {
        while (t->n_taken == t->n_submitted && !t->stop)
            pthread_cond_wait(&t->changed, &t->mutex);
        if (t->n_taken == t->n_submitted)
            break;
        NvmeRequest *r = t->waiting[t->n_taken++ % t->depth];
        pthread_mutex_unlock(&t->mutex);
        ssize_t moved;
        do
            moved =
                r->write ? pwrite(t->fd, r->memory, r->bytes, r->offset) : pread(t->fd, r->memory, r->bytes, r->offset);
        while (moved < 0 && errno == EINTR);
        r->result = moved < 0 ? -errno : moved;
        pthread_mutex_lock(&t->mutex);
        t->done[t->n_done++ % t->depth] = r;
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->mutex);
    return NULL;
}

static void threads_close(void *impl) {
    Threads *t = impl;
    pthread_mutex_lock(&t->mutex);
    t->stop = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->mutex);
    for (int i = 0; i < t->n_threads; i++)
        pthread_join(t->threads[i], NULL);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->mutex);
    free(t->waiting);
    free(t->done);
    free(t);
}

static int threads_open(int fd, int depth, void **impl) {
    Threads *t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    t->fd = fd;
    t->depth = depth;
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->changed, NULL);
    t->waiting = calloc((size_t)depth, sizeof *t->waiting);
    t->done = calloc((size_t)depth, sizeof *t->done);
    int error = t->waiting && t->done ? 0 : ENOMEM;
    while (!error && t->n_threads < depth && t->n_threads < MAX_THREADS) {
        error = pthread_create(&t->threads[t->n_threads], NULL, work, t);
        t->n_threads += !error;
    }
    if (error)
        threads_close(t);
    else
        *impl = t;
    return -error;
}

static int threads_submit(void *impl, NvmeRequest *r) {
    Threads *t = impl;
    pthread_mutex_lock(&t->mutex);
    t->waiting[t->n_submitted++ % t->depth] = r;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->mutex);
    return 0;
}

static int threads_complete(void *impl) {
    Threads *t = impl;
    pthread_mutex_lock(&t->mutex);
    while (t->n_completed == t->n_done)
        pthread_cond_wait(&t->changed, &t->mutex);
    t->done[t->n_completed++ % t->depth]->in_flight = false;
    pthread_mutex_unlock(&t->mutex);
    return 0;
}

const NvmeEngine nvme_threads = {threads_open, threads_close, threads_submit, threads_complete};
