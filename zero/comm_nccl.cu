// comm over NCCL: opening and closing, the way of a collective, the all-gather. MPI brings the ranks together and
// carries the host values.
#include <cstdio>
#include <cstdlib>

#include "zero/comm_nccl.cuh"

NcclLibrary nccl;

ncclDataType_t nccl_type(Dtype dtype) {
    return dtype == DTYPE_FP32 ? ncclFloat32 : dtype == DTYPE_BF16 ? ncclBfloat16 : ncclFloat16;
}

// ---- the way of a collective ----

cudaStream_t nccl_own_stream(const NcclCall *call, Stream *stream) {
    cudaStream_t s = cuda_begin(stream);
    if (!s)
        stream_fail(call->caller, stream_sync(stream));
    return s;
}

bool nccl_begin(CommNccl *c, int lane, Collective collective, Stream *stream, const char *what, NcclCall *call) {
    *call = NcclCall{c, &c->lanes[lane], stream, stream, nullptr, ""};
    char step[32] = "";
    if (c->base.step > 0)
        snprintf(step, sizeof step, " in step %lld", static_cast<long long>(c->base.step));
    snprintf(call->what, sizeof call->what, "%s of %.30s%s", collective_names[collective], what, step);
    if (!cuda_begin(stream))
        return false;
    if (stream == c->base.compute) {
        call->stream = c->stand_in;
        event_record(c->called, stream);
        stream_wait(c->stand_in, c->called);
    }
    call->s = nccl_own_stream(call, call->stream);
    if (!call->s)
        return false;
    progress_begin(call->lane, call->s, call->what);
    return true;
}

void nccl_end(const NcclCall *call) {
    progress_end(call->lane, call->s);
    cuda_end(call->caller, call->what);
    if (call->stream != call->caller) {
        event_record(call->comm->returned, call->stream);
        stream_wait(call->caller, call->comm->returned);
    }
}

Status nccl_fail(const char *doing, ncclResult_t result) {
    const char *more = nccl.ncclGetLastError(nullptr);
    return fail("%s failed: NCCL says: %s%s%s", doing, nccl.ncclGetErrorString(result), *more ? "; " : "", more);
}

void nccl_check(const NcclCall *call, ncclResult_t result) {
    if (result != ncclSuccess)
        stream_fail(call->caller, nccl_fail(call->what, result));
}

// ---- collectives ----

static void all_gather(Comm *comm, Stream *stream, const char *what, void *full, const void *shard, int64_t len,
                       Dtype dtype) {
    CommNccl *c = comm_nccl(comm);
    NcclCall call;
    if (!nccl_begin(c, GATHERS, COMM_ALL_GATHER, stream, what, &call))
        return;
    nccl_check(&call, nccl.ncclAllGather(shard, full, static_cast<size_t>(len), nccl_type(dtype), c->gather, call.s));
    nccl_end(&call);
}

static void reduce_scatter(Comm *comm, Stream *stream, const char *what, void *shard, Dtype shard_dtype,
                           const float *full, int64_t len, Dtype wire, bool add) {
    CommNccl *c = comm_nccl(comm);
    if (!c->reduces)
        c->reduces = stream;
    if (c->reduces != stream || wire != comm->options.wire) {
        stream_fail(stream,
                    fail("%s: reductions on two streams, or in another dtype than comm was opened for: this is a bug "
                         "in zero.c",
                         what));
        return;
    }
    NcclCall call;
    if (len == 0 || !nccl_begin(c, REDUCTIONS, COMM_REDUCE_SCATTER, stream, what, &call))
        return;
    (comm->options.native ? nccl_reduce_natively : nccl_reduce_in_order)(&call, shard, shard_dtype, full, len, add);
    nccl_end(&call);
}

// ---- opening and closing ----

static void watch(CommNccl *c, double timeout) {
    CommShape shape = c->base.options.shape;
    int group = c->base.rank / shape.shard_group * shape.shard_group;
    CommWatch gathers = {group, shape.shard_group, timeout, progress_look, &c->lanes[GATHERS]};
    CommWatch reductions = {0, shape.n_ranks, timeout, progress_look, &c->lanes[REDUCTIONS]};
    mpi_watch_begin(GATHERS, &gathers);
    mpi_watch_begin(REDUCTIONS, &reductions);
}

static void stop_watching(void) {
    mpi_watch_end(GATHERS);
    mpi_watch_end(REDUCTIONS);
}

static Status split(ncclComm_t from, int color, int rank, ncclComm_t *to) {
    ncclResult_t result = nccl.ncclCommSplit(from, color, rank, to, nullptr);
    return result == ncclSuccess ? OK : nccl_fail("splitting the communicator of all ranks", result);
}

