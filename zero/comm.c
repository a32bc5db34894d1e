// comm.h's functions, passed on to the implementation.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "zero/comm_backend.h"

const char *const collective_names[COMM_COLLECTIVES] = {"all_gather", "reduce_scatter", "all_reduce", "host_values"};

// ---- starting and ending ----

// How many processes the launcher says it started; 1 without a launcher, 0 when only MPI can tell.
static int launched_ranks(void) {
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");  // Open MPI's mpirun
    if (!size)
        size = getenv("PMI_SIZE");  // MPICH's
    if (size)
        return atoi(size);
    return getenv("PMIX_RANK") ? 0 : 1;  // srun --mpi=pmix
}

Status comm_start(CommWorld *world) {
    *world = (CommWorld){.size = 1, .local_size = 1, .host_group = 1};
    if (launched_ranks() == 1) {
        const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
        if (tasks && atoi(tasks) > 1)
            return fail_usage("srun started %s tasks that cannot talk to each other: use srun --mpi=pmix", tasks);
        return OK;
    }
#ifdef HAVE_NCCL
    // While there is one thread. The first: see comm_nccl.cuh. The second: a queue for each stream, or they would wait for
    // each other where there are more than eight.
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
#endif
#ifdef HAVE_MPI
    return comm_mpi_start(world);
#else
    return fail_usage(
        "started with other ranks by mpirun or srun, but this program was built without MPI: install it "
        "(scripts/install_deps.sh), make clean and make again");
#endif
}

void comm_stop(void) {
#ifdef HAVE_MPI
    if (comm_mpi_started())
        comm_mpi_stop();
#endif
}

void comm_fail(Status status) {
#ifdef HAVE_MPI
    if (comm_mpi_started())
        comm_mpi_abort(status, status_message());
#endif
    (void)status;
    fflush(stdout);
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, status_message());
}

Status comm_open(Device *device, Stream *compute, const CommOptions *options, Comm **comm) {
    *comm = NULL;
    if (options->shape.n_ranks == 1)
        return comm_open_local(device, compute, options, comm);
#ifdef HAVE_MPI
    if (device_kind(device) == DEVICE_CPU)
        return comm_open_mpi(device, compute, options, comm);
#ifdef HAVE_NCCL
    if (device_kind(device) == DEVICE_CUDA)
        return comm_open_nccl(device, compute, options, comm);
#endif
#endif
    return fail("%d ranks cannot talk to each other on this device with what this program was built with",
                options->shape.n_ranks);
}

void comm_close(Comm *comm) {
    if (comm)
        comm->backend->close(comm);
}

int comm_rank(const Comm *comm) {
    return comm->rank;
}
int comm_size(const Comm *comm) {
    return comm->size;
}
CommShape comm_shape(const Comm *comm) {
    return comm->options.shape;
}
void comm_set_step(Comm *comm, int64_t step) {
    comm->step = step;
}
int64_t comm_step(const Comm *comm) {
    return comm->step;
}

// ---- collectives ----

// A running hash (FNV-1a) of what is enqueued, in order.
static void note(Comm *comm, Collective collective, const Stream *stream, const char *what, int64_t len, Dtype dtype) {
    char text[128];
    int n =
        snprintf(text, sizeof text, "%d %s %s %lld %d", collective, stream_name(stream), what, (long long)len, dtype);
    for (int i = 0; i < n && i < (int)sizeof text - 1; i++)
        comm->order_hash = (comm->order_hash ^ (unsigned char)text[i]) * 0x100000001b3u;
    comm->n_issued++;
}

void comm_all_gather(Comm *comm, Stream *stream, const char *what, void *full, const void *shard, int64_t len,
                     Dtype dtype) {
    note(comm, COMM_ALL_GATHER, stream, what, len, dtype);
    comm->stats.bytes_sent[COMM_ALL_GATHER] += comm_all_gather_bytes(comm->options.shape, len, dtype);
    comm->backend->all_gather(comm, stream, what, full, shard, len, dtype);
}
void comm_reduce_scatter(Comm *comm, Stream *stream, const char *what, void *shard, Dtype shard_dtype,
                         const float *full, int64_t len, Dtype wire, bool add) {
    note(comm, COMM_REDUCE_SCATTER, stream, what, len, wire);
    comm->stats.bytes_sent[COMM_REDUCE_SCATTER] += comm_reduce_scatter_bytes(comm->options.shape, len, wire);
    comm->stats.bytes_sent[COMM_ALL_REDUCE] += comm_all_reduce_bytes(comm->options.shape, len);
    comm->backend->reduce_scatter(comm, stream, what, shard, shard_dtype, full, len, wire, add);
}
Status comm_register(Comm *comm, void *memory, size_t bytes) {
    return comm->backend->register_memory && memory ? comm->backend->register_memory(comm, memory, bytes) : OK;
}
void comm_unregister(Comm *comm, const void *memory) {
    if (comm->backend->unregister_memory && memory)
        comm->backend->unregister_memory(comm, memory);
}
Status comm_sum(Comm *comm, const char *what, double *values, int n) {
    return comm->backend->sum(comm, what, values, n);
}
Status comm_max(Comm *comm, const char *what, double *values, int n) {
    return comm->backend->max(comm, what, values, n);
}
Status comm_sum_u128(Comm *comm, const char *what, unsigned __int128 *values, int n) {
    return comm->backend->sum_u128(comm, what, values, n);
}
Status comm_broadcast(Comm *comm, const char *what, void *data, size_t bytes, int root) {
    return comm->backend->broadcast(comm, what, data, bytes, root);
}
void comm_set_patience(Comm *comm, double seconds) {
    comm->patience = seconds;
}
Status comm_barrier(Comm *comm, const char *what) {
    return comm->backend->barrier(comm, what);
}

// ---- counters ----

double comm_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double cpu_seconds(const Comm *comm) {
    return comm->backend->cpu_seconds ? comm->backend->cpu_seconds() : 0;
}

CommStats comm_stats(Comm *comm) {
    if (comm->compute)
        comm->stats.wait_seconds += stream_wait_seconds(comm->compute);
    comm->stats.cpu_seconds = cpu_seconds(comm) - comm->cpu_at_reset;
    return comm->stats;
}
void comm_stats_reset(Comm *comm) {
    if (comm->compute)
        stream_wait_seconds(comm->compute);  // forget what it was
    comm->stats = (CommStats){.wait_seconds = 0};
    comm->cpu_at_reset = cpu_seconds(comm);
}
