// checkpoint, tools: --verify and --hash, in one process without a device.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zero/checkpoint.h"
#include "zero/index_file.h"
#include "zero/rank_file.h"

// Print how one file's check went; keep the first message for the end.
static void report(FILE *file, const char *name, Status status, char first[STATUS_MESSAGE_BYTES]) {
    fprintf(file, "%-60s %s\n", name, status == OK ? "good" : status_message());
    if (status != OK && !*first)
        strcpy(first, status_message());
    status_clear();
}

Status checkpoint_verify(const char *path, FILE *file) {
    Manifest manifest;
    char first[STATUS_MESSAGE_BYTES] = "";
    TRY(manifest_read(&manifest, path));
    float *buffer = malloc(STATE_PIECE_BYTES);
    if (!buffer) {
        manifest_free(&manifest);
        return fail("no memory to verify %s", path);
    }
    report(file, "manifest.json", OK, first);
    if (manifest.index_bytes > 0)
        report(file, "index.h5", index_file_verify(path, &manifest), first);
    for (int f = 0; f < manifest.layout.group; f++) {
        char name[FILE_NAME_BYTES];
        manifest_file_name(&manifest, f, name);
        report(file, name, rank_file_verify(path, &manifest, f, buffer), first);
    }
    free(buffer);
    manifest_free(&manifest);
    return *first ? fail("%s is damaged: %s", path, first) : OK;
}

typedef struct UnitHashes {
    Hash128 tensors[2][MAX_TENSORS];  // weights, moments
} UnitHashes;

static Status hash_file(const char *path, const Manifest *manifest, int f, float *buffer, Hash128 total[2],
                        UnitHashes *units) {
    int fd;
    TRY(rank_file_open(path, manifest, f, &fd));
    Status status = OK;
    for (int d = 0; d < manifest->n_datasets; d++) {
        const StateDataset *dataset = &manifest->datasets[d];
        int part = dataset->kind != STATE_MASTER;
        for (int64_t p = 0; p < dataset->n_pieces; p++) {
            TRY_GOTO(rank_file_read(fd, path, manifest, f, d, p, buffer), done);
            hash_unit(&manifest->layout.units[dataset->unit], state_kind_names[dataset->kind],
                      f * dataset->len + p * STATE_PIECE_LEN, rank_file_piece_len(dataset, p), buffer, &total[part],
                      units[dataset->unit].tensors[part]);
        }
    }
done:
    close(fd);
    return status;
}

static void print_hashes(FILE *file, const Layout *layout, const Hash128 total[2], const UnitHashes *units) {
    char weights[HASH_TEXT_BYTES], moments[HASH_TEXT_BYTES];
    hash_text(total[0], weights);
    hash_text(total[1], moments);
    fprintf(file, "weights_hash %s\nstate_hash   %s\n", weights, moments);
    for (int u = 0; u < layout->n_units; u++) {
        for (int t = 0; t < layout->units[u].spec.n_tensors; t++) {
            hash_text(units[u].tensors[0][t], weights);
            hash_text(units[u].tensors[1][t], moments);
            fprintf(file, "%-40s %s %s\n", layout->units[u].spec.tensors[t].name, weights, moments);
        }
    }
}

Status checkpoint_hash(const char *path, FILE *file) {
    Manifest manifest;
    Hash128 total[2] = {0, 0};
    TRY(manifest_read(&manifest, path));
    float *buffer = malloc(STATE_PIECE_BYTES);
    UnitHashes *units = calloc((size_t)manifest.layout.n_units, sizeof *units);
    Status status = buffer && units ? OK : fail("no memory to hash %s", path);
    for (int f = 0; f < manifest.layout.group && status == OK; f++)
        status = hash_file(path, &manifest, f, buffer, total, units);
    if (status == OK)
        print_hashes(file, &manifest.layout, total, units);
    free(units);
    free(buffer);
    manifest_free(&manifest);
    return status;
}
