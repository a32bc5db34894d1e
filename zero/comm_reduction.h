// comm_reduction: the pieces of one reduction and where they are, for those who carry it out (comm_mpi, comm_nccl). Who
// adds what: comm_shape.c.
//
// A piece is elements [k·piece_len, (k+1)·piece_len) of every cut. Level 1, inside a group: in round 1, 2, … each rank
// sends to the round-th local peer after it and receives from the round-th before it, n_cuts messages a round. Level 2,
// between ranks with the same local index: the same with groups instead of peers, one message a round. Staging is there
// twice, for even and odd pieces, so that one piece travels while another is added.
#ifndef ZERO_COMM_REDUCTION_H
#define ZERO_COMM_REDUCTION_H

#include "zero/comm_backend.h"

typedef struct Reduction {
    int group_size, n_groups;  // G, M
    int group, local;          // this rank is group·G + local
    int n_cuts;                // cuts that each local peer adds up: M, or 1 in hybrid sharding
    Dtype wire;
    const float *full;
    int64_t len;  // of a cut
    int64_t piece_len, n_pieces;
    int64_t n_level1, n_level2;  // messages a piece, each way
    // staging: [even or odd piece]
    char *to_send[2];    // (G-1, n_cuts, piece_len) wire: addends that had to be converted, by round
    char *received[2];   // (G-1, n_cuts, piece_len) wire: addends of the neighbours, by round
    float *partial[2];   // (n_cuts, piece_len): sums of this group
    float *partials[2];  // (M-1, piece_len): sums of other groups for the own cut, by round
} Reduction;

// A reduction by rank `rank`, with the staging (comm_staging_bytes) cut up for it.
Reduction reduction_make(const CommOptions *options, int rank, const float *full, int64_t len, char *staging);

// Message i of a piece of level 1: which round, which cut of the local peer; of level 2, with n_cuts = 1.
typedef struct Place {
    int round, cut;
} Place;
static inline Place reduction_place(int64_t i, int n_cuts) {
    Place place = {1 + (int)(i / n_cuts), (int)(i % n_cuts)};
    return place;
}

static inline bool reduction_converts(const Reduction *r) {
    return r->wire != DTYPE_FP32;  // fp32 is sent from where it is
}
static inline bool reduction_has_level2(const Reduction *r) {
    return r->n_groups > 1;
}
static inline int64_t reduction_piece_at(const Reduction *r, int64_t piece) {
    return piece * r->piece_len;
}
static inline int64_t reduction_piece_size(const Reduction *r, int64_t piece) {
    int64_t left = r->len - piece * r->piece_len;
    return left < r->piece_len ? left : r->piece_len;
}
// This rank's addend for cut number m of local peer j, at the piece.
static inline const float *reduction_addend(const Reduction *r, int j, int m, int64_t piece) {
    int64_t cut = (int64_t)m * r->group_size + j;
    return r->full + cut * r->len + piece * r->piece_len;
}
// Buffer number i of a staging area.
static inline char *reduction_wire(const Reduction *r, char *area, int64_t i) {
    return area + (size_t)(i * r->piece_len) * dtype_bytes(r->wire);
}
static inline float *reduction_fp32(const Reduction *r, float *area, int64_t i) {
    return area + i * r->piece_len;
}
// What this rank sends in level 1 as message i of the piece, to the local peer `to`.
static inline const void *reduction_sends(const Reduction *r, int to, int64_t i, int64_t piece) {
    return reduction_converts(r) ? (const void *)reduction_wire(r, r->to_send[piece % 2], i)
                                 : reduction_addend(r, to, reduction_place(i, r->n_cuts).cut, piece);
}
// The partial sum that group `to` gets in level 2: its cut, or in hybrid sharding the only one.
static inline float *reduction_partial(const Reduction *r, int to, int64_t piece) {
    return reduction_fp32(r, r->partial[piece % 2], r->n_cuts > 1 ? to : 0);
}

#endif
