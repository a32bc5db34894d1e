// manifest: its tables, and how it is written. manifest_read.c reads it back.
#include "zero/manifest.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "zero/durable.h"

void state_dataset_name(int unit, StateKind kind, char name[FILE_NAME_BYTES]) {
    snprintf(name, FILE_NAME_BYTES, "/unit_%04d/%s", unit, state_kind_names[kind]);
}

void manifest_file_name(const Manifest *manifest, int file, char name[FILE_NAME_BYTES]) {
    snprintf(name, FILE_NAME_BYTES, "shards-%s/rank_%05d.h5", manifest->uuid, file);
}

void manifest_number_pieces(Manifest *manifest) {
    manifest->n_pieces = 0;
    for (int d = 0; d < manifest->n_datasets; d++) {
        StateDataset *dataset = &manifest->datasets[d];
        dataset->first_piece = manifest->n_pieces;
        dataset->n_pieces = (dataset->len + STATE_PIECE_LEN - 1) / STATE_PIECE_LEN;
        manifest->n_pieces += dataset->n_pieces;
    }
}

Status manifest_tables(Manifest *manifest, const bool has[STATE_KINDS]) {
    const Layout *layout = &manifest->layout;
    manifest->datasets = calloc((size_t)layout->n_units * STATE_KINDS, sizeof *manifest->datasets);
    manifest->files = calloc((size_t)layout->group, sizeof *manifest->files);
    if (!manifest->datasets || !manifest->files)
        return fail("no memory for the manifest of %d rank files", layout->group);
    for (int u = 0; u < layout->n_units; u++)
        for (StateKind kind = 0; kind < STATE_KINDS; kind++)
            if (has[kind])
                manifest->datasets[manifest->n_datasets++] =
                    (StateDataset){.unit = u, .kind = kind, .len = layout->units[u].shard_len};
    manifest_number_pieces(manifest);
    for (int f = 0; f < layout->group; f++) {
        manifest->files[f].pieces = calloc((size_t)manifest->n_pieces, sizeof(uint64_t));
        if (!manifest->files[f].pieces)
            return fail("no memory for the manifest of %d rank files", layout->group);
    }
    return OK;
}

void manifest_free(Manifest *manifest) {
    for (int f = 0; manifest->files && f < manifest->layout.group; f++)
        free(manifest->files[f].pieces);
    free(manifest->files);
    free(manifest->datasets);
    free(manifest->data);
    free(manifest->environment);
    cJSON_Delete(manifest->config);
    layout_free(&manifest->layout);
    *manifest = (Manifest){0};
}

// ---- JSON: the cJSON functions that add fail only for want of memory, which `ok` remembers ----

static _Thread_local bool ok;

static cJSON *add(cJSON *object, const char *name, cJSON *item) {
    ok = ok && item && cJSON_AddItemToObject(object, name, item);
    return item;
}

static cJSON *append(cJSON *array, cJSON *item) {
    ok = ok && item && cJSON_AddItemToArray(array, item);
    return item;
}

static void add_text(cJSON *object, const char *name, const char *text) {
    add(object, name, cJSON_CreateString(text));
}

static cJSON *integer(int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return cJSON_CreateRaw(text);
}

static void add_int(cJSON *object, const char *name, int64_t value) {
    add(object, name, integer(value));
}

// cJSON's own way of printing may lose the last bits.
static cJSON *number(double value) {
    char text[40];
    snprintf(text, sizeof text, "%.17g", value);
    return cJSON_CreateRaw(text);
}

static void add_double(cJSON *object, const char *name, double value) {
    add(object, name, number(value));
}

static cJSON *hash_string(uint64_t hash) {
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    return cJSON_CreateString(text);
}

static void add_window(cJSON *object, const char *name, const SpikeWindow *window) {
    cJSON *values = add(object, name, cJSON_CreateArray());
    for (int i = 0; i < window->n; i++)
        append(values, number(window->values[i]));
}

static cJSON *run_json(const RunState *run) {
    cJSON *json = cJSON_CreateObject();
    add_int(json, "step", run->step);
    add_int(json, "updates", run->updates);
    add_int(json, "samples", run->samples);
    add_int(json, "skipped", run->skipped);
    add_int(json, "skipped_in_a_row", run->skipped_in_a_row);
    add_int(json, "log_bytes", run->log_bytes);
    cJSON *scale = add(json, "loss_scale", cJSON_CreateObject());
    add_double(scale, "scale", run->scale.scale);
    add(scale, "dynamic", cJSON_CreateBool(run->scale.dynamic));
    add_int(scale, "iteration", run->scale.iteration);
    add_int(scale, "last_overflow", run->scale.last_overflow);
    add_int(scale, "hysteresis_left", run->scale.hysteresis_left);
    add_int(scale, "window", run->scale.window);
    add_int(scale, "hysteresis", run->scale.hysteresis);
    add_double(scale, "factor", run->scale.factor);
    add_double(scale, "minimum", run->scale.minimum);
    add_window(json, "losses", &run->losses);
    add_window(json, "norms", &run->norms);
    return json;
}

