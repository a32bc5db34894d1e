// hf, in: check all names and shapes, then stream each unit's shard.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "zero/agree.h"
#include "zero/hf.h"

enum { STRIP_LEN = 1 << 18, NAMES_SHOWN = 4 };

// ---- names and shapes ----

// Up to NAMES_SHOWN names, and how many more there are.
typedef struct NameList {
    int n;
    char text[NAMES_SHOWN * 112];
} NameList;

static void list_add(NameList *list, const char *name) {
    size_t used = strlen(list->text);
    if (list->n++ < NAMES_SHOWN)
        snprintf(list->text + used, sizeof list->text - used, "%s%.100s", used ? ", " : "", name);
}

static const char *list_end(const NameList *list, char text[32]) {
    *text = '\0';
    if (list->n > NAMES_SHOWN)
        snprintf(text, 32, " and %d more", list->n - NAMES_SHOWN);
    return text;
}

static void shape_text(int n_dims, const int64_t *shape, char text[128]) {
    int used = snprintf(text, 128, "(");
    for (int d = 0; d < n_dims && used < 100; d++)
        used += snprintf(text + used, 128 - (size_t)used, "%s%" PRId64, d ? ", " : "", shape[d]);
    snprintf(text + used, 128 - (size_t)used, ")");
}

static Status check_shape(const HfModel *hf, const SafetensorsTensor *found, const HfTensor *tensor) {
    int64_t shape[2];
    int n_dims = hf_shape(tensor, shape);
    if (found->n_dims == n_dims && memcmp(found->shape, shape, (size_t)n_dims * sizeof *shape) == 0)
        return OK;
    char there[128], here[128];
    shape_text(found->n_dims, found->shape, there);
    shape_text(n_dims, shape, here);
    return fail("%s: tensor %s has the shape %s, but config.json makes it %s", hf->files.files[found->file].path,
                tensor->name, there, here);
}

static Status check_tensors(const HfModel *hf, const ModelConfig *model) {
    NameList missing = {0}, extra = {0};
    char more[32];
    bool *used = calloc((size_t)hf->files.n_tensors + 1, sizeof *used);
    if (!used)
        return fail("no memory for the names of %d tensors", hf->files.n_tensors);
    Status status = OK;
    for (int i = 0; i < hf->map.n && status == OK; i++) {
        const SafetensorsTensor *found = safetensors_find(&hf->files, hf->map.tensors[i].name);
        if (!found) {
            list_add(&missing, hf->map.tensors[i].name);
            continue;
        }
        used[found - hf->files.tensors] = true;
        status = check_shape(hf, found, &hf->map.tensors[i]);
    }
    for (int i = 0; i < hf->files.n_tensors; i++)
        if (!used[i] && !hf_is_surplus(model, hf->files.tensors[i].name))
            list_add(&extra, hf->files.tensors[i].name);
    free(used);
    TRY(status);
    if (missing.n > 0)
        return fail("%s does not have all weights of its config.json; missing: %s%s%s", hf->directory, missing.text,
                    list_end(&missing, more),
                    strstr(missing.text, "lm_head") ? " (set \"tie_word_embeddings\": true if the head is tied)" : "");
    if (extra.n > 0)
        return fail(
            "%s has weights that its config.json has no place for: %s%s; it is another model, or one that this "
            "program does not compute",
            hf->directory, extra.text, list_end(&extra, more));
    return OK;
}

// Files of GPT-2's early days hold the body alone, without "transformer." before the names.
static Status make_map(HfModel *hf, const ModelConfig *model) {
    TRY(hf_map_make(model, false, &hf->map));
    if (safetensors_find(&hf->files, hf->map.tensors[0].name))
        return OK;
    hf_map_free(&hf->map);
    return hf_map_make(model, true, &hf->map);
}

static Status open_model(HfModel *hf, const ModelConfig *model) {
    TRY(safetensors_open(hf->directory, &hf->files));
    TRY(make_map(hf, model));
    TRY(check_tensors(hf, model));
    hf->strip_len = STRIP_LEN;
    for (int i = 0; i < hf->map.n; i++)
        if (hf->map.tensors[i].transposed && hf->map.tensors[i].rows > hf->strip_len)
            hf->strip_len = hf->map.tensors[i].rows;
    hf->strip = malloc((size_t)hf->strip_len * sizeof *hf->strip);
    return hf->strip ? OK : fail("no memory to read %s", hf->directory);
}

