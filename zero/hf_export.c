// hf, out: a checkpoint's master weights, unit by unit, into a directory that transformers loads.
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "zero/hf.h"
#include "zero/rank_file.h"

enum { STRIP_LEN = 1 << 18, MAX_COPY_BYTES = 256 << 20 };
static const int64_t DEFAULT_FILE_BYTES = 5000000000;  // of transformers' save_pretrained

typedef struct Export {
    const HfExport *options;
    char directory[PATH_BYTES], partial[PATH_BYTES];
    Manifest manifest;
    ModelConfig model;
    int64_t padded_vocab;  // rows of the checkpoint, where there are more than model.vocab_size; else 0
    HfMap map;
    SafetensorsSpec *specs;  // (map.n)
    SafetensorsWriter *writer;
    float *unit;   // the whole of one, with padding
    float *strip;  // rows of a transposed matrix
    int64_t strip_len;
} Export;

// ---- the weights ----

static Status read_unit(const Export *e, int u) {
    const Manifest *manifest = &e->manifest;
    for (int f = 0; f < manifest->layout.group; f++) {
        int fd;
        TRY(rank_file_open(e->options->checkpoint, manifest, f, &fd));
        Status status = OK;
        for (int d = 0; d < manifest->n_datasets && status == OK; d++) {
            const StateDataset *dataset = &manifest->datasets[d];
            if (dataset->unit != u || dataset->kind != STATE_MASTER)
                continue;
            for (int64_t p = 0; p < dataset->n_pieces && status == OK; p++)
                status = rank_file_read(fd, e->options->checkpoint, manifest, f, d, p,
                                        e->unit + f * dataset->len + p * STATE_PIECE_LEN);
        }
        close(fd);
        TRY(status);
    }
    return OK;
}

static Status write_transposed(const Export *e, int t, const float *values) {
    const HfTensor *tensor = &e->map.tensors[t];
    int64_t rows = tensor->rows, columns = tensor->columns, height = e->strip_len / rows;
    for (int64_t top = 0; top < columns; top += height) {
        int64_t bottom = top + height < columns ? top + height : columns;
        for (int64_t row = 0; row < rows; row++)
            for (int64_t column = top; column < bottom; column++)
                e->strip[(column - top) * rows + row] = values[row * columns + column];
        TRY(safetensors_write(e->writer, t, top * rows, (bottom - top) * rows, e->strip));
    }
    return OK;
}

static Status write_unit(const Export *e, int u) {
    const UnitSpec *spec = &e->manifest.layout.units[u].spec;
    for (int t = e->map.first[u]; t < e->map.first[u + 1]; t++) {
        const HfTensor *tensor = &e->map.tensors[t];
        const float *values = e->unit + spec->tensors[tensor->tensor].offset + tensor->first;
        TRY(tensor->transposed ? write_transposed(e, t, values)
                               : safetensors_write(e->writer, t, 0, tensor->len, values));
    }
    return OK;
}

static Status allocate(Export *e) {
    int64_t unit_len = 0;
    for (int u = 0; u < e->manifest.layout.n_units; u++)
        if (e->manifest.layout.units[u].full_len > unit_len)
            unit_len = e->manifest.layout.units[u].full_len;
    e->strip_len = STRIP_LEN;
    for (int t = 0; t < e->map.n; t++)
        if (e->map.tensors[t].transposed && e->map.tensors[t].rows > e->strip_len)
            e->strip_len = e->map.tensors[t].rows;
    e->unit = malloc((size_t)unit_len * sizeof *e->unit);
    e->strip = malloc((size_t)e->strip_len * sizeof *e->strip);
    e->specs = calloc((unsigned)e->map.n, sizeof *e->specs);
    if (!e->unit || !e->strip || !e->specs)
        return fail("no memory for the largest unit, %lld weights", (long long)unit_len);
    for (int t = 0; t < e->map.n; t++) {
        e->specs[t].name = e->map.tensors[t].name;
        e->specs[t].n_dims = hf_shape(&e->map.tensors[t], e->specs[t].shape);
    }
    return OK;
}

// What the options of the saved run say in a group.
static const cJSON *saved_option(const Export *e, const char *group, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(e->manifest.config, group), name);
}