static cJSON *unit_json(const UnitSpec *unit) {
    cJSON *json = cJSON_CreateObject();
    add_int(json, "len", unit->len);
    cJSON *tensors = add(json, "tensors", cJSON_CreateArray());
    for (int t = 0; t < unit->n_tensors; t++) {
        const TensorSpec *tensor = &unit->tensors[t];
        cJSON *item = append(tensors, cJSON_CreateObject());
        add_text(item, "name", tensor->name);
        cJSON *shape = add(item, "shape", cJSON_CreateArray());
        for (int i = 0; i < tensor->n_dims; i++)
            append(shape, integer(tensor->shape[i]));
        add_int(item, "offset", tensor->offset);
    }
    return json;
}

static cJSON *file_json(const Manifest *manifest, int f) {
    const RankFile *file = &manifest->files[f];
    char name[FILE_NAME_BYTES];
    manifest_file_name(manifest, f, name);
    cJSON *json = cJSON_CreateObject();
    add_text(json, "name", name);
    add_int(json, "bytes", file->bytes);
    add(json, "hash", hash_string(file->hash));
    cJSON *pieces = add(json, "pieces", cJSON_CreateArray());
    for (int d = 0; d < manifest->n_datasets; d++) {
        const StateDataset *dataset = &manifest->datasets[d];
        cJSON *hashes = append(pieces, cJSON_CreateArray());
        for (int64_t p = 0; p < dataset->n_pieces; p++)
            append(hashes, hash_string(file->pieces[dataset->first_piece + p]));
    }
    return json;
}

static cJSON *manifest_json(const Manifest *manifest) {
    const Layout *layout = &manifest->layout;
    cJSON *json = cJSON_CreateObject();
    add_text(json, "format", "zero.c checkpoint");
    add_int(json, "version", MANIFEST_VERSION);
    add_text(json, "uuid", manifest->uuid);
    add(json, "run", run_json(&manifest->run));
    add(json, "config", cJSON_Duplicate(manifest->config, true));
    add_text(json, "data", manifest->data);
    add_text(json, "environment", manifest->environment);
    add_int(json, "ranks", layout->n_ranks);
    add_int(json, "shard_group", layout->group);
    add_int(json, "reduce_group", manifest->reduce_group);
    add_int(json, "zero_stage", manifest->zero_stage);
    add_text(json, "dtype", dtype_name(manifest->dtype));
    add(json, "tied", cJSON_CreateBool(layout->tied));
    cJSON *kinds = add(json, "kinds", cJSON_CreateArray());
    cJSON *units = add(json, "units", cJSON_CreateArray());
    cJSON *datasets = add(json, "datasets", cJSON_CreateArray());
    cJSON *files = add(json, "files", cJSON_CreateArray());
    for (StateKind kind = 0; kind < STATE_KINDS; kind++)
        for (int d = 0; d < manifest->n_datasets; d++)
            if (manifest->datasets[d].kind == kind && manifest->datasets[d].unit == 0)
                append(kinds, cJSON_CreateString(state_kind_names[kind]));
    for (int u = 0; u < layout->n_units; u++)
        append(units, unit_json(&layout->units[u].spec));
    for (int d = 0; d < manifest->n_datasets; d++) {
        cJSON *item = append(datasets, cJSON_CreateObject());
        add_int(item, "unit", manifest->datasets[d].unit);
        add_text(item, "kind", state_kind_names[manifest->datasets[d].kind]);
        add_int(item, "offset", manifest->datasets[d].offset);
    }
    for (int f = 0; f < layout->group; f++)
        append(files, file_json(manifest, f));
    if (manifest->index_bytes > 0) {
        cJSON *index = add(json, "index", cJSON_CreateObject());
        add_text(index, "name", "index.h5");
        add_int(index, "bytes", manifest->index_bytes);
        add(index, "hash", hash_string(manifest->index_hash));
    }
    return json;
}

void manifest_seal(const char *text, size_t bytes, char seal[MANIFEST_SEAL_BYTES + 1]) {
    snprintf(seal, MANIFEST_SEAL_BYTES + 1, "%016llx\"\n}\n", (unsigned long long)hash_bytes(text, bytes, 0));
}

Status manifest_write(const Manifest *manifest, const char *directory) {
    char path[PATH_BYTES];
    TRY(durable_join(path, directory, "manifest.json"));
    ok = true;
    cJSON *json = manifest_json(manifest);
    char *body = ok ? cJSON_Print(json) : NULL;
    cJSON_Delete(json);
    static const char hash_member[] = ",\n\t\"hash\":\t\"";
    size_t body_bytes = body ? strlen(body) - strlen("\n}") : 0;  // the object stays open for its last member
    char *text = body ? malloc(body_bytes + sizeof hash_member + MANIFEST_SEAL_BYTES) : NULL;
    Status status;
    if (text) {
        memcpy(text, body, body_bytes);
        memcpy(text + body_bytes, hash_member, sizeof hash_member);
        size_t bytes = body_bytes + strlen(hash_member);
        manifest_seal(text, bytes, text + bytes);
        status = durable_write_file(path, text, bytes + MANIFEST_SEAL_BYTES);
    } else {
        status = fail("no memory for the text of %s", path);
    }
    free(text);
    cJSON_free(body);
    return status;
}
