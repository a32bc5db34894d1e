// Reduce-scatter in two levels (who adds what: comm_shape.c), piece by piece.
//
// A piece is elements [k·piece_len, (k+1)·piece_len) of every cut. The stream's worker adds piece k while the MPI
// thread moves piece k+1: every staging buffer is there twice, for even and odd pieces.
#include <string.h>

#include "zero/comm_mpi.h"

enum { SEND, RECEIVE, SEND_PARTIAL, RECEIVE_PARTIAL };  // flows; the last two are level 2

typedef struct ReduceCall {
    MpiCall call;
    void *shard;
    Dtype shard_dtype, wire;
    const float *full;
    int64_t len;
    bool add;
} ReduceCall;

typedef struct Reduction {
    ReduceCall args;
    MpiJob job;
    int group_size, n_groups;  // G, M
    int group, local;          // this rank is group·G + local
    int n_cuts;                // cuts that each local peer adds up: M, or 1 in hybrid sharding
    int64_t piece_len, n_pieces;
    int64_t n_level1, n_level2;  // messages a piece, each way
    // staging, each for even and odd pieces: [parity]
    char *to_send[2];    // (G-1, n_cuts, piece_len) wire: addends that had to be converted, by round
    char *received[2];   // (G-1, n_cuts, piece_len) wire: addends of the neighbours, by round
    float *partial[2];   // (n_cuts, piece_len): sums of this group
    float *partials[2];  // (M-1, piece_len): sums of other groups for the own cut, by round
} Reduction;

static bool converts(const Reduction *r) {
    return r->args.wire != DTYPE_FP32;
}
static bool has_level2(const Reduction *r) {
    return r->n_groups > 1;
}
static int64_t piece_at(const Reduction *r, int64_t piece) {
    return piece * r->piece_len;
}
static int64_t piece_size(const Reduction *r, int64_t piece) {
    int64_t left = r->args.len - piece_at(r, piece);
    return left < r->piece_len ? left : r->piece_len;
}

// This rank's addend for cut number m of local peer j, at the piece.
static const float *own_addend(const Reduction *r, int j, int m, int64_t piece) {
    int64_t cut = (int64_t)m * r->group_size + j;
    return r->args.full + cut * r->args.len + piece_at(r, piece);
}
// Buffer number i of a staging area with elements of `dtype`.
static void *buffer(const Reduction *r, void *area, int64_t i, Dtype dtype) {
    return (char *)area + (size_t)(i * r->piece_len) * dtype_bytes(dtype);
}

// Level 1, message i: piece by piece, in each piece round by round, in each round cut by cut. Round k sends to the k-th
// local peer after this one and receives from the k-th before it.
typedef struct Place {
    int64_t piece;
    int64_t in_piece;  // index of the message in its piece
    int round, cut;
} Place;

static Place place_of(int64_t i, int64_t n_a_piece, int n_cuts) {
    int64_t in_piece = i % n_a_piece;
    return (Place){.piece = i / n_a_piece,
                   .in_piece = in_piece,
                   .round = 1 + (int)(in_piece / n_cuts),
                   .cut = (int)(in_piece % n_cuts)};
}

static MpiMessage send_addend(const void *context, int64_t i) {
    const Reduction *r = context;
    Place p = place_of(i, r->n_level1, r->n_cuts);
    int to = (r->local + p.round) % r->group_size;
    const void *data = converts(r) ? buffer(r, r->to_send[p.piece % 2], p.in_piece, r->args.wire)
                                   : (const void *)own_addend(r, to, p.cut, p.piece);
    return (MpiMessage){.peer = r->group * r->group_size + to,
                        .data = (void *)data,
                        .bytes = piece_size(r, p.piece) * (int64_t)dtype_bytes(r->args.wire)};
}
static MpiMessage receive_addend(const void *context, int64_t i) {
    const Reduction *r = context;
    Place p = place_of(i, r->n_level1, r->n_cuts);
    int from = (r->local - p.round + r->group_size) % r->group_size;
    return (MpiMessage){.peer = r->group * r->group_size + from,
                        .data = buffer(r, r->received[p.piece % 2], p.in_piece, r->args.wire),
                        .bytes = piece_size(r, p.piece) * (int64_t)dtype_bytes(r->args.wire)};
}