Status hf_open(const char *directory, const ModelConfig *model, HfModel *hf) {
    *hf = (HfModel){.directory = directory};
    Status status = open_model(hf, model);
    if (status != OK)
        hf_close(hf);
    return status;
}

void hf_close(HfModel *hf) {
    safetensors_close(&hf->files);
    hf_map_free(&hf->map);
    free(hf->strip);
    *hf = (HfModel){0};
}

// ---- values ----

static int64_t max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// Elements [begin, end) of a matrix of ours from a file that has its transpose: strips of whole rows of theirs are read
// one after another, and each gives every row of ours a few elements.
static Status read_transposed(HfModel *hf, const SafetensorsTensor *found, const HfTensor *tensor, int64_t begin,
                              int64_t end, float *values) {
    int64_t rows = tensor->rows, columns = tensor->columns, height = hf->strip_len / rows;
    for (int64_t top = 0; top < columns; top += height) {
        int64_t bottom = min_i64(top + height, columns);
        TRY(safetensors_read(&hf->files, found, top * rows, (bottom - top) * rows, hf->strip));
        for (int64_t row = begin / columns; row * columns < end; row++) {
            int64_t from = max_i64(top, begin - row * columns), to = min_i64(bottom, end - row * columns);
            for (int64_t column = from; column < to; column++)
                values[row * columns + column - begin] = hf->strip[(column - top) * rows + row];
        }
    }
    return OK;
}

Status hf_read(HfModel *hf, const UnitSpec *spec, int u, int64_t begin, int64_t len, float *values) {
    memset(values, 0, (size_t)len * sizeof *values);
    for (int i = hf->map.first[u]; i < hf->map.first[u + 1]; i++) {
        const HfTensor *tensor = &hf->map.tensors[i];
        int64_t start = spec->tensors[tensor->tensor].offset + tensor->first;  // in the unit
        int64_t from = max_i64(begin - start, 0), to = min_i64(begin + len - start, tensor->len);
        if (from >= to)
            continue;
        const SafetensorsTensor *found = safetensors_find(&hf->files, tensor->name);
        float *at = values + (start + from - begin);
        TRY(tensor->transposed ? read_transposed(hf, found, tensor, from, to, at)
                               : safetensors_read(&hf->files, found, from, to - from, at));
    }
    return OK;
}

// ---- a rank's shards ----

static Status import_shards(HfModel *hf, const Layout *layout, const StateView *view) {
    int64_t longest = 0;
    for (int u = 0; u < layout->n_units; u++)
        longest = max_i64(longest, layout->units[u].shard_len);
    float *shard = malloc((size_t)longest * sizeof *shard);
    if (!shard)
        return fail("no memory for %lld weights of a unit", (long long)longest);
    Status status = OK;
    for (int u = 0; u < layout->n_units; u++) {
        const UnitLayout *unit = &layout->units[u];
        int64_t begin = layout->shard * unit->shard_len, len = min_i64(unit->shard_len, unit->spec.len - begin);
        if (len <= 0)  // nothing but padding
            continue;
        TRY_GOTO(hf_read(hf, &unit->spec, u, begin, len, shard), done);
        for (int64_t i = 0; i < len; i += STATE_PIECE_LEN) {
            int64_t n = min_i64(len - i, STATE_PIECE_LEN);
            memcpy(view->staging, shard + i, (size_t)n * sizeof *shard);
            TRY_GOTO(view->store(view->context, STATE_MASTER, u, i, n, view->staging), done);
        }
    }
done:
    free(shard);
    return status;
}

Status hf_import(const char *directory, const ModelConfig *model, const Layout *layout, Comm *comm,
                 const StateView *view) {
    HfModel hf;
    char text[64];
    Status status = agree(comm, "weights of --init-from", hf_open(directory, model, &hf));
    if (status != OK)
        goto done;
    snprintf(text, sizeof text, "%016" PRIx64 "\n", hf.files.hash);
    TRY_GOTO(comm_agree(comm, "headers of --init-from's weights", text), done);
    TRY_GOTO(agree(comm, "weights of --init-from", import_shards(&hf, layout, view)), done);
done:
    hf_close(&hf);
    return status == OK ? OK : fail_context(status, "--init-from");
}
