#include "zero/replicas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llm/hooks.h"

// The rows of the table: the parameters, then the optimizer's kinds of state.
enum { ROWS = 1 + STATE_KINDS };
static const char *const row_names[ROWS] = {"parameters", "master weights", "first moment", "second moment"};

typedef struct Check {
    const Layout *layout;
    ZeroOptions options;
    Stream *compute;
    const StateView *view;
    Status status;
    // what is being hashed
    const UnitLayout *unit;
    char *memory;  // of the range; NULL: offloaded state of `kind` of unit `u`, which the view fetches
    StateKind kind;
    int u;
    Dtype dtype;
    uint64_t *hashes;  // (MAX_TENSORS) of the unit; 0: this rank has nothing of the tensor
} Check;

static size_t table_index(int row, int u, int tensor, int n_units) {
    return ((size_t)row * (size_t)n_units + (size_t)u) * MAX_TENSORS + (size_t)tensor;
}

// Bytes [at, at + n) of the range to the view's staging buffer.
static Status read_bytes(const Check *c, size_t at, size_t n) {
    float *to = c->view->staging;
    if (!c->memory)
        return c->view->fetch(c->view->context, c->kind, c->u, (int64_t)(at / sizeof *to), (int64_t)(n / sizeof *to), to);
    stream_copy(c->compute, to, c->memory + at, n);
    return stream_sync(c->compute);
}

static void hash_range(void *context, const TensorSpec *tensor, int64_t in_tensor, int64_t in_range, int64_t count) {
    Check *c = context;
    size_t e = dtype_bytes(c->dtype), bytes = (size_t)count * e;
    uint64_t hash = (uint64_t)in_tensor + 1;
    for (size_t at = 0; at < bytes && c->status == OK; at += STATE_PIECE_BYTES) {
        size_t n = bytes - at < STATE_PIECE_BYTES ? bytes - at : STATE_PIECE_BYTES;
        c->status = read_bytes(c, (size_t)in_range * e + at, n);
        hash = hash_bytes(c->view->staging, n, hash);
    }
    c->hashes[tensor - c->unit->spec.tensors] = hash;
}

// Whether each rank has all of it; otherwise its shard.
static bool is_whole(ZeroOptions options, int row) {
    return row == 0 ? options.stage < 3 : options.stage == 0;
}

// This rank's hash of each tensor of each row.
static Status fill_table(Check *c, Comm *comm, Params *params, Optim *optimizer, uint64_t *table) {
    const Layout *l = c->layout;
    for (int u = 0; u < l->n_units; u++) {
        c->unit = &l->units[u];
        for (int row = 0; row < ROWS; row++) {
            bool whole = is_whole(c->options, row);
            int64_t begin = whole ? 0 : l->shard * c->unit->shard_len;
            int64_t len = whole ? c->unit->full_len : c->unit->shard_len;
            c->dtype = row == 0 ? c->options.dtype : DTYPE_FP32;
            c->kind = (StateKind)(row > 0 ? row - 1 : 0);
            c->u = u;
            c->memory = row == 0 ? params_shard(params, u) : (char *)optimizer_state(optimizer, c->kind, u);
            if (row > 0 && !c->memory && !(optimizer_offloaded(optimizer) && c->view->has[c->kind]))
                continue;
            UnitParams gathered = {0};  // row 0: when the unit's all-gather is done, or where its shard is otherwise
            if (row == 0 && (whole || !c->memory))
                gathered = params_acquire(params, u, FORWARD);
            if (row == 0 && !c->memory)
                c->memory = (char *)(uintptr_t)gathered.unit + (size_t)begin * dtype_bytes(c->dtype);
            else if (whole && c->memory)  // the shard lies at its place in the whole
                c->memory -= (size_t)(l->shard * c->unit->shard_len) * dtype_bytes(c->dtype);
            if (row == 0)
                hook_flip(c->compute, comm_rank(comm), u, comm_step(comm), c->memory, c->dtype);
            c->hashes = table + table_index(row, u, 0, l->n_units);
            layout_visit(c->unit, begin, len, hash_range, c);
            if (gathered.unit)
                params_release(params, u);
            TRY(c->status);
        }
    }
    return OK;
}

// The value that most of the ranks with a copy have, in the entries of `tables` (N of them, `size` apart).
static uint64_t most_common(const uint64_t *entry, size_t size, int first, int stride, int n_ranks) {
    uint64_t best = entry[(size_t)first * size];
    int best_votes = 0;
    for (int r = first; r < n_ranks; r += stride) {
        int votes = 0;
        for (int q = first; q < n_ranks; q += stride)
            votes += entry[(size_t)q * size] == entry[(size_t)r * size];
        if (votes > best_votes) {
            best_votes = votes;
            best = entry[(size_t)r * size];
        }
    }
    return best;
}

// Ranks first, first + stride, … hold copies: the first difference among them.
static Status compare(const Layout *l, const uint64_t *tables, size_t size, int row, int first, int stride,
                      int64_t step) {
    for (int u = 0; u < l->n_units; u++) {
        for (int t = 0; t < l->units[u].spec.n_tensors; t++) {
            const uint64_t *entry = tables + table_index(row, u, t, l->n_units);
            uint64_t most = most_common(entry, size, first, stride, l->n_ranks);
            for (int r = first; r < l->n_ranks; r += stride)
                if (entry[(size_t)r * size] != most)
                    return fail(
                        "step %lld: the copies of %s (unit %d, %s) differ: rank %d's is not that of rank %d%s. A bit "
                        "was "
                        "flipped in memory or on the way, or this is a bug in zero.c. Nothing is saved; go on from "
                        "the last checkpoint",
                        (long long)step, l->units[u].spec.tensors[t].name, u, row_names[row], r,
                        r == first ? first + stride : first,
                        l->n_ranks / stride > 2 ? " and most others"
                                                : "; with two copies neither is known to be right");
        }
    }
    return OK;
}

Status replicas_check(const Layout *l, ZeroOptions options, Comm *comm, Stream *compute, Params *params,
                      Optim *optimizer, const StateView *view) {
    int n = comm_size(comm);
    size_t size = table_index(ROWS, 0, 0, l->n_units);
    uint64_t *tables = calloc((size_t)n * size, sizeof *tables);
    if (!tables)
        return fail("out of host memory for the hashes of --check-replicas-every");
    Check c = {.layout = l, .options = options, .compute = compute, .view = view};
    Status status = OK;
    TRY_GOTO(fill_table(&c, comm, params, optimizer, tables + (size_t)comm_rank(comm) * size), done);
    for (int r = 0; r < n; r++)
        TRY_GOTO(comm_broadcast(comm, "hashes of replicas", tables + (size_t)r * size, size * sizeof *tables, r), done);
    for (int row = 0; row < ROWS; row++) {
        int stride = is_whole(options, row) ? 1 : l->group;
        for (int first = 0; first < stride; first++)
            TRY_GOTO(compare(l, tables, size, row, first, stride, comm_step(comm)), done);
    }
done:
    free(tables);
    return status;
}