// The model that the run started from, or NULL.
static const char *origin_of(const Export *e) {
    return cJSON_GetStringValue(saved_option(e, "model", "init_from"));
}

// Leave out the rows of the token table and of the head that no token of the shards has.
static void cut_vocabulary(Export *e) {
    double known = cJSON_GetNumberValue(saved_option(e, "data", "data_vocab"));
    if (origin_of(e) || !(known >= 1 && known < (double)e->model.vocab_size))
        return;
    e->padded_vocab = e->model.vocab_size;
    e->model.vocab_size = (int64_t)known;
    for (int t = 0; t < e->map.n; t++) {
        HfTensor *tensor = &e->map.tensors[t];
        const char *name = e->manifest.layout.units[tensor->unit].spec.tensors[tensor->tensor].name;
        if (strcmp(name, "wte") != 0 && strcmp(name, "head.weight") != 0)
            continue;
        tensor->rows = e->model.vocab_size;
        tensor->len = tensor->rows * tensor->columns;
    }
}

static Status write_weights(Export *e) {
    const HfExport *options = e->options;
    TRY(hf_map_make(&e->model, true, &e->map));
    cut_vocabulary(e);
    TRY(allocate(e));
    TRY(safetensors_create(e->partial, options->dtype, e->specs, e->map.n,
                           options->max_file_bytes ? options->max_file_bytes : DEFAULT_FILE_BYTES, &e->writer));
    for (int u = 0; u < e->map.n_units; u++) {
        TRY(read_unit(e, u));
        TRY(write_unit(e, u));
    }
    return safetensors_finish(e->writer);
}

// ---- what stands beside the weights ----

static Status write_json(const char *directory, const char *name, const cJSON *json) {
    char path[PATH_BYTES], *text = cJSON_Print(json);
    Status status = durable_join(path, directory, name);
    if (status == OK)
        status = text ? durable_write_file(path, text, strlen(text)) : fail("no memory for %s", path);
    cJSON_free(text);
    return status;
}

// Copy a file of the model that the run started from, if that is still there.
static Status copy_file(const char *from, const char *to, const char *name, bool *copied) {
    char source[PATH_BYTES], copy[PATH_BYTES], *data;
    size_t bytes;
    *copied = false;
    TRY(durable_join(source, from, name));
    TRY(durable_join(copy, to, name));
    if (access(source, R_OK) != 0)
        return OK;
    TRY(durable_read_file(source, MAX_COPY_BYTES, &data, &bytes));
    Status status = durable_write_file(copy, data, bytes);
    free(data);
    *copied = status == OK;
    return status;
}

// The tokens that begin and end a text: those of the model that the run started from, else the one that stands between
// texts in the shards, if they have one. Without the keys transformers would take its own defaults, which may lie outside of
// the vocabulary.
static void add_special_tokens(cJSON *config, const Export *e) {
    const char *origin = origin_of(e);
    double eot = origin ? -1 : cJSON_GetNumberValue(saved_option(e, "data", "eot_token"));
    static const char *const keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    char path[PATH_BYTES], *text = NULL;
    size_t bytes;
    cJSON *known = NULL;
    if (origin && durable_join(path, origin, "config.json") == OK &&
        durable_read_file(path, 16 << 20, &text, &bytes) == OK)
        known = cJSON_ParseWithLength(text, bytes);
    free(text);
    status_clear();  // a model that has moved away is no reason to fail
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(known, keys[i]);
        bool between = i < 2 && eot >= 0 && eot < (double)e->model.vocab_size;  // no padding is needed
        cJSON_AddItemToObject(config, keys[i],
                              item      ? cJSON_Duplicate(item, true)
                              : between ? cJSON_CreateNumber(eot)
                                        : cJSON_CreateNull());
    }
    cJSON_Delete(known);
}