// Level 2, between ranks with the same local index: round k sends to the k-th group after this one (its cut, or in
// hybrid sharding the only one) and receives from the k-th before it.
static MpiMessage send_partial(const void *context, int64_t i) {
    const Reduction *r = context;
    Place p = place_of(i, r->n_level2, 1);
    int to = (r->group + p.round) % r->n_groups;
    return (MpiMessage){.peer = to * r->group_size + r->local,
                        .data = buffer(r, r->partial[p.piece % 2], r->n_cuts > 1 ? to : 0, DTYPE_FP32),
                        .bytes = piece_size(r, p.piece) * (int64_t)sizeof(float)};
}
static MpiMessage receive_partial(const void *context, int64_t i) {
    const Reduction *r = context;
    Place p = place_of(i, r->n_level2, 1);
    int from = (r->group - p.round + r->n_groups) % r->n_groups;
    return (MpiMessage){.peer = from * r->group_size + r->local,
                        .data = buffer(r, r->partials[p.piece % 2], p.in_piece, DTYPE_FP32),
                        .bytes = piece_size(r, p.piece) * (int64_t)sizeof(float)};
}

// ---- the worker's part ----

static SumTarget own_shard(const Reduction *r, int64_t piece) {
    const ReduceCall *a = &r->args;
    return (SumTarget){(char *)a->shard + (size_t)piece_at(r, piece) * dtype_bytes(a->shard_dtype), a->shard_dtype,
                       a->wire, a->add};
}

static void convert_addends(Reduction *r, int64_t piece) {
    mpi_flow_wait(&r->job, SEND, (piece - 1) * r->n_level1);  // piece-2 has left the buffers
    for (int64_t i = 0; i < r->n_level1; i++) {
        Place p = place_of(i, r->n_level1, r->n_cuts);
        int to = (r->local + p.round) % r->group_size;
        round_to(r->args.wire, buffer(r, r->to_send[piece % 2], i, r->args.wire), own_addend(r, to, p.cut, piece),
                 piece_size(r, piece));
    }
    mpi_flow_allow(&r->job, SEND, (piece + 1) * r->n_level1);
}

// Level 1: add the group's addends in rank order.
static void add_addends(Reduction *r, int64_t piece) {
    Addend *addends = r->args.call.comm->addends;
    mpi_flow_wait(&r->job, RECEIVE, (piece + 1) * r->n_level1);
    if (has_level2(r))
        mpi_flow_wait(&r->job, SEND_PARTIAL, (piece - 1) * r->n_level2);  // piece-2 has left `partial`
    for (int m = 0; m < r->n_cuts; m++) {
        for (int j = 0; j < r->group_size; j++) {
            int round = (r->local - j + r->group_size) % r->group_size;
            int64_t i = (int64_t)(round - 1) * r->n_cuts + m;
            addends[j] = round == 0
                             ? (Addend){own_addend(r, r->local, m, piece), DTYPE_FP32, r->args.wire}
                             : (Addend){buffer(r, r->received[piece % 2], i, r->args.wire), r->args.wire, r->args.wire};
        }
        SumTarget partial = {buffer(r, r->partial[piece % 2], m, DTYPE_FP32), DTYPE_FP32, DTYPE_FP32, false};
        sum_in_order(has_level2(r) ? partial : own_shard(r, piece), addends, r->group_size, piece_size(r, piece));
    }
    mpi_flow_allow(&r->job, RECEIVE, (piece + 3) * r->n_level1);
    if (has_level2(r))
        mpi_flow_allow(&r->job, SEND_PARTIAL, (piece + 1) * r->n_level2);
}

// Level 2: add the groups' partial sums in their order.
static void add_partials(Reduction *r, int64_t piece) {
    Addend *addends = r->args.call.comm->addends;
    mpi_flow_wait(&r->job, RECEIVE_PARTIAL, (piece + 1) * r->n_level2);
    for (int g = 0; g < r->n_groups; g++) {
        int round = (r->group - g + r->n_groups) % r->n_groups;
        const float *data = round == 0 ? buffer(r, r->partial[piece % 2], r->n_cuts > 1 ? g : 0, DTYPE_FP32)
                                       : buffer(r, r->partials[piece % 2], round - 1, DTYPE_FP32);
        addends[g] = (Addend){data, DTYPE_FP32, DTYPE_FP32};
    }
    sum_in_order(own_shard(r, piece), addends, r->n_groups, piece_size(r, piece));
    mpi_flow_allow(&r->job, RECEIVE_PARTIAL, (piece + 3) * r->n_level2);
}

