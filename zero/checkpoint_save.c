// checkpoint, saving: rank files by all ranks, then index, manifest and the final name by rank 0.
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "zero/agree.h"
#include "zero/checkpoint.h"
#include "zero/index_file.h"
#include "zero/rank_file.h"

typedef struct Save {
    char final[PATH_BYTES], partial[PATH_BYTES];
    Manifest manifest;
} Save;

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

static Status describe(Save *save, const CheckpointRun *run, const Layout *layout, const StateView *view,
                       const RunState *state) {
    Manifest *manifest = &save->manifest;
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
    return manifest_tables(manifest, view->has);
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

// Rank 0, when all rank files are on the disk.
static Status commit(Save *save) {
    char path[PATH_BYTES], name[FILE_NAME_BYTES];
    snprintf(name, sizeof name, "shards-%s", save->manifest.uuid);
    TRY(durable_join(path, save->partial, name));
    TRY(durable_sync(path));
    if (save->manifest.layout.group <= INDEX_MAX_FILES)
        TRY(index_file_write(save->partial, &save->manifest));
    TRY(manifest_write(&save->manifest, save->partial));
    TRY(durable_sync(save->partial));
    return durable_publish(save->partial, save->final);
}

static Status save_collectively(Save *save, const CheckpointRun *run, const Layout *layout, Comm *comm,
                                const StateView *view, const RunState *state) {
    int rank = comm_rank(comm);
    Status status = describe(save, run, layout, view, state);
    if (status == OK && rank == 0)
        status = begin(save);
    TRY(agree(comm, "checkpoint start", status));
    TRY(comm_broadcast(comm, "checkpoint uuid", save->manifest.uuid, UUID_BYTES, 0));
    if (rank < layout->group)  // further groups hold copies of the first one's shards
        status = rank_file_write(save->partial, &save->manifest, layout, view);
    TRY(agree(comm, "checkpoint rank files", status));
    TRY(collect(&save->manifest, comm));
    return agree(comm, "checkpoint commit", rank == 0 ? commit(save) : OK);
}

Status checkpoint_save(const char *out, const CheckpointRun *run, const Layout *layout, Comm *comm,
                       const StateView *view, const RunState *state) {
    Save *save = calloc(1, sizeof *save);
    if (!save)
        return fail("no memory to save a checkpoint");
    Status status = checkpoint_path(save->final, out, state->step);
    if (status == OK && (size_t)snprintf(save->partial, PATH_BYTES, "%s.tmp", save->final) >= PATH_BYTES)
        status = fail("the path %s.tmp is too long", save->final);
    if (status == OK)
        status = save_collectively(save, run, layout, comm, view, state);
    if (status != OK) {
        if (comm_rank(comm) == 0)
            durable_remove_tree(
                save->partial);  // best effort: it has no final name, and the first error is the one to report
        status = fail_context(status, "cannot save %s (earlier checkpoints are untouched)", save->final);
    }
    manifest_free(&save->manifest);
    free(save);
    return status;
}
