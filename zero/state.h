// state: the optimizer state of a rank, as checkpoints and hashes see it: pieces of fp32 elements, copied to and from
// the host.
//
// Through this view they need to know nothing of devices, stages or offload, and can be tested without them.
#ifndef ZERO_STATE_H
#define ZERO_STATE_H

#include "zero/comm.h"
#include "zero/hash.h"
#include "zero/layout.h"

// Kinds of state that a unit's shard has, as checkpoints name them.
typedef enum StateKind { STATE_MASTER, STATE_M, STATE_V, STATE_KINDS } StateKind;
extern const char *const state_kind_names[STATE_KINDS];  // "master", "m", "v"

// 4 MiB: what moves at a time, and what has one hash in a checkpoint.
enum { STATE_PIECE_LEN = 1 << 20, STATE_PIECE_BYTES = STATE_PIECE_LEN * 4 };

typedef struct StateView {
    bool has[STATE_KINDS];  // SGD has no v
    float *staging;         // (STATE_PIECE_LEN) host memory that both functions below can copy to and from
    void *context;
    // Elements [begin, begin+len) of the rank's shard of unit u, len <= STATE_PIECE_LEN, to and from host memory. They
    // return when the copy is done.
    Status (*fetch)(void *context, StateKind kind, int u, int64_t begin, int64_t len, float *to);
    Status (*store)(void *context, StateKind kind, int u, int64_t begin, int64_t len, const float *from);
    // Where the elements from `begin` on lie, if that is host memory; NULL: there is only fetch.
    const float *(*look)(void *context, StateKind kind, int u, int64_t begin);
} StateView;

// The two strings that say whether two runs hold the same bits (zero/hash.h): of the master weights and of the moments.
// Collective; the same text on every rank.
Status state_hashes(const Layout *layout, Comm *comm, const StateView *view, char weights[HASH_TEXT_BYTES],
                    char moments[HASH_TEXT_BYTES]);

#endif
