// One rank: nothing travels, but reductions round as if it did, so that --reduce-dtype means the same with one rank.
#include <stdlib.h>

#include "llm/ops.h"
#include "zero/comm_backend.h"

typedef struct CommLocal {
    Comm base;
    void *piece;  // (LOCAL_PIECE_LEN) in the wire dtype
} CommLocal;

static void local_close(Comm *comm) {
    device_free(comm->device, ((CommLocal *)comm)->piece);
    free(comm);
}

static void local_all_gather(Comm *comm, Stream *stream, const char *what, void *full, const void *shard, int64_t len,
                             Dtype dtype) {
    (void)comm;
    (void)what;
    stream_copy(stream, full, shard, (size_t)len * dtype_bytes(dtype));
}

static void local_reduce_scatter(Comm *comm, Stream *stream, const char *what, void *shard, Dtype shard_dtype,
                                 const float *full, int64_t len, Dtype wire, bool add) {
    (void)what;
    const Ops *ops = device_ops(comm->device);
    void *piece = ((CommLocal *)comm)->piece;
    for (int64_t i = 0; i < len; i += LOCAL_PIECE_LEN) {
        int64_t n = len - i < LOCAL_PIECE_LEN ? len - i : LOCAL_PIECE_LEN;
        char *to = (char *)shard + (size_t)i * dtype_bytes(shard_dtype);
        const void *from = full + i;
        Dtype from_dtype = DTYPE_FP32;
        if (wire != DTYPE_FP32) {
            ops->convert(stream, piece, wire, from, DTYPE_FP32, n);
            from = piece;
            from_dtype = wire;
        }
        if (add)
            ops->add(stream, to, shard_dtype, from, from_dtype, n);
        else if (from != to)
            ops->convert(stream, to, shard_dtype, from, from_dtype, n);
    }
}

static Status local_sum(Comm *comm, const char *what, double *values, int n) {
    (void)comm, (void)what, (void)values, (void)n;
    return OK;
}
static Status local_sum_u128(Comm *comm, const char *what, unsigned __int128 *values, int n) {
    (void)comm, (void)what, (void)values, (void)n;
    return OK;
}
static Status local_broadcast(Comm *comm, const char *what, void *data, size_t bytes, int root) {
    (void)comm, (void)what, (void)data, (void)bytes, (void)root;
    return OK;
}
static Status local_barrier(Comm *comm, const char *what) {
    (void)comm, (void)what;
    return OK;
}

static const CommBackend local_backend = {
    .close = local_close,
    .all_gather = local_all_gather,
    .reduce_scatter = local_reduce_scatter,
    .sum = local_sum,
    .max = local_sum,
    .sum_u128 = local_sum_u128,
    .broadcast = local_broadcast,
    .barrier = local_barrier,
};

Status comm_open_local(Device *device, Stream *compute, const CommOptions *options, Comm **comm_out) {
    *comm_out = NULL;
    CommLocal *comm = calloc(1, sizeof *comm);
    if (!comm)
        return fail("out of host memory");
    comm->base =
        (Comm){.backend = &local_backend, .device = device, .compute = compute, .options = *options, .size = 1};
    Status status = device_alloc(device, MEM_STAGING, "reduction", comm_staging_bytes(options), &comm->piece);
    if (status != OK) {
        free(comm);
        return status;
    }
    *comm_out = &comm->base;
    return OK;
}
