// checkpoint, loading: compare, then read exactly the pieces that the rank's shards need.
#include <inttypes.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zero/agree.h"
#include "zero/checkpoint.h"
#include "zero/rank_file.h"

// ---- is it this model, this run? ----

static void shape_text(const TensorSpec *tensor, char *text, size_t bytes) {
    if (tensor->n_dims == 2)
        snprintf(text, bytes, "(%" PRId64 ", %" PRId64 ")", tensor->shape[0], tensor->shape[1]);
    else
        snprintf(text, bytes, "(%" PRId64 ")", tensor->shape[0]);
}

static Status check_unit(const UnitSpec *saved, const UnitSpec *unit, int u) {
    for (int t = 0; t < saved->n_tensors && t < unit->n_tensors; t++) {
        const TensorSpec *a = &saved->tensors[t], *b = &unit->tensors[t];
        char a_shape[64], b_shape[64];
        shape_text(a, a_shape, sizeof a_shape);
        shape_text(b, b_shape, sizeof b_shape);
        if (strcmp(a->name, b->name) != 0 || strcmp(a_shape, b_shape) != 0 || a->offset != b->offset)
            return fail(
                "it is of another model: tensor %d of unit %d is %s %s at element %lld there, and %s %s at element "
                "%lld "
                "in this run",
                t, u, a->name, a_shape, (long long)a->offset, b->name, b_shape, (long long)b->offset);
    }
    if (saved->n_tensors != unit->n_tensors || saved->len != unit->len)
        return fail("it is of another model: unit %d has %d tensors there, %d in this run", u, saved->n_tensors,
                    unit->n_tensors);
    return OK;
}

static Status check_model(const Manifest *manifest, const Layout *layout) {
    const Layout *saved = &manifest->layout;
    if (saved->n_units != layout->n_units)
        return fail("it is of another model: %d layers there, %d in this run", saved->n_units - 2, layout->n_units - 2);
    if (saved->tied != layout->tied)
        return fail("it is of another model: the head is %s there", saved->tied ? "tied" : "not tied");
    for (int u = 0; u < layout->n_units; u++)
        TRY(check_unit(&saved->units[u].spec, &layout->units[u].spec, u));
    return OK;
}

static Status check_kinds(const Manifest *manifest, const StateView *view) {
    bool saved[STATE_KINDS] = {false};
    for (int d = 0; d < manifest->n_datasets; d++)
        saved[manifest->datasets[d].kind] = true;
    for (StateKind kind = 0; kind < STATE_KINDS; kind++)
        if (saved[kind] != view->has[kind])
            return fail(
                "it is of another optimizer: state \"%s\" is %s there and %s in this run; choose the --optimizer that "
                "it "
                "was saved with",
                state_kind_names[kind], saved[kind] ? "present" : "absent", view->has[kind] ? "needed" : "not");
    return OK;
}

