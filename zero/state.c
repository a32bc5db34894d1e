#include "zero/state.h"

const char *const state_kind_names[STATE_KINDS] = {"master", "m", "v"};

Status state_hashes(const Layout *layout, Comm *comm, const StateView *view, char weights[HASH_TEXT_BYTES],
                    char moments[HASH_TEXT_BYTES]) {
    Hash128 hashes[2] = {0, 0};                  // weights, moments
    bool counts = layout->rank < layout->group;  // further groups hold copies of the first one's shards
    for (int u = 0; u < layout->n_units && counts; u++) {
        const UnitLayout *unit = &layout->units[u];
        for (StateKind kind = 0; kind < STATE_KINDS; kind++) {
            for (int64_t begin = 0; begin < unit->shard_len && view->has[kind]; begin += STATE_PIECE_LEN) {
                int64_t len = unit->shard_len - begin < STATE_PIECE_LEN ? unit->shard_len - begin : STATE_PIECE_LEN;
                TRY(view->fetch(view->context, kind, u, begin, len, view->staging));
                hash_unit(unit, state_kind_names[kind], layout->shard * unit->shard_len + begin, len, view->staging,
                          &hashes[kind != STATE_MASTER], NULL);
            }
        }
    }
    TRY(comm_sum_u128(comm, "hashes of the state", hashes, 2));
    hash_text(hashes[0], weights);
    hash_text(hashes[1], moments);
    return OK;
}
