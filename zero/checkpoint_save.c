// checkpoint, saving: rank files by all ranks, then index, manifest and the final name by rank 0.
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "zero/agree.h"
#include "zero/checkpoint_save.h"
#include "zero/index_file.h"
#include "zero/rank_file.h"

struct Save {
    char out[PATH_BYTES], final[PATH_BYTES], partial[PATH_BYTES];
    const Layout *layout;
    Comm *comm;
    Manifest manifest;
};

static Status make_uuid(char uuid[UUID_BYTES]) {
    unsigned char bytes[(UUID_BYTES - 1) / 2];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return fail("no random bytes from the system: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(uuid + 2 * i, 3, "%02x", bytes[i]);
    return OK;
}

// Rank 0: an empty directory without a final name.
static Status begin(Save *save) {
    char path[PATH_BYTES], name[FILE_NAME_BYTES];
    TRY(make_uuid(save->manifest.uuid));
    TRY(durable_remove_tree(save->partial));  // what a killed save left
    TRY(durable_make_dir(save->partial));
    snprintf(name, sizeof name, "shards-%s", save->manifest.uuid);
    TRY(durable_join(path, save->partial, name));
    return durable_make_dir(path);
}

static Status describe(Save *save, const CheckpointRun *run, const bool has[STATE_KINDS], const RunState *state) {
    Manifest *manifest = &save->manifest;
    const Layout *layout = save->layout;
    UnitSpec *units = calloc((size_t)layout->n_units, sizeof *units);
    if (!units)
        return fail("no memory for %d units", layout->n_units);
    for (int u = 0; u < layout->n_units; u++)
        units[u] = layout->units[u].spec;
    Status status = layout_from_units(units, layout->n_units, layout->tied, layout->n_ranks, layout->group,
                                      layout->rank, &manifest->layout);
    free(units);
    TRY(status);
    manifest->run = *state;
    manifest->reduce_group = run->reduce_group;
    manifest->zero_stage = run->config->zero_stage;
    manifest->dtype = run->config->dtype;
    manifest->config = config_to_json(run->config);
    manifest->data = strdup(run->data);
    manifest->environment = strdup(run->environment);
    if (!manifest->config || !manifest->data || !manifest->environment)
        return fail("no memory for the manifest");
    return manifest_tables(manifest, has);
}

// What rank 0 must know of each rank's file: its size and hash, the places of its datasets (as a hash, for they must be
// the same on every rank), and the hashes of its pieces.
enum { REPORT_BYTES, REPORT_HASH, REPORT_PLACES, REPORT_PIECES };

static void make_report(const Manifest *manifest, const RankFile *file, uint64_t *report) {
    report[REPORT_BYTES] = (uint64_t)file->bytes;
    report[REPORT_HASH] = file->hash;
    report[REPORT_PLACES] =
        hash_bytes(manifest->datasets, (size_t)manifest->n_datasets * sizeof *manifest->datasets, 0);
    memcpy(report + REPORT_PIECES, file->pieces, (size_t)manifest->n_pieces * sizeof *report);
}

static void take_report(const Manifest *manifest, RankFile *file, const uint64_t *report) {
    file->bytes = (int64_t)report[REPORT_BYTES];
    file->hash = report[REPORT_HASH];
    memcpy(file->pieces, report + REPORT_PIECES, (size_t)manifest->n_pieces * sizeof *report);
}

// Every rank hears every report, so every rank comes to the same verdict and to the same next collective.
static Status exchange_reports(Manifest *manifest, Comm *comm, uint64_t *report) {
    size_t bytes = (REPORT_PIECES + (size_t)manifest->n_pieces) * sizeof *report;
    uint64_t places = 0;
    for (int f = 0; f < manifest->layout.group; f++) {
        if (f == comm_rank(comm))
            make_report(manifest, &manifest->files[f], report);
        TRY(comm_broadcast(comm, "checkpoint report", report, bytes, f));
        take_report(manifest, &manifest->files[f], report);
        if (f == 0)
            places = report[REPORT_PLACES];
        if (report[REPORT_PLACES] != places)
            return fail(
                "HDF5 of rank %d places datasets differently than that of rank 0: give all hosts the same version", f);
    }
    return OK;
}

static Status collect(Manifest *manifest, Comm *comm) {
    uint64_t *report = calloc(REPORT_PIECES + (size_t)manifest->n_pieces, sizeof *report);
    TRY(agree(comm, "checkpoint report", report ? OK : fail("no memory for the hashes of rank files")));
    Status status = exchange_reports(manifest, comm, report);
    free(report);
    return status;
}

// The log up to the length that the manifest names must outlive a crash too. There is none without a run around.
static Status sync_log(const char *out) {
    char path[PATH_BYTES];
    struct stat info;
    TRY(durable_join(path, out, "log.jsonl"));
    return lstat(path, &info) == 0 ? durable_sync(path) : OK;
}

Status save_commit(Save *save) {
    char path[PATH_BYTES], name[FILE_NAME_BYTES];
    snprintf(name, sizeof name, "shards-%s", save->manifest.uuid);
    TRY(durable_join(path, save->partial, name));
    TRY(durable_sync(path));
    if (save->manifest.layout.group <= INDEX_MAX_FILES)
        TRY(index_file_write(save->partial, &save->manifest));
    TRY(manifest_write(&save->manifest, save->partial));
    TRY(durable_sync(save->partial));
    TRY(sync_log(save->out));
    return durable_publish(save->partial, save->final);
}

Status save_write(Save *save, const StateView *view) {
    if (save->layout->rank >= save->layout->group)
        return OK;  // further groups hold copies of the first one's shards
    return rank_file_write(save->partial, &save->manifest, save->layout, view);
}

Status save_collect(Save *save, Status written) {
    TRY(agree(save->comm, "checkpoint rank files", written));
    return collect(&save->manifest, save->comm);
}

static Status begin_collectively(Save *save, const CheckpointRun *run, const bool has[STATE_KINDS],
                                 const RunState *state) {
    Status status = checkpoint_path(save->final, save->out, state->step);
    if (status == OK && (size_t)snprintf(save->partial, PATH_BYTES, "%s.tmp", save->final) >= PATH_BYTES)
        status = fail("the path %s.tmp is too long", save->final);
    if (status == OK)
        status = describe(save, run, has, state);
    if (status == OK && comm_rank(save->comm) == 0)
        status = begin(save);
    TRY(agree(save->comm, "checkpoint start", status));
    return comm_broadcast(save->comm, "checkpoint uuid", save->manifest.uuid, UUID_BYTES, 0);
}

Status save_begin(const char *out, const CheckpointRun *run, const Layout *layout, Comm *comm,
                  const bool has[STATE_KINDS], const RunState *state, Save **save_out) {
    *save_out = NULL;
    Save *save = calloc(1, sizeof *save);
    TRY(agree(comm, "checkpoint start", save ? OK : fail("no memory to save a checkpoint")));
    save->layout = layout;
    save->comm = comm;
    snprintf(save->out, PATH_BYTES, "%s", out);
    Status status = begin_collectively(save, run, has, state);
    if (status != OK)
        return save_end(save, status);
    *save_out = save;
    return OK;
}

Status save_end(Save *save, Status status) {
    status = agree(save->comm, "checkpoint end", status);
    if (status != OK) {
        if (comm_rank(save->comm) == 0)
            durable_remove_tree(save->partial);  // best effort: it has no final name, and the first error is the one to
                                                 // report
        status = fail_context(status, "cannot save %s (earlier checkpoints are untouched)", save->final);
    }
    manifest_free(&save->manifest);
    free(save);
    return status;
}

Status checkpoint_save(const char *out, const CheckpointRun *run, const Layout *layout, Comm *comm,
                       const StateView *view, const RunState *state) {
    Save *save;
    TRY(save_begin(out, run, layout, comm, view->has, state, &save));
    Status status = save_collect(save, save_write(save, view));
    if (status == OK && comm_rank(comm) == 0)
        status = save_commit(save);
    return save_end(save, status);
}
