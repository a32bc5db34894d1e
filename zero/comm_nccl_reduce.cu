// Reduce-scatter in two levels, piece by piece (comm_reduction.h): a piece is added on the stream `sums` while the next
// one travels on the collective's stream. The sums are those of comm_mpi, in the same order and with the same bits.
#include "zero/comm_nccl.cuh"
#include "zero/comm_nccl_sum.cuh"

extern "C" {
#include "zero/comm_reduction.h"
}

typedef struct NcclReduction {
    const NcclCall *call;
    CommNccl *c;
    Reduction r;
    cudaStream_t sums;
    void *shard;
    Dtype shard_dtype;
    bool add;
} NcclReduction;

// ---- level 1 ----

// Convert what a piece sends. Its buffers are free: on `sums`, the sum of piece-2 came before, after its exchange.
static void pack(const NcclReduction *n, int64_t piece) {
    const Reduction *r = &n->r;
    Pack a = {.full = r->full + reduction_piece_at(r, piece), .full_stride = r->len, .to = r->to_send[piece % 2],
              .to_stride = r->piece_len, .dtype = r->wire, .n = static_cast<int>(r->n_level1), .n_cuts = r->n_cuts,
              .group_size = r->group_size, .local = r->local, .first_round = 1,
              .len = reduction_piece_size(r, piece)};
    pack_cuts(&a, n->sums);
    event_record(n->c->packed[piece % 2], n->c->sums);
    stream_wait(n->call->stream, n->c->packed[piece % 2]);
}

// Each rank gets its neighbours' addends for its cuts.
static void exchange(const NcclReduction *n, int64_t piece) {
    const Reduction *r = &n->r;
    if (r->n_level1 > 0 && reduction_converts(r))
        pack(n, piece);
    stream_wait(n->call->stream, n->c->summed[piece % 2]);  // piece-2 has left `received`
    const size_t len = static_cast<size_t>(reduction_piece_size(r, piece));
    const ncclDataType_t type = nccl_type(r->wire);
    nccl_check(n->call, nccl.ncclGroupStart());
    for (int64_t i = 0; i < r->n_level1; i++) {
        const int round = reduction_place(i, r->n_cuts).round, first = r->group * r->group_size;
        const int to = (r->local + round) % r->group_size, from = (r->local - round + r->group_size) % r->group_size;
        nccl_check(n->call, nccl.ncclSend(reduction_sends(r, to, i, piece), len, type, first + to, n->c->world, n->call->s));
        nccl_check(n->call, nccl.ncclRecv(reduction_wire(r, r->received[piece % 2], i), len, type, first + from,
                                     n->c->world, n->call->s));
    }
    nccl_check(n->call, nccl.ncclGroupEnd());
    event_record(n->c->exchanged[piece % 2], n->call->stream);
}

static void add_addends(const NcclReduction *n, int64_t piece) {
    const Reduction *r = &n->r;
    RankSum a = {.own = reduction_addend(r, r->local, 0, piece), .own_stride = r->group_size * r->len,
                 .others = r->received[piece % 2], .stride = r->piece_len, .dtype = r->wire, .n = r->group_size,
                 .place = r->local, .n_cuts = r->n_cuts, .to = nullptr, .to_stride = r->piece_len,
                 .to_dtype = DTYPE_FP32, .rounded = DTYPE_FP32, .add = false,
                 .len = reduction_piece_size(r, piece)};
    if (reduction_has_level2(r)) {
        a.to = r->partial[piece % 2];
    } else {
        a.to = static_cast<char *>(n->shard) + reduction_piece_at(r, piece) * dtype_bytes(n->shard_dtype);
        a.to_dtype = n->shard_dtype;
        a.rounded = r->wire;
        a.add = n->add;
    }
    stream_wait(n->c->sums, n->c->exchanged[piece % 2]);
    sum_ranks(&a, n->sums);
    event_record(n->c->summed[piece % 2], n->c->sums);
}

// ---- level 2 ----

// The sums of this group for the other groups' cuts. `partials` is free: on `sums`, piece-2 was added before.
static void exchange_partials(const NcclReduction *n, int64_t piece) {
    const Reduction *r = &n->r;
    const size_t len = static_cast<size_t>(reduction_piece_size(r, piece));
    stream_wait(n->call->stream, n->c->summed[piece % 2]);
    nccl_check(n->call, nccl.ncclGroupStart());
    for (int64_t i = 0; i < r->n_level2; i++) {
        const int round = reduction_place(i, 1).round;
        const int to = (r->group + round) % r->n_groups, from = (r->group - round + r->n_groups) % r->n_groups;
        nccl_check(n->call, nccl.ncclSend(reduction_partial(r, to, piece), len, ncclFloat32,
                                     to * r->group_size + r->local, n->c->world, n->call->s));
        nccl_check(n->call, nccl.ncclRecv(reduction_fp32(r, r->partials[piece % 2], i), len, ncclFloat32,
                                     from * r->group_size + r->local, n->c->world, n->call->s));
    }
    nccl_check(n->call, nccl.ncclGroupEnd());
    event_record(n->c->crossed[piece % 2], n->call->stream);
}

static void add_partials(const NcclReduction *n, int64_t piece) {
    const Reduction *r = &n->r;
    RankSum a = {.own = reduction_partial(r, r->group, piece), .own_stride = 0, .others = r->partials[piece % 2],
                 .stride = r->piece_len, .dtype = DTYPE_FP32, .n = r->n_groups, .place = r->group, .n_cuts = 1,
                 .to = static_cast<char *>(n->shard) + reduction_piece_at(r, piece) * dtype_bytes(n->shard_dtype),
                 .to_stride = 0, .to_dtype = n->shard_dtype, .rounded = r->wire, .add = n->add,
                 .len = reduction_piece_size(r, piece)};
    stream_wait(n->c->sums, n->c->crossed[piece % 2]);
    sum_ranks(&a, n->sums);
}

void nccl_reduce_in_order(const NcclCall *call, void *shard, Dtype shard_dtype, const float *full, int64_t len, bool add) {
    CommNccl *c = call->comm;
    const NcclReduction n = {call, c, reduction_make(&c->base.options, c->base.rank, full, len, c->staging),
                             nccl_own_stream(call, c->sums), shard, shard_dtype, add};
    if (!n.sums)
        return;
    event_record(c->ready, call->stream);
    stream_wait(c->sums, c->ready);
    exchange(&n, 0);
    for (int64_t piece = 0; piece < n.r.n_pieces; piece++) {
        if (piece + 1 < n.r.n_pieces)
            exchange(&n, piece + 1);
        add_addends(&n, piece);
        if (!reduction_has_level2(&n.r))
            continue;
        exchange_partials(&n, piece);
        if (piece > 0)
            add_partials(&n, piece - 1);
    }
    if (reduction_has_level2(&n.r))
        add_partials(&n, n.r.n_pieces - 1);
    event_record(c->finished, c->sums);
    stream_wait(call->stream, c->finished);
}
