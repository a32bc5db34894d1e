// Reduce-scatter in two levels, piece by piece (comm_reduction.h): the stream's worker adds piece k while the MPI thread
// moves piece k+1.
#include <string.h>

#include "zero/comm_mpi.h"
#include "zero/comm_reduction.h"

enum { SEND, RECEIVE, SEND_PARTIAL, RECEIVE_PARTIAL };  // flows; the last two are level 2

typedef struct ReduceCall {
    MpiCall call;
    void *shard;
    Dtype shard_dtype, wire;
    const float *full;
    int64_t len;
    bool add;
} ReduceCall;

typedef struct MpiReduction {
    ReduceCall args;
    MpiJob job;
    Reduction r;
} MpiReduction;

// ---- messages: piece by piece, in each piece round by round, in each round cut by cut ----

static MpiMessage send_addend(const void *context, int64_t i) {
    const Reduction *r = &((const MpiReduction *)context)->r;
    int64_t piece = i / r->n_level1, in_piece = i % r->n_level1;
    int to = (r->local + reduction_place(in_piece, r->n_cuts).round) % r->group_size;
    return (MpiMessage){.peer = r->group * r->group_size + to,
                        .data = (void *)reduction_sends(r, to, in_piece, piece),
                        .bytes = reduction_piece_size(r, piece) * (int64_t)dtype_bytes(r->wire)};
}
static MpiMessage receive_addend(const void *context, int64_t i) {
    const Reduction *r = &((const MpiReduction *)context)->r;
    int64_t piece = i / r->n_level1, in_piece = i % r->n_level1;
    int from = (r->local - reduction_place(in_piece, r->n_cuts).round + r->group_size) % r->group_size;
    return (MpiMessage){.peer = r->group * r->group_size + from,
                        .data = reduction_wire(r, r->received[piece % 2], in_piece),
                        .bytes = reduction_piece_size(r, piece) * (int64_t)dtype_bytes(r->wire)};
}
static MpiMessage send_partial(const void *context, int64_t i) {
    const Reduction *r = &((const MpiReduction *)context)->r;
    int64_t piece = i / r->n_level2;
    int to = (r->group + reduction_place(i % r->n_level2, 1).round) % r->n_groups;
    return (MpiMessage){.peer = to * r->group_size + r->local,
                        .data = reduction_partial(r, to, piece),
                        .bytes = reduction_piece_size(r, piece) * (int64_t)sizeof(float)};
}
static MpiMessage receive_partial(const void *context, int64_t i) {
    const Reduction *r = &((const MpiReduction *)context)->r;
    int64_t piece = i / r->n_level2, in_piece = i % r->n_level2;
    int from = (r->group - reduction_place(in_piece, 1).round + r->n_groups) % r->n_groups;
    return (MpiMessage){.peer = from * r->group_size + r->local,
                        .data = reduction_fp32(r, r->partials[piece % 2], in_piece),
                        .bytes = reduction_piece_size(r, piece) * (int64_t)sizeof(float)};
}

// ---- the worker's part ----

static SumTarget own_shard(const MpiReduction *m, int64_t piece) {
    const ReduceCall *a = &m->args;
    size_t at = (size_t)reduction_piece_at(&m->r, piece) * dtype_bytes(a->shard_dtype);
    return (SumTarget){(char *)a->shard + at, a->shard_dtype, a->wire, a->add};
}

static void convert_addends(MpiReduction *m, int64_t piece) {
    const Reduction *r = &m->r;
    mpi_flow_wait(&m->job, SEND, (piece - 1) * r->n_level1);  // piece-2 has left the buffers
    for (int64_t i = 0; i < r->n_level1; i++) {
        Place p = reduction_place(i, r->n_cuts);
        int to = (r->local + p.round) % r->group_size;
        round_to(r->wire, reduction_wire(r, r->to_send[piece % 2], i), reduction_addend(r, to, p.cut, piece),
                 reduction_piece_size(r, piece));
    }
    mpi_flow_allow(&m->job, SEND, (piece + 1) * r->n_level1);
}

