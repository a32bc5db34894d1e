#include "zero/comm_reduction.h"

static void cut_staging(Reduction *r, char *staging) {
    size_t level1 = (size_t)(r->n_level1 * r->piece_len) * dtype_bytes(r->wire);
    for (int parity = 0; parity < 2; parity++) {
        r->received[parity] = staging;
        staging += level1;
        r->to_send[parity] = staging;
        staging += reduction_converts(r) ? level1 : 0;
    }
    for (int parity = 0; parity < 2 && reduction_has_level2(r); parity++) {
        r->partial[parity] = (float *)(void *)staging;
        r->partials[parity] = r->partial[parity] + r->n_cuts * r->piece_len;
        staging = (char *)(r->partials[parity] + r->n_level2 * r->piece_len);
    }
}

Reduction reduction_make(const CommOptions *options, int rank, const float *full, int64_t len, char *staging) {
    CommShape shape = options->shape;
    Reduction r = {.group_size = shape.reduce_group,
                   .n_groups = shape.n_ranks / shape.reduce_group,
                   .group = rank / shape.reduce_group,
                   .local = rank % shape.reduce_group,
                   .wire = options->wire,
                   .full = full,
                   .len = len,
                   .piece_len = comm_piece_len(options)};
    r.n_cuts = shape.shard_group < shape.n_ranks ? 1 : r.n_groups;
    r.n_pieces = (len + r.piece_len - 1) / r.piece_len;
    r.n_level1 = (int64_t)(r.group_size - 1) * r.n_cuts;
    r.n_level2 = r.n_groups - 1;
    cut_staging(&r, staging);
    return r;
}
