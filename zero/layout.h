// layout: which rank owns which elements of which tensor. Pure arithmetic: no memory, no communication.
//
// Every unit (llm/model.h) is one flat array, padded with zeros to a multiple of 64·N elements and cut into S equal shards,
// where S is the number of ranks it is sharded over (the shard group). Rank r owns elements [s·shard_len, (s+1)·shard_len)
// of each unit, s = r mod S. The order of elements does not depend on N; only the padding and the cuts do. A shard may begin
// inside a tensor, hold several, or hold nothing but padding: any size works with any N.
// A shard is N/S whole cuts of 1/N of the unit: what is summed cut by cut (the norm) does not depend on S.
//
// Units lie one after the other in a rank's full array (full_offset) and shards in a rank's shard array (shard_offset).
// Idea: ZeRO (Rajbhandari et al. 2020), with units instead of buckets, as in FSDP (Zhao et al. 2023).
#ifndef ZERO_LAYOUT_H
#define ZERO_LAYOUT_H

#include "llm/model.h"

typedef struct UnitLayout {
    UnitSpec spec;
    int64_t full_len;      // elements with padding: a multiple of 64·N
    int64_t shard_len;     // full_len / S
    int64_t cut_len;       // full_len / N
    int64_t full_offset;   // in the full array
    int64_t shard_offset;  // in the shard array
} UnitLayout;

typedef struct Layout {
    int n_units;           // layers + 2
    UnitLayout *units;
    int n_ranks;           // N
    int group;             // S, ranks a unit is sharded over; divides N
    int rank;              // r
    int shard;             // s = r mod S
    bool tied;             // unit n_units-1 uses unit 0's token table
    int64_t n_params;      // Ψ, without gaps and padding
    int64_t full_len;      // Σ full_len
    int64_t shard_len;     // Σ shard_len
    int64_t max_block_len; // the largest full_len of units 1 … L
    int64_t ends_len;      // elements of the slot that units 0 and L+1 share: the larger one, or both where the head is tied
} Layout;

// The layout of a model for `rank` of n_ranks, each unit cut over `group` ranks (0: all). Fails when group does not divide
// n_ranks. layout_free frees what it allocated (nothing after a failure; a zeroed Layout is fine).
Status layout_make(const ModelConfig *config, int n_ranks, int group, int rank, Layout *layout);
// The same from the units themselves, which are copied: for checkpoints, whose manifest says what the units were.
Status layout_from_units(const UnitSpec *units, int n_units, bool tied, int n_ranks, int group, int rank, Layout *layout);
void layout_free(Layout *layout);

int64_t layout_longest_shard(const Layout *layout);  // shard_len of the longest unit

// Which slot holds unit u when it is whole: blocks take turns with two, units 0 and L+1 share one, of which a tied head needs
// both parts at once. The same for parameters (zero/params.h) and gradients (zero/grads.h).
enum { SLOT_ENDS, SLOT_BLOCK_A, SLOT_BLOCK_B, SLOT_TIED_NORM, N_SLOTS };
int layout_slot(const Layout *layout, int u);

// The tensors that a range of a unit's elements meets, in order: calls visit(context, tensor, first element inside the
// tensor, first element inside the range, count) for each; gaps and padding are not visited.
typedef void (*LayoutVisit)(void *context, const TensorSpec *tensor, int64_t in_tensor, int64_t in_range, int64_t count);
void layout_visit(const UnitLayout *unit, int64_t begin, int64_t len, LayoutVisit visit, void *context);

#endif
