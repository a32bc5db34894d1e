#include "zero/layout.h"

#include <stdlib.h>

static int64_t round_up(int64_t len, int64_t multiple) {
    return (len + multiple - 1) / multiple * multiple;
}

static int64_t max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

Status layout_from_units(const UnitSpec *units, int n_units, bool tied, int n_ranks, int group, int rank,
                         Layout *layout) {
    if (n_ranks < 1 || rank < 0 || rank >= n_ranks)
        return fail("cannot lay out the model: rank %d of %d ranks does not exist", rank, n_ranks);
    if (group == 0)
        group = n_ranks;
    if (group < 1 || n_ranks % group != 0)
        return fail_usage(
            "--shard-group %d does not divide the number of ranks, %d; choose a divisor, or 0 for all ranks", group,
            n_ranks);
    if (n_units < 2)
        return fail("cannot lay out the model: it has %d units, but embeddings and head are two", n_units);

    *layout = (Layout){
        .n_units = n_units, .n_ranks = n_ranks, .group = group, .rank = rank, .shard = rank % group, .tied = tied};
    layout->units = calloc((size_t)n_units, sizeof *layout->units);
    if (!layout->units)
        return fail("cannot lay out the model: no memory for %d units", n_units);

    for (int u = 0; u < n_units; u++) {
        UnitLayout *unit = &layout->units[u];
        unit->spec = units[u];
        unit->full_len = round_up(unit->spec.len, (int64_t)TENSOR_ALIGN * n_ranks);
        unit->shard_len = unit->full_len / group;
        unit->cut_len = unit->full_len / n_ranks;
        unit->full_offset = layout->full_len;
        unit->shard_offset = layout->shard_len;
        layout->full_len += unit->full_len;
        layout->shard_len += unit->shard_len;
        for (int t = 0; t < unit->spec.n_tensors; t++)
            layout->n_params += unit->spec.tensors[t].len;
        if (u > 0 && u < n_units - 1)
            layout->max_block_len = max_i64(layout->max_block_len, unit->full_len);
    }
    int64_t first = layout->units[0].full_len, last = layout->units[n_units - 1].full_len;
    layout->ends_len = tied ? first + last : max_i64(first, last);
    return OK;
}

Status layout_make(const ModelConfig *config, int n_ranks, int group, int rank, Layout *layout) {
    int n_units = model_n_units(config);
    UnitSpec *units = calloc((size_t)n_units, sizeof *units);
    if (!units)
        return fail("cannot lay out the model: no memory for %d units", n_units);
    for (int u = 0; u < n_units; u++)
        model_unit(config, u, &units[u]);
    Status status = layout_from_units(units, n_units, config->tied, n_ranks, group, rank, layout);
    free(units);
    return status;
}

void layout_free(Layout *layout) {
    free(layout->units);
    *layout = (Layout){0};
}

int64_t layout_longest_shard(const Layout *layout) {
    int64_t longest = 0;
    for (int u = 0; u < layout->n_units; u++)
        longest = max_i64(longest, layout->units[u].shard_len);
    return longest;
}

int layout_slot(const Layout *layout, int u) {
    if (u == 0)
        return SLOT_ENDS;
    if (u == layout->n_units - 1)
        return layout->tied ? SLOT_TIED_NORM : SLOT_ENDS;
    return u % 2 ? SLOT_BLOCK_A : SLOT_BLOCK_B;
}

void layout_visit(const UnitLayout *unit, int64_t begin, int64_t len, LayoutVisit visit, void *context) {
    int64_t end = begin + len;
    for (int t = 0; t < unit->spec.n_tensors; t++) {
        const TensorSpec *tensor = &unit->spec.tensors[t];
        int64_t first = max_i64(begin, tensor->offset);
        int64_t last = tensor->offset + tensor->len < end ? tensor->offset + tensor->len : end;
        if (first < last)
            visit(context, tensor, first - tensor->offset, first - begin, last - first);
    }
}
