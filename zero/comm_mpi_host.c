// Values that live in host memory: rank 0 collects them, combines them in rank order and hands the result to all.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zero/comm_mpi_host.h"
#include "zero/comm_mpi_thread.h"

typedef struct Star {
    MpiJob job;
    int rank, n, root;
    char *values;     // (bytes) this rank's, then the result
    char *collected;  // root: (n, bytes), what each rank sent
    int64_t bytes;
} Star;

enum { TO_ROOT, FROM_ROOT };

// The root's messages: one for each other rank.
static int other_rank(const Star *s, int64_t i) {
    return i < s->root ? (int)i : (int)i + 1;
}
static MpiMessage collect(const void *context, int64_t i) {
    const Star *s = context;
    if (s->rank != s->root)
        return (MpiMessage){s->root, s->values, s->bytes};
    int from = other_rank(s, i);
    return (MpiMessage){from, s->collected + from * s->bytes, s->bytes};
}
static MpiMessage hand_out(const void *context, int64_t i) {
    const Star *s = context;
    return (MpiMessage){s->rank == s->root ? other_rank(s, i) : s->root, s->values, s->bytes};
}

typedef void Combine(void *result, const void *value, int64_t bytes);

static void combine_sum(void *result, const void *value, int64_t bytes) {
    double *to = result;
    const double *from = value;
    for (int64_t i = 0; i < bytes / (int64_t)sizeof *to; i++)
        to[i] += from[i];
}
static void combine_max(void *result, const void *value, int64_t bytes) {
    double *to = result;
    const double *from = value;
    for (int64_t i = 0; i < bytes / (int64_t)sizeof *to; i++)
        to[i] = from[i] > to[i] || from[i] != from[i] ? from[i] : to[i];
}
static void combine_sum_u128(void *result, const void *value, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += (int64_t)sizeof(unsigned __int128)) {
        unsigned __int128 a, b;
        memcpy(&a, (char *)result + i, sizeof a);
        memcpy(&b, (const char *)value + i, sizeof b);
        a += b;
        memcpy((char *)result + i, &a, sizeof a);
    }
}

// Rank 0 has everybody's values: result = rank 0's ∘ rank 1's ∘ …
static void combine_all(Star *s, Combine *combine) {
    for (int r = 1; r < s->n; r++)
        combine(s->values, s->collected + r * s->bytes, s->bytes);
}

// All send to the root (if it collects), which combines; then the root sends to all. Returns the bytes this rank sent.
static int64_t run_star(Star *s, bool collects, Combine *combine) {
    bool is_root = s->rank == s->root;
    int64_t n = is_root ? s->n - 1 : 1, n_collected = collects ? n : 0;
    s->job.lane = MPI_HOST_LANE;
    s->job.context = s;
    s->job.n_flows = 2;
    s->job.flows[TO_ROOT] = (MpiFlow){.sends = !is_root, .n = n_collected, .allowed = n_collected, .message = collect};
    s->job.flows[FROM_ROOT] = (MpiFlow){.sends = is_root, .n = n, .message = hand_out};
    mpi_job_begin(&s->job);
    mpi_flow_wait(&s->job, TO_ROOT, n);  // then `values` may be overwritten
    if (collects && is_root && combine)
        combine_all(s, combine);
    mpi_flow_allow(&s->job, FROM_ROOT, n);
    mpi_job_end(&s->job);
    return (is_root ? n : n_collected) * s->bytes;
}

static Star make_star(const Comm *comm, const char *collective, const char *what, int root) {
    Star s = {.job = {.collective = collective, .step = comm->step, .timeout = comm->options.timeout + comm->patience},
              .rank = comm->rank,
              .n = comm->size,
              .root = root,
              .collected = comm->host_values};
    snprintf(s.job.what, sizeof s.job.what, "%s", what);
    return s;
}

// In pieces: of HOST_PIECE_BYTES where the root needs room for those of all ranks.
static void over_ranks(Comm *comm, Star *s, bool collects, Combine *combine, void *values, size_t bytes,
                       size_t piece_bytes) {
    double start = comm_clock();
    for (size_t at = 0; at < bytes; at += piece_bytes) {
        s->values = (char *)values + at;
        s->bytes = (int64_t)(bytes - at < piece_bytes ? bytes - at : piece_bytes);
        comm->stats.bytes_sent[COMM_HOST_VALUES] += run_star(s, collects, combine);
    }
    comm->stats.wait_seconds += comm_clock() - start;
}

static double stop_seconds = 60;  // or --comm-timeout, once it is known

Status mpi_host_open(Comm *comm) {
    stop_seconds = comm->options.timeout > stop_seconds ? comm->options.timeout : stop_seconds;
    if (comm->rank != 0)
        return OK;
    comm->host_values = calloc((size_t)comm->size, HOST_PIECE_BYTES);  // no device ever sees it
    return comm->host_values ? OK : fail("out of host memory");
}
void mpi_host_close(Comm *comm) {
    free(comm->host_values);
}

Status mpi_sum(Comm *comm, const char *what, double *values, int n) {
    Star s = make_star(comm, "sum", what, 0);
    over_ranks(comm, &s, true, combine_sum, values, (size_t)n * sizeof *values, HOST_PIECE_BYTES);
    return OK;
}
Status mpi_max(Comm *comm, const char *what, double *values, int n) {
    Star s = make_star(comm, "max", what, 0);
    over_ranks(comm, &s, true, combine_max, values, (size_t)n * sizeof *values, HOST_PIECE_BYTES);
    return OK;
}
Status mpi_sum_u128(Comm *comm, const char *what, unsigned __int128 *values, int n) {
    Star s = make_star(comm, "sum", what, 0);
    over_ranks(comm, &s, true, combine_sum_u128, values, (size_t)n * sizeof *values, HOST_PIECE_BYTES);
    return OK;
}
Status mpi_broadcast(Comm *comm, const char *what, void *data, size_t bytes, int root) {
    Star s = make_star(comm, "broadcast", what, root);
    over_ranks(comm, &s, false, NULL, data, bytes, (size_t)comm_piece_bytes(&comm->options));
    return OK;
}
Status mpi_barrier(Comm *comm, const char *what) {
    char nothing = 0;
    Star s = make_star(comm, "barrier", what, 0);
    over_ranks(comm, &s, true, NULL, &nothing, sizeof nothing, HOST_PIECE_BYTES);
    return OK;
}

void comm_mpi_stop(void) {
    char nothing = 0;  // messages of no bytes
    Star s = {.job = {.collective = "barrier", .what = "the end of the run", .timeout = stop_seconds},
              .rank = mpi_world_rank(),
              .n = mpi_world_size(),
              .values = &nothing,
              .collected = &nothing};
    run_star(&s, true, NULL);
    mpi_thread_stop();
}