static void note(char *notes, size_t notes_bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void note(char *notes, size_t notes_bytes, const char *format, ...) {
    size_t used = strlen(notes);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(notes + used, notes_bytes - used, format, arguments);
    va_end(arguments);
}

static Status check_run(const Manifest *manifest, const CheckpointRun *run, const Layout *layout, char *notes,
                        size_t notes_bytes) {
    char differences[1024] = "";
    int n = config_compare(run->config, manifest->config, differences, sizeof differences);
    if (strcmp(run->data, manifest->data) != 0) {
        note(differences, sizeof differences, "data: saved %s, now %s\n", manifest->data, run->data);
        n++;
    }
    if (n > 0 && !run->config->resume_changed)
        return fail("its run had other options:\n%sPass --resume-changed to go on with the options of now",
                    differences);
    note(notes, notes_bytes, "%s", differences);
    if (manifest->layout.n_ranks != layout->n_ranks || manifest->reduce_group != run->reduce_group)
        note(notes, notes_bytes,
             "ranks: saved %d (reduced in groups of %d), now %d (of %d): losses agree to rounding, not bit for bit\n",
             manifest->layout.n_ranks, manifest->reduce_group, layout->n_ranks, run->reduce_group);
    if (strcmp(run->environment, manifest->environment) != 0)
        note(notes, notes_bytes, "environment: saved %s, now %s: bits may differ\n", manifest->environment,
             run->environment);
    return OK;
}

// ---- reading ----

static int64_t max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// Elements of a unit that are both in the rank's shard and in file `file`: [*begin, *end).
static bool overlap(const Layout *layout, const StateDataset *dataset, int file, int64_t *begin, int64_t *end) {
    const UnitLayout *unit = &layout->units[dataset->unit];
    *begin = max_i64(layout->shard * unit->shard_len, file * dataset->len);
    *end = min_i64(min_i64((layout->shard + 1) * unit->shard_len, (file + 1) * dataset->len), unit->spec.len);
    return *begin < *end;
}

static Status load_dataset(int fd, const char *path, const Manifest *manifest, int file, int d, const Layout *layout,
                           const StateView *view) {
    const StateDataset *dataset = &manifest->datasets[d];
    int64_t begin, end, shard_begin = layout->shard * layout->units[dataset->unit].shard_len;
    if (!overlap(layout, dataset, file, &begin, &end))
        return OK;
    int64_t file_begin = file * dataset->len;
    for (int64_t p = (begin - file_begin) / STATE_PIECE_LEN; file_begin + p * STATE_PIECE_LEN < end; p++) {
        int64_t piece_begin = file_begin + p * STATE_PIECE_LEN;
        int64_t from = max_i64(begin, piece_begin), to = min_i64(end, piece_begin + rank_file_piece_len(dataset, p));
        TRY(rank_file_read(fd, path, manifest, file, d, p, view->staging));
        TRY(view->store(view->context, dataset->kind, dataset->unit, from - shard_begin, to - from,
                        view->staging + (from - piece_begin)));
    }
    return OK;
}

static Status load_shards(const char *path, const Manifest *manifest, const Layout *layout, const StateView *view) {
    for (int file = 0; file < manifest->layout.group; file++) {
        bool needed = false;
        int64_t begin, end;
        for (int d = 0; d < manifest->n_datasets; d++)
            needed |= overlap(layout, &manifest->datasets[d], file, &begin, &end);
        if (!needed)
            continue;
        int fd;
        TRY(rank_file_open(path, manifest, file, &fd));
        Status status = OK;
        for (int d = 0; d < manifest->n_datasets && status == OK; d++)
            status = load_dataset(fd, path, manifest, file, d, layout, view);
        close(fd);
        TRY(status);
    }
    return OK;
}

// Damage is an error, never skipped in silence; the advice names the checkpoint before, which only the user may choose.
static Status advise(Status status, const char *path) {
    char copy[PATH_BYTES], before[PATH_BYTES] = "", message[STATUS_MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", status_message());
    snprintf(copy, sizeof copy, "%s", path);
    char *name = basename(copy);
    int64_t *steps = NULL, step = strncmp(name, "step_", 5) == 0 ? strtoll(name + 5, NULL, 10) : 0;
    int n = 0;
    char parent[PATH_BYTES];
    snprintf(parent, sizeof parent, "%s", path);
    const char *out = dirname(parent);
    if (checkpoint_steps(out, &steps, &n) == OK)
        for (int i = 0; i < n && steps[i] < step; i++)
            checkpoint_path(before, out, steps[i]);
    free(steps);
    status_clear();
    if (*before)
        fail(
            "%s\nThis checkpoint cannot be used. To go on from the one before, move this one away and run again: "
            "%s (check it first with --verify)",
            message, before);
    else
        fail("%s\nThis checkpoint cannot be used, and there is none before it in %s", message, out);
    return status;
}

static Status load_collectively(const char *path, const CheckpointRun *run, const Layout *layout, Comm *comm,
                                const StateView *view, Manifest *manifest, char *notes, size_t notes_bytes) {
    Status status = manifest_read(manifest, path);
    if (status != OK)
        status = advise(status, path);
    TRY(agree(comm, "checkpoint manifest", status));

    char uuid[UUID_BYTES];
    memcpy(uuid, manifest->uuid, sizeof uuid);
    TRY(comm_broadcast(comm, "checkpoint uuid", uuid, sizeof uuid, 0));
    if (strcmp(uuid, manifest->uuid) != 0)
        status = fail("this rank sees another checkpoint than rank 0: all ranks must see the same --out");
    if (status == OK)
        status = check_model(manifest, layout);
    if (status == OK)
        status = check_run(manifest, run, layout, notes, notes_bytes);
    if (status == OK)
        status = check_kinds(manifest, view);
    TRY(agree(comm, "checkpoint comparison", status));

    status = load_shards(path, manifest, layout, view);
    if (status != OK)
        status = advise(status, path);
    comm_set_patience(comm, checkpoint_patience(layout, view->has));
    status = agree(comm, "checkpoint rank files", status);
    comm_set_patience(comm, 0);
    return status;
}

Status checkpoint_load(const char *path, const CheckpointRun *run, const Layout *layout, Comm *comm,
                       const StateView *view, RunState *state, char *notes, size_t notes_bytes) {
    Manifest manifest = {0};
    notes[0] = '\0';
    Status status = load_collectively(path, run, layout, comm, view, &manifest, notes, notes_bytes);
    if (status == OK)
        *state = manifest.run;
    else
        status = fail_context(status, "cannot resume from %s", path);
    manifest_free(&manifest);
    return status;
}
