// replicas: are the copies of one thing still equal?
//
// What ranks hold more than once must be the same bits everywhere: in stages 0–2 the parameters on all ranks, in stage 0
// the optimizer's state as well, and with hybrid sharding the shards of rank r and r + S, r + 2S, … A flipped bit (bad
// memory, a bug) in one copy would go on unseen. --check-replicas-every hashes each tensor on each rank and compares.
#ifndef ZERO_REPLICAS_H
#define ZERO_REPLICAS_H

#include "zero/optimizer.h"

// Collective. Fails on every rank, with the first tensor whose copies differ and the rank that has another value than most
// (with two copies: both ranks). view: how to read what is offloaded of the optimizer, and its staging buffer.
Status replicas_check(const Layout *layout, ZeroOptions options, Comm *comm, Stream *compute, Params *params,
                      Optim *optimizer, const StateView *view);

#endif