// Level 1: add the group's addends in rank order.
static void add_addends(MpiReduction *m, int64_t piece) {
    const Reduction *r = &m->r;
    Addend *addends = m->args.call.comm->addends;
    mpi_flow_wait(&m->job, RECEIVE, (piece + 1) * r->n_level1);
    if (reduction_has_level2(r))
        mpi_flow_wait(&m->job, SEND_PARTIAL, (piece - 1) * r->n_level2);  // piece-2 has left `partial`
    for (int cut = 0; cut < r->n_cuts; cut++) {
        for (int j = 0; j < r->group_size; j++) {
            int round = (r->local - j + r->group_size) % r->group_size;
            int64_t i = (int64_t)(round - 1) * r->n_cuts + cut;
            addends[j] = round == 0
                             ? (Addend){reduction_addend(r, r->local, cut, piece), DTYPE_FP32, r->wire}
                             : (Addend){reduction_wire(r, r->received[piece % 2], i), r->wire, r->wire};
        }
        SumTarget target = own_shard(m, piece);
        if (reduction_has_level2(r))
            target = (SumTarget){reduction_fp32(r, r->partial[piece % 2], cut), DTYPE_FP32, DTYPE_FP32, false};
        sum_in_order(target, addends, r->group_size, reduction_piece_size(r, piece));
    }
    mpi_flow_allow(&m->job, RECEIVE, (piece + 3) * r->n_level1);
    if (reduction_has_level2(r))
        mpi_flow_allow(&m->job, SEND_PARTIAL, (piece + 1) * r->n_level2);
}

// Level 2: add the groups' partial sums in their order.
static void add_partials(MpiReduction *m, int64_t piece) {
    const Reduction *r = &m->r;
    Addend *addends = m->args.call.comm->addends;
    mpi_flow_wait(&m->job, RECEIVE_PARTIAL, (piece + 1) * r->n_level2);
    for (int g = 0; g < r->n_groups; g++) {
        int round = (r->group - g + r->n_groups) % r->n_groups;
        const float *data = round == 0 ? reduction_partial(r, g, piece)
                                       : reduction_fp32(r, r->partials[piece % 2], round - 1);
        addends[g] = (Addend){data, DTYPE_FP32, DTYPE_FP32};
    }
    sum_in_order(own_shard(m, piece), addends, r->n_groups, reduction_piece_size(r, piece));
    mpi_flow_allow(&m->job, RECEIVE_PARTIAL, (piece + 3) * r->n_level2);
}

static void reduce_pieces(MpiReduction *m) {
    const Reduction *r = &m->r;
    if (reduction_converts(r))
        convert_addends(m, 0);
    for (int64_t piece = 0; piece < r->n_pieces; piece++) {
        if (reduction_converts(r) && piece + 1 < r->n_pieces)
            convert_addends(m, piece + 1);
        add_addends(m, piece);
        if (reduction_has_level2(r) && piece > 0)
            add_partials(m, piece - 1);
    }
    if (reduction_has_level2(r))
        add_partials(m, r->n_pieces - 1);
}

static Status run_reduce_scatter(void *arguments) {
    const ReduceCall *args = arguments;
    const CommMpi *comm = args->call.comm;
    if (args->len == 0)
        return OK;
    MpiReduction m = {
        .args = *args,
        .job = mpi_job(&args->call, COMM_REDUCE_SCATTER),
        .r = reduction_make(&comm->base.options, comm->base.rank, args->full, args->len, comm->staging)};
    const Reduction *r = &m.r;
    int64_t n1 = r->n_pieces * r->n_level1, n2 = r->n_pieces * r->n_level2;
    m.job.context = &m;
    m.job.n_flows = reduction_has_level2(r) ? 4 : 2;
    m.job.flows[SEND] =
        (MpiFlow){.sends = true, .n = n1, .allowed = reduction_converts(r) ? 0 : n1, .message = send_addend};
    m.job.flows[RECEIVE] =
        (MpiFlow){.n = n1, .allowed = 2 * r->n_level1 < n1 ? 2 * r->n_level1 : n1, .message = receive_addend};
    m.job.flows[SEND_PARTIAL] = (MpiFlow){.sends = true, .n = n2, .message = send_partial};
    m.job.flows[RECEIVE_PARTIAL] =
        (MpiFlow){.n = n2, .allowed = 2 * r->n_level2 < n2 ? 2 * r->n_level2 : n2, .message = receive_partial};
    mpi_job_begin(&m.job);
    reduce_pieces(&m);
    mpi_job_end(&m.job);
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