static Status write_configs(const Export *e, bool *has_tokenizer) {
    static const char *const tokenizer_files[] = {
        "tokenizer.json", "tokenizer_config.json",   "tokenizer.model",  "vocab.json",
        "merges.txt",     "special_tokens_map.json", "added_tokens.json"};
    const char *origin = origin_of(e);
    bool copied = false;
    cJSON *config = model_config_to_hf(&e->model, e->options->dtype);
    add_special_tokens(config, e);
    Status status = write_json(e->partial, "config.json", config);
    cJSON_Delete(config);
    TRY(status);

    *has_tokenizer = false;
    for (size_t i = 0; origin && i < sizeof tokenizer_files / sizeof *tokenizer_files; i++) {
        TRY(copy_file(origin, e->partial, tokenizer_files[i], &copied));
        *has_tokenizer |= copied;
    }
    copied = false;
    if (origin)
        TRY(copy_file(origin, e->partial, "generation_config.json", &copied));
    if (copied)
        return OK;
    cJSON *generation = cJSON_CreateObject();
    cJSON_AddTrueToObject(generation, "_from_model_config");
    add_special_tokens(generation, e);
    status = write_json(e->partial, "generation_config.json", generation);
    cJSON_Delete(generation);
    return status;
}

// ---- the directory ----

static Status begin(Export *e) {
    const char *name = e->options->directory;
    size_t len = strlen(name);
    while (len > 1 && name[len - 1] == '/')
        len--;
    if (len + sizeof ".tmp" > PATH_BYTES)
        return fail("the path %.100s… is too long", name);
    snprintf(e->directory, sizeof e->directory, "%.*s", (int)len, name);
    snprintf(e->partial, sizeof e->partial, "%.*s.tmp", (int)len, name);
    struct stat info;
    if (lstat(e->directory, &info) == 0)
        return fail("%s exists already; choose another directory, or remove it first", e->directory);
    if (lstat(e->partial, &info) == 0)
        return fail("%s exists: an export that did not end, or one that runs now; remove it first", e->partial);
    TRY(durable_make_parents(e->partial));
    return durable_make_dir(e->partial);
}

// The config names the model; the units say what was saved. They must tell the same.
static Status check_units(const Export *e) {
    const Layout *saved = &e->manifest.layout;
    bool same = saved->n_units == model_n_units(&e->model) && saved->tied == e->model.tied;
    for (int u = 0; u < saved->n_units && same; u++) {
        UnitSpec unit;
        model_unit(&e->model, u, &unit);
        same = unit.n_tensors == saved->units[u].spec.n_tensors && unit.len == saved->units[u].spec.len;
        for (int t = 0; t < unit.n_tensors && same; t++) {
            const TensorSpec *a = &unit.tensors[t], *b = &saved->units[u].spec.tensors[t];
            same = strcmp(a->name, b->name) == 0 && a->len == b->len && a->offset == b->offset;
        }
    }
    return same ? OK : fail("its manifest contradicts itself: its config is of another model than its tensors");
}

static Status run_export(Export *e, bool *has_tokenizer) {
    TRY(manifest_read(&e->manifest, e->options->checkpoint));
    TRY(model_config_from_json(&e->model, e->manifest.config));
    TRY(check_units(e));
    TRY(begin(e));
    Status status = write_weights(e);
    if (status == OK)
        status = write_configs(e, has_tokenizer);
    if (status == OK)
        status = durable_sync(e->partial);
    if (status == OK)
        status = durable_publish(e->partial, e->directory);
    if (status != OK)
        durable_remove_tree(e->partial);  // best effort: the first error is the one to report
    return status;
}

Status hf_export(const HfExport *options, FILE *file) {
    Export *e = calloc(1, sizeof *e);
    if (!e)
        return fail("no memory to export %s", options->checkpoint);
    e->options = options;
    bool has_tokenizer = false;
    Status status = run_export(e, &has_tokenizer);
    if (status == OK && e->padded_vocab)
        fprintf(file, "%s: the shards' vocabulary has %lld tokens: of %lld rows the rest is left out\n", e->directory,
                (long long)e->model.vocab_size, (long long)e->padded_vocab);
    if (status == OK)
        fprintf(file, "%s: step %lld of %s, %lld weights in %s%s\n", e->directory, (long long)e->manifest.run.step,
                options->checkpoint, (long long)model_n_params(&e->model), dtype_name(options->dtype),
                has_tokenizer ? ", with its tokenizer"
                              : "; no tokenizer is known: copy its files there, and set eos_token_id in config.json");
    else
        status = fail_context(status, "cannot export %s to %s", options->checkpoint, options->directory);
    safetensors_writer_close(e->writer);
    hf_map_free(&e->map);
    manifest_free(&e->manifest);
    free(e->specs);
    free(e->strip);
    free(e->unit);
    free(e);
    return status;
}
