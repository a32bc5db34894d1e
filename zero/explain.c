#include "zero/explain.h"

#include <math.h>
#include <stdio.h>

#include "zero/state.h"

// Elements [begin, begin+len) of a tensor are at `values`: keep the first that is not finite.
static void look_at(Explain *e, int u, int tensor, int64_t begin, int64_t len, const void *values, Dtype dtype) {
    const char *at = values;
    for (int64_t done = 0; done < len && !e->first.found && e->status == OK; done += STATE_PIECE_LEN) {
        int64_t n = len - done < STATE_PIECE_LEN ? len - done : STATE_PIECE_LEN;
        stream_copy(e->compute, e->staging, at + (size_t)done * dtype_bytes(dtype), (size_t)n * dtype_bytes(dtype));
        e->status = stream_sync(e->compute);
        for (int64_t i = 0; i < n && !e->first.found; i++) {
            float value = dtype_load(dtype, e->staging, (size_t)i);
            if (!isfinite(value))
                e->first = (NonFinite){true, e->micro, u, tensor, begin + done + i, value};
        }
    }
}

void explain_look(void *context, int u, const float *gradient) {
    Explain *e = context;
    const UnitSpec *unit = &e->layout->units[u].spec;
    for (int t = unit->n_tensors - 1; t >= 0; t--)  // backward forms the last tensor first
        look_at(e, u, t, 0, unit->tensors[t].len, gradient + unit->tensors[t].offset, DTYPE_FP32);
}

typedef struct Ranges {
    int n;
    struct {
        const TensorSpec *tensor;
        int64_t in_tensor, in_range, len;
    } at[MAX_TENSORS];
} Ranges;

static void collect(void *context, const TensorSpec *tensor, int64_t in_tensor, int64_t in_range, int64_t count) {
    Ranges *r = context;
    r->at[r->n].tensor = tensor;
    r->at[r->n].in_tensor = in_tensor;
    r->at[r->n].in_range = in_range;
    r->at[r->n++].len = count;
}

// The same for the rank's shards of the reduced gradient.
static void look_at_shards(Explain *e) {
    Dtype dtype = grads_dtype(e->grads);
    for (int u = e->layout->n_units - 1; u >= 0; u--) {
        const UnitLayout *unit = &e->layout->units[u];
        const char *shard = grads_shard(e->grads, u, e->layout->shard);
        Ranges ranges = {0};
        grads_wait(e->grads, u);
        layout_visit(unit, e->layout->shard * unit->shard_len, unit->shard_len, collect, &ranges);
        for (int i = ranges.n - 1; i >= 0; i--)
            look_at(e, u, (int)(ranges.at[i].tensor - unit->spec.tensors), ranges.at[i].in_tensor, ranges.at[i].len,
                    shard + (size_t)ranges.at[i].in_range * dtype_bytes(dtype), dtype);
    }
}

// Which rank's find comes first; every rank gets it. -1: there is none.
static Status agree_on_first(Explain *e, NonFinite *first, int *rank) {
    const NonFinite *f = &e->first;
    double none = INFINITY;
    double order = f->found ? ((double)f->micro * e->layout->n_units - f->unit) * MAX_TENSORS - f->tensor : none;
    double earliest = -order;
    TRY(comm_max(e->comm, "first gradient that is not finite", &earliest, 1));
    double lowest = f->found && -order == earliest ? -comm_rank(e->comm) : -none;
    TRY(comm_max(e->comm, "first gradient that is not finite", &lowest, 1));
    *rank = isfinite(lowest) ? (int)-lowest : -1;
    *first = *f;
    return *rank < 0 ? OK : comm_broadcast(e->comm, "first gradient that is not finite", first, sizeof *first, *rank);
}

Status explain_skips(Explain *e, int64_t step, int64_t skipped_in_a_row, double loss_scale) {
    char skips[128], where[160];
    NonFinite first;
    int rank;
    snprintf(skips, sizeof skips,
             "step %lld: %lld step%s in a row %s skipped because gradients were not finite (--max-skips)",
             (long long)step, (long long)skipped_in_a_row, skipped_in_a_row == 1 ? "" : "s",
             skipped_in_a_row == 1 ? "was" : "were");
    TRY(e->status);
    TRY(agree_on_first(e, &first, &rank));
    bool local = rank >= 0;
    if (!local) {
        look_at_shards(e);
        TRY(e->status);
        TRY(agree_on_first(e, &first, &rank));
    }
    if (rank < 0)
        return fail(
            "%s. Every gradient is finite, but their norm is too large for fp32, at loss scale %g. A lower --lr or "
            "--loss-scale may help",
            skips, loss_scale);
    const UnitSpec *unit = &e->layout->units[first.unit].spec;
    snprintf(where, sizeof where, "%s (unit %d), element %lld: %g", unit->tensors[first.tensor].name, first.unit,
             (long long)first.element, first.value);
    if (!local)
        return fail(
            "%s. Each rank's own gradients are finite; when they are added up and rounded, the first tensor in the "
            "order of backward that is not finite is %s, at loss scale %g. The weights are those before the first "
            "skipped step; --reduce-dtype fp32, --grad-dtype fp32 or --dtype bf16 may help",
            skips, where, loss_scale);
    return fail(
        "%s. The first tensor in the order of backward that is not finite is %s, on rank %d, in micro-batch %d, at "
        "loss scale %g. The weights are those before the first skipped step; a lower --lr, a longer --warmup or "
        "--dtype bf16 may help",
        skips, where, rank, first.micro + 1, loss_scale);
}