static void reduce_pieces(Reduction *r) {
    if (converts(r))
        convert_addends(r, 0);
    for (int64_t piece = 0; piece < r->n_pieces; piece++) {
        if (converts(r) && piece + 1 < r->n_pieces)
            convert_addends(r, piece + 1);
        add_addends(r, piece);
        if (has_level2(r) && piece > 0)
            add_partials(r, piece - 1);
    }
    if (has_level2(r))
        add_partials(r, r->n_pieces - 1);
}

static void cut_staging(Reduction *r) {
    char *at = r->args.call.comm->staging;
    size_t level1 = (size_t)(r->n_level1 * r->piece_len) * dtype_bytes(r->args.wire);
    for (int parity = 0; parity < 2; parity++) {
        r->received[parity] = at;
        at += level1;
        r->to_send[parity] = at;
        at += converts(r) ? level1 : 0;
    }
    for (int parity = 0; parity < 2 && has_level2(r); parity++) {
        r->partial[parity] = (float *)(void *)at;
        r->partials[parity] = r->partial[parity] + r->n_cuts * r->piece_len;
        at = (char *)(r->partials[parity] + r->n_level2 * r->piece_len);
    }
}

static Status run_reduce_scatter(void *arguments) {
    const ReduceCall *args = arguments;
    const CommMpi *comm = args->call.comm;
    CommShape shape = comm->base.options.shape;
    if (args->len == 0)
        return OK;
    Reduction r = {.args = *args,
                   .job = mpi_job(&args->call, COMM_REDUCE_SCATTER),
                   .group_size = shape.reduce_group,
                   .n_groups = shape.n_ranks / shape.reduce_group,
                   .group = comm->base.rank / shape.reduce_group,
                   .local = comm->base.rank % shape.reduce_group,
                   .piece_len = comm_piece_len(&comm->base.options)};
    r.n_cuts = shape.shard_group < shape.n_ranks ? 1 : r.n_groups;
    r.n_pieces = (args->len + r.piece_len - 1) / r.piece_len;
    r.n_level1 = (int64_t)(r.group_size - 1) * r.n_cuts;
    r.n_level2 = r.n_groups - 1;
    cut_staging(&r);
    int64_t n1 = r.n_pieces * r.n_level1, n2 = r.n_pieces * r.n_level2;
    r.job.context = &r;
    r.job.n_flows = has_level2(&r) ? 4 : 2;
    r.job.flows[SEND] = (MpiFlow){.sends = true, .n = n1, .allowed = converts(&r) ? 0 : n1, .message = send_addend};
    r.job.flows[RECEIVE] =
        (MpiFlow){.n = n1, .allowed = 2 * r.n_level1 < n1 ? 2 * r.n_level1 : n1, .message = receive_addend};
    r.job.flows[SEND_PARTIAL] = (MpiFlow){.sends = true, .n = n2, .message = send_partial};
    r.job.flows[RECEIVE_PARTIAL] =
        (MpiFlow){.n = n2, .allowed = 2 * r.n_level2 < n2 ? 2 * r.n_level2 : n2, .message = receive_partial};
    mpi_job_begin(&r.job);
    reduce_pieces(&r);
    mpi_job_end(&r.job);
    return OK;
}

void mpi_reduce_scatter(Comm *base, Stream *stream, const char *what, void *shard, Dtype shard_dtype, const float *full,
                        int64_t len, Dtype wire, bool add) {
    CommMpi *comm = (CommMpi *)base;
    if (!comm->reduces)
        comm->reduces = stream;
    if (comm->reduces != stream || wire != base->options.wire) {
        stream_fail(stream,
                    fail("%s: reductions on two streams, or in another dtype than comm was opened for: this is a bug "
                         "in zero.c",
                         what));
        return;
    }
    ReduceCall call = {.shard = shard, .shard_dtype = shard_dtype, .wire = wire, .full = full, .len = len, .add = add};
    mpi_enqueue(comm, stream, what, run_reduce_scatter, &call.call, sizeof call);
}
