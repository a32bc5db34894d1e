// offload_state: the optimizer's state of a rank, in host memory or in a file on NVMe (--offload-optimizer).
//
// It holds the rank's shards as fp32 master weights and moments, also in fp32 runs, whose parameters are on the device. The
// update walks over it in tiles, in unit order:
//
//     offload_state_begin(s);
//     while (offload_state_next(s, &tile) == OK && tile.len > 0) {   // the tile's state is in host memory
//         … change tile.state[kind][0 … len) …
//         offload_state_release(s, &tile, true);
//     }
//     offload_state_end(s);
//
// nvme: a tile is one record of the file, its kinds one after the other, each padded to OFFLOAD_PAD_LEN elements, and as
// large as a request of --nvme-buffer bytes. OFFLOAD_BUFFERS of them are in memory: while one is updated, the next ones
// are being read and the last ones written.
#ifndef ZERO_OFFLOAD_STATE_H
#define ZERO_OFFLOAD_STATE_H

#include "zero/layout.h"
#include "zero/offload.h"
#include "zero/state.h"

enum {
    OFFLOAD_TILE_LEN = 1 << 20,  // elements of a tile in host memory
    OFFLOAD_PAD_LEN = 2048,      // elements: whole blocks of a file in fp32 and in 16 bits
    OFFLOAD_BUFFERS = 8,         // of a request's size, for NVMe
    OFFLOAD_READ_AHEAD = 4,      // of them; the others are written, and one is updated
};

typedef struct OffloadState OffloadState;

typedef struct StateTile {
    int u;  // elements [begin, begin + len) of the rank's shard of unit u; len 0: there is no more
    int64_t begin, len;
    float *state[STATE_KINDS];  // host memory; NULL: the optimizer has no such kind
    int number;                 // of the walk's tiles
} StateTile;

Status offload_state_open(Offload *offload, const Layout *layout, OffloadState **state);
void offload_state_close(OffloadState *state);  // NULL is fine

Status offload_state_begin(OffloadState *state);
Status offload_state_next(OffloadState *state, StateTile *tile);
Status offload_state_release(OffloadState *state, const StateTile *tile, bool changed);
Status offload_state_end(OffloadState *state);  // everything is written

// Outside of a walk: any part of the state, to and from host memory (zero/state.h's fetch and store).
Status offload_state_read(OffloadState *state, StateKind kind, int u, int64_t begin, int64_t len, float *to);
Status offload_state_write(OffloadState *state, StateKind kind, int u, int64_t begin, int64_t len, const float *from);

// Elements of a tile: no tile is longer. Begins of tiles are multiples of OFFLOAD_PAD_LEN.
int64_t offload_tile_len(const Layout *layout, const OffloadOptions *options);
int64_t offload_state_unit_bytes(const Layout *layout, const OffloadOptions *options, int u);  // of a unit's records
// Adds what offload_state_open asks for: host bytes by category, and bytes of the file.
void offload_state_plan(const Layout *layout, const OffloadOptions *options, size_t host[MEM_CATEGORIES], size_t *nvme);

#endif
