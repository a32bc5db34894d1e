// comm.h's functions, passed on to the implementation.
#include "zero/comm_backend.h"

#include <string.h>

const char *const collective_names[COMM_COLLECTIVES] = {"all_gather", "reduce_scatter", "all_reduce"};

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
int comm_local_rank(const Comm *comm) {
    return comm->local_rank;
}
int comm_local_size(const Comm *comm) {
    return comm->local_size;
}

void comm_all_gather(Comm *comm, Stream *stream, const char *what, void *full, const void *shard, int64_t len, Dtype dtype) {
    comm->backend->all_gather(comm, stream, what, full, shard, len, dtype);
}
void comm_reduce_scatter(Comm *comm, Stream *stream, const char *what, void *shard, Dtype shard_dtype, const float *full,
                         int64_t len, Dtype wire, bool add) {
    comm->backend->reduce_scatter(comm, stream, what, shard, shard_dtype, full, len, wire, add);
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
Status comm_barrier(Comm *comm, const char *what) {
    return comm->backend->barrier(comm, what);
}

CommStats comm_stats(const Comm *comm) {
    return comm->stats;
}
void comm_stats_reset(Comm *comm) {
    memset(&comm->stats, 0, sizeof comm->stats);
}