static Status make_communicators(CommNccl *c) {
    CommShape shape = c->base.options.shape;
    int n = shape.n_ranks, s = shape.shard_group, rank = c->base.rank;
    ncclUniqueId id = {};
    ncclResult_t result = rank == 0 ? nccl.ncclGetUniqueId(&id) : ncclSuccess;
    if (result != ncclSuccess)
        return nccl_fail("getting an id for the communicator", result);
    TRY(mpi_broadcast(&c->base, "NCCL's id", &id, sizeof id, 0));
    result = nccl.ncclCommInitRank(&c->world, n, id, rank);
    if (result != ncclSuccess)
        return fail_context(nccl_fail("connecting the GPUs", result),
                            "rank %d of %d (each needs a GPU of its own; NCCL_DEBUG=WARN says more)", rank, n);
    TRY(split(c->world, rank / s, rank, &c->gather));
    if (c->base.options.native && s < n) {
        TRY(split(c->world, rank / s, rank, &c->inside));
        TRY(split(c->world, rank % s, rank, &c->across));
    } else {
        c->inside = c->world;
    }
    return OK;
}

static const double CONNECT_SECONDS = 60;  // at least, whatever --comm-timeout

static Status connect_ranks(CommNccl *c) {
    progress_begin_now(&c->lanes[REDUCTIONS], "connecting the GPUs");
    double timeout = c->base.options.timeout;
    watch(c, timeout > CONNECT_SECONDS ? timeout : CONNECT_SECONDS);
    Status status = make_communicators(c);
    stop_watching();
    progress_end_now(&c->lanes[REDUCTIONS]);
    if (status != OK)
        return status;
    c->lanes[GATHERS].comm = c->gather;
    c->lanes[REDUCTIONS].comm = c->inside;
    c->lanes[REDUCTIONS].across = c->across;
    watch(c, timeout);
    c->is_open = true;
    return comm_register(&c->base, c->staging, comm_staging_bytes(&c->base.options));
}

static Status open_all(CommNccl *c) {
    Device *device = c->base.device;
    int version = 0;
    TRY(nccl.load(LIBRARY_FILE("libnccl", NCCL_MAJOR)));
    if (nccl.ncclGetVersion(&version) != ncclSuccess || version < NCCL_VERSION(2, 26, 0))
        return fail("NCCL here is version code %d, and this program needs %d (2.26) or newer: before, the collectives of two "
                    "communicators could wait for each other for ever", version, NCCL_VERSION(2, 26, 0));
    TRY(mpi_host_open(&c->base));
    TRY(device_alloc(device, MEM_STAGING, "reduction", comm_staging_bytes(&c->base.options),
                     reinterpret_cast<void **>(&c->staging)));
    TRY(device_host_alloc(device, "progress of collectives", COMM_WATCHES * sizeof *c->progress,
                          reinterpret_cast<void **>(&c->progress)));
    for (int lane = 0; lane < COMM_WATCHES; lane++)
        c->lanes[lane].progress = &c->progress[lane];
    TRY(stream_create(device, STREAM_BACKGROUND, "collectives", &c->stand_in));
    TRY(stream_create(device, STREAM_BACKGROUND, "sums", &c->sums));
    for (Event **event : {&c->called, &c->returned, &c->ready, &c->finished})
        TRY(event_create(device, event));
    for (int parity = 0; parity < 2; parity++)
        for (Event **events : {c->packed, c->exchanged, c->summed, c->crossed})
            TRY(event_create(device, &events[parity]));
    return connect_ranks(c);
}

static void close_comm(Comm *comm) {
    CommNccl *c = comm_nccl(comm);
    stop_watching();
    nccl_unregister(comm, c->staging);
    stream_destroy(c->sums);
    stream_destroy(c->stand_in);
    for (ncclComm_t communicator : {c->across, c->inside == c->world ? nullptr : c->inside, c->gather, c->world})
        if (communicator && c->is_open)
            nccl.ncclCommDestroy(communicator);
        else if (communicator)
            nccl.ncclCommAbort(communicator);  // does not wait for other ranks
    for (Event *event : {c->called, c->returned, c->ready, c->finished})
        event_destroy(event);
    for (int parity = 0; parity < 2; parity++)
        for (Event **events : {c->packed, c->exchanged, c->summed, c->crossed})
            event_destroy(events[parity]);
    device_host_free(comm->device, c->progress);
    device_free(comm->device, c->staging);
    mpi_host_close(comm);
    free(c);
}

static const CommBackend nccl_backend = {
    .close = close_comm,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .sum = mpi_sum,
    .max = mpi_max,
    .sum_u128 = mpi_sum_u128,
    .broadcast = mpi_broadcast,
    .barrier = mpi_barrier,
    .cpu_seconds = mpi_thread_cpu_seconds,
    .register_memory = nccl_register,
    .unregister_memory = nccl_unregister,
};

extern "C" Status comm_open_nccl(Device *device, Stream *compute, const CommOptions *options, Comm **comm) {
    *comm = nullptr;
    CommNccl *c = static_cast<CommNccl *>(calloc(1, sizeof *c));
    if (!c)
        return fail("out of host memory");
    c->base.backend = &nccl_backend;
    c->base.device = device;
    c->base.compute = compute;
    c->base.options = *options;
    c->base.rank = mpi_world_rank();
    c->base.size = options->shape.n_ranks;
    Status status = open_all(c);
    if (status != OK) {
        close_comm(&c->base);
        return status;
    }
    *comm = &c->base;
    return OK;
}
