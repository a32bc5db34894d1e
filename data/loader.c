// A thread that reads batches ahead into a ring of buffers. See shards.h.
//
// The ring has depth + 2 batches: `depth` read ahead, and the two that the caller may still be using: the one it got
// last and, until its next call, the one before. The reader thread is the only one that touches the shards.
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "data/shards.h"

typedef struct Batch {
    int32_t *tokens, *targets;  // (B,T) each
    int64_t n_valid;            // targets that are not -1
} Batch;

struct Loader {
    LoaderOptions options;
    int seq_len;        // T
    int64_t n_windows;  // n
    int64_t end;        // samples from here on are padding
    int n_batches;      // of the ring
    Batch *ring;        // batch k is ring[k % n_batches]
    int32_t *buffers;   // the ring's memory
    int32_t *window;    // (T+1)
    pthread_t thread;
    pthread_mutex_t lock;  // over what follows
    pthread_cond_t changed;
    int64_t n_read;                      // batches that the thread has completed
    int64_t n_returned;                  // batches that loader_next has returned
    bool stop;                           // the thread should end
    bool failed;                         // the thread has ended with an error
    char message[STATUS_MESSAGE_BYTES];  // its message
};

static bool stopped(Loader *loader) {
    pthread_mutex_lock(&loader->lock);
    bool stop = loader->stop;
    pthread_mutex_unlock(&loader->lock);
    return stop;
}

// Row r of batch k. Rows beyond the end are padding.
static Status read_row(Loader *loader, int64_t k, int r, Batch *batch) {
    size_t T = (size_t)loader->seq_len;
    int32_t *tokens = batch->tokens + (size_t)r * T, *targets = batch->targets + (size_t)r * T;
    int64_t sample = loader->options.first_sample + k * loader->options.stride + r;
    if (sample >= loader->end) {
        memset(tokens, 0, T * sizeof *tokens);
        memset(targets, -1, T * sizeof *targets);
        return OK;
    }
    int64_t w = loader->options.shuffle ? sample_window(loader->options.seed, loader->n_windows, sample)
                                        : sample % loader->n_windows;
    TRY(shards_read_window(loader->options.shards, w, loader->window));
    memcpy(tokens, loader->window, T * sizeof *tokens);
    memcpy(targets, loader->window + 1, T * sizeof *targets);
    batch->n_valid += loader->seq_len;
    return OK;
}

static Status read_batch(Loader *loader, int64_t k) {
    Batch *batch = &loader->ring[k % loader->n_batches];
    batch->n_valid = 0;
    for (int r = 0; r < loader->options.batch && !stopped(loader); r++)
        TRY(read_row(loader, k, r, batch));
    return OK;
}

static void *read_ahead(void *argument) {
    Loader *loader = argument;
    for (int64_t k = 0;; k++) {
        pthread_mutex_lock(&loader->lock);
        while (!loader->stop && k >= loader->n_returned + loader->options.depth)
            pthread_cond_wait(&loader->changed, &loader->lock);
        bool stop = loader->stop;
        pthread_mutex_unlock(&loader->lock);
        if (stop)
            return NULL;

        Status status = read_batch(loader, k);

        pthread_mutex_lock(&loader->lock);
        if (status == OK) {
            loader->n_read = k + 1;
        } else {
            loader->failed = true;
            memcpy(loader->message, status_message(), sizeof loader->message);
        }
        pthread_cond_signal(&loader->changed);
        pthread_mutex_unlock(&loader->lock);
        if (status != OK)
            return NULL;
    }
}

// Signals (stop, save) belong to the main thread: the reader starts with all of them blocked.
static Status start_thread(Loader *loader) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&loader->thread, NULL, read_ahead, loader);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0 ? OK : fail("cannot start the thread that reads shards: %s", strerror(error));
}

static void free_loader(Loader *loader) {
    pthread_cond_destroy(&loader->changed);
    pthread_mutex_destroy(&loader->lock);
    free(loader->window);
    free(loader->buffers);
    free(loader->ring);
    free(loader);
}

Status loader_open(const LoaderOptions *options, Loader **out) {
    *out = NULL;
    Shards *shards = options->shards;
    int64_t n_windows = shards_n_windows(shards);
    int T = shards_seq_len(shards);
    if (n_windows == 0)
        return fail(
            "no sample can be read from %s%s: a sample of %d tokens needs T+1 = %d tokens in one shard, and every "
            "shard is shorter; give more text or a smaller --seq-len",
            shards_path(shards, 0), shards_n_files(shards) > 1 ? " and the other shards" : "", T, T + 1);
    if (options->batch < 1 || options->depth < 1 || options->first_sample < 0 || options->stride < 0)
        return fail(
            "cannot read batches of %d samples from sample %lld on, %lld apart, %d ahead: batch and depth must be at "
            "least 1",
            options->batch, (long long)options->first_sample, (long long)options->stride, options->depth);

    Loader *loader = calloc(1, sizeof *loader);
    if (!loader)
        return fail("out of memory for the data loader");
    pthread_mutex_init(&loader->lock, NULL);
    pthread_cond_init(&loader->changed, NULL);
    loader->options = *options;
    loader->seq_len = T;
    loader->n_windows = n_windows;
    loader->end = options->n_samples > 0 ? options->n_samples : INT64_MAX;
    if (!options->shuffle && options->n_samples > n_windows)
        loader->end = n_windows;  // a validation set is read once
    loader->n_batches = options->depth + 2;
    size_t rows_len = (size_t)options->batch * (size_t)T, n = (size_t)loader->n_batches;
    loader->ring = calloc(n, sizeof *loader->ring);
    loader->buffers = malloc(2 * n * rows_len * sizeof(int32_t));
    loader->window = malloc(((size_t)T + 1) * sizeof(int32_t));
    Status status = OK;
    if (!loader->ring || !loader->buffers || !loader->window)
        status = fail("out of memory for %zu batches of %d×%d tokens", n, options->batch, T);
    for (size_t k = 0; status == OK && k < n; k++) {
        loader->ring[k].tokens = loader->buffers + 2 * k * rows_len;
        loader->ring[k].targets = loader->ring[k].tokens + rows_len;
    }
    if (status == OK)
        status = start_thread(loader);
    if (status == OK)
        *out = loader;
    else
        free_loader(loader);
    return status;
}

void loader_close(Loader *loader) {
    if (!loader)
        return;
    pthread_mutex_lock(&loader->lock);
    loader->stop = true;
    pthread_cond_signal(&loader->changed);
    pthread_mutex_unlock(&loader->lock);
    pthread_join(loader->thread, NULL);
    free_loader(loader);
}

static double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

Status loader_next(Loader *loader, const int32_t **tokens, const int32_t **targets, int64_t *n_valid,
                   double *wait_seconds) {
    pthread_mutex_lock(&loader->lock);
    int64_t k = loader->n_returned;
    double waited = 0;
    if (loader->n_read <= k && !loader->failed) {
        double start = now_seconds();
        while (loader->n_read <= k && !loader->failed)
            pthread_cond_wait(&loader->changed, &loader->lock);
        waited = now_seconds() - start;
    }
    bool ready = loader->n_read > k;  // batches before an error are still good
    if (ready)
        loader->n_returned = k + 1;
    pthread_cond_signal(&loader->changed);
    pthread_mutex_unlock(&loader->lock);
    *wait_seconds = waited;
    if (!ready)
        return fail("%s", loader->message);
    const Batch *batch = &loader->ring[k % loader->n_batches];
    *tokens = batch->tokens;
    *targets = batch->targets;
    *n_valid = batch->n_valid;
    return OK;
}
