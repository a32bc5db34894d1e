// comm over MPI: opening and closing, and the all-gather. Reductions: comm_mpi_reduce.c; host values: comm_mpi_host.c.
#include "zero/comm_mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

MpiJob mpi_job(const MpiCall *call, Collective collective) {
    MpiJob job = {.lane = call->lane,
                  .collective = collective_names[collective],
                  .step = call->step,
                  .timeout = call->comm->base.options.timeout};
    memcpy(job.what, call->what, sizeof job.what);
    return job;
}

// The lane of a stream; -1 after failing the stream if there are too many.
static int lane_of(CommMpi *comm, Stream *stream) {
    for (int lane = 0; lane < comm->n_lanes; lane++)
        if (comm->lane_of[lane] == stream)
            return lane;
    if (comm->n_lanes == MPI_HOST_LANE) {
        stream_fail(stream, fail("collectives on more than %d streams: this is a bug in zero.c", MPI_HOST_LANE));
        return -1;
    }
    comm->lane_of[comm->n_lanes] = stream;
    return comm->n_lanes++;
}

void mpi_enqueue(CommMpi *comm, Stream *stream, const char *what, Status (*function)(void *), MpiCall *call,
                 size_t bytes) {
    call->comm = comm;
    call->step = comm->base.step;
    call->lane = lane_of(comm, stream);
    if (call->lane < 0)
        return;
    snprintf(call->what, sizeof call->what, "%s", what);
    double start = comm_clock();
    stream_call(stream, function, call, bytes);
    if (stream == comm->base.compute)  // it runs, and waits, right here
        comm->base.stats.wait_seconds += comm_clock() - start;
}

// ---- all-gather: each rank sends its shard to each of the others ----

typedef struct Gather {
    MpiCall call;
    char *full;
    const char *shard;
    int64_t shard_bytes, piece_bytes, n_pieces;  // n_pieces of a shard
    int first, n, own;                           // the group's first rank, its ranks, and this rank's place in it
} Gather;

enum { GATHER_SEND, GATHER_RECEIVE };

static MpiMessage piece_message(const Gather *g, int place, const char *shard, int64_t piece) {
    int64_t at = piece * g->piece_bytes, left = g->shard_bytes - at;
    return (MpiMessage){
        .peer = g->first + place, .data = (char *)shard + at, .bytes = left < g->piece_bytes ? left : g->piece_bytes};
}

// Round k: to the k-th rank after this one, from the k-th before it.
static MpiMessage gather_send(const void *context, int64_t i) {
    const Gather *g = context;
    int round = 1 + (int)(i / g->n_pieces);
    return piece_message(g, (g->own + round) % g->n, g->shard, i % g->n_pieces);
}
static MpiMessage gather_receive(const void *context, int64_t i) {
    const Gather *g = context;
    int round = 1 + (int)(i / g->n_pieces), place = (g->own - round + g->n) % g->n;
    return piece_message(g, place, g->full + place * g->shard_bytes, i % g->n_pieces);
}

static Status run_all_gather(void *arguments) {
    const Gather *g = arguments;
    char *own = g->full + g->own * g->shard_bytes;
    if (own != g->shard)
        memcpy(own, g->shard, (size_t)g->shard_bytes);
    int64_t messages = (g->n - 1) * g->n_pieces;
    MpiJob job = mpi_job(&g->call, COMM_ALL_GATHER);
    job.context = g;
    job.n_flows = 2;
    job.flows[GATHER_SEND] = (MpiFlow){.sends = true, .n = messages, .allowed = messages, .message = gather_send};
    job.flows[GATHER_RECEIVE] = (MpiFlow){.n = messages, .allowed = messages, .message = gather_receive};
    mpi_job_begin(&job);
    mpi_job_end(&job);
    return OK;
}

static void mpi_all_gather(Comm *base, Stream *stream, const char *what, void *full, const void *shard, int64_t len,
                           Dtype dtype) {
    int n = base->options.shape.shard_group;
    Gather g = {.full = full,
                .shard = shard,
                .shard_bytes = len * (int64_t)dtype_bytes(dtype),
                .piece_bytes = comm_piece_bytes(&base->options),
                .first = base->rank / n * n,
                .n = n,
                .own = base->rank % n};
    g.n_pieces = (g.shard_bytes + g.piece_bytes - 1) / g.piece_bytes;
    mpi_enqueue((CommMpi *)base, stream, what, run_all_gather, &g.call, sizeof g);
}

// ---- opening and closing ----

static void mpi_close(Comm *base) {
    CommMpi *comm = (CommMpi *)base;
    device_free(base->device, comm->staging);
    mpi_host_close(base);
    free(comm->addends);
    free(comm);
}

static const CommBackend mpi_backend = {
    .close = mpi_close,
    .all_gather = mpi_all_gather,
    .reduce_scatter = mpi_reduce_scatter,
    .sum = mpi_sum,
    .max = mpi_max,
    .sum_u128 = mpi_sum_u128,
    .broadcast = mpi_broadcast,
    .barrier = mpi_barrier,
    .cpu_seconds = mpi_thread_cpu_seconds,
};

Status comm_open_mpi(Device *device, Stream *compute, const CommOptions *options, Comm **comm_out) {
    *comm_out = NULL;
    CommMpi *comm = calloc(1, sizeof *comm);
    if (!comm)
        return fail("out of host memory");
    int n = options->shape.n_ranks, rank = mpi_world_rank();
    comm->base = (Comm){
        .backend = &mpi_backend, .device = device, .compute = compute, .options = *options, .rank = rank, .size = n};
    Status status = OK;
    comm->addends = calloc((size_t)n, sizeof *comm->addends);
    if (!comm->addends) {
        status = fail("out of host memory");
        goto failed;
    }
    TRY_GOTO(device_alloc(device, MEM_STAGING, "reduction", comm_staging_bytes(options), (void **)&comm->staging),
             failed);
    TRY_GOTO(mpi_host_open(&comm->base), failed);
    *comm_out = &comm->base;
    return OK;
failed:
    mpi_close(&comm->base);
    return status;
}
