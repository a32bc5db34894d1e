// The reader: the file, and every key by itself.
#include "llm/deepspeed_reader.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "llm/flags.h"
#include "llm/nearest.h"
#include "llm/relaxed_json.h"

enum { MAX_FILE_BYTES = 1 << 20 };

void ds_append(char list[DS_NOTES_BYTES], const char *separator, const char *text) {
    size_t used = strlen(list);
    snprintf(list + used, DS_NOTES_BYTES - used, "%s%s", used ? separator : "", text);
}

// ---- the table ----

static size_t parent_len(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? (size_t)(dot - path) + 1 : 0;  // with the dot
}

static bool in_list(const char *list, const char *separators, const char *word) {
    size_t len = strlen(word);
    for (const char *at = list; at && *at; at += strspn(at, separators)) {
        size_t n = strcspn(at, separators);
        if (n == len && strncmp(at, word, n) == 0)
            return true;
        at += n;
    }
    return false;
}

// The row of a key; *beside: it is one of those beside the row's own.
static const DsKey *find_key(const char *path, bool *beside) {
    size_t block = parent_len(path);
    for (int i = 0; i < n_deepspeed_keys; i++) {
        const DsKey *key = &deepspeed_keys[i];
        *beside = strcmp(key->path, path) != 0;
        if (!*beside || (parent_len(key->path) == block && strncmp(key->path, path, block) == 0 &&
                         in_list(key->beside, " ", path + block)))
            return key;
    }
    return NULL;
}

// The nearest key of the same block, else one of that name in any block.
static Status unknown_key(const DsReader *r, const char *path) {
    size_t block = parent_len(path);
    Nearest nearest = {.word = path + block}, exact = {.word = path + block};
    char prefix[DS_PATH_BYTES], hint[2 * DS_PATH_BYTES + 32];
    snprintf(prefix, sizeof prefix, "%.*s", (int)block, path);
    for (int i = 0; i < n_deepspeed_keys; i++) {
        const DsKey *key = &deepspeed_keys[i];
        const char *name = key->path + parent_len(key->path);
        if (strcmp(name, exact.word) == 0 && !exact.name)
            exact.name = key->path, exact.name_len = strlen(key->path);
        if (parent_len(key->path) != block || strncmp(key->path, path, block) != 0)
            continue;
        nearest_try(&nearest, name, strlen(name));
        for (const char *at = key->beside; at && *at; at += strspn(at, " ")) {
            nearest_try(&nearest, at, strcspn(at, " "));
            at += strcspn(at, " ");
        }
    }
    bool near = nearest.name != NULL;
    return fail_usage("%s: unknown key \"%s\"%s; --config-help lists the keys", r->path, path,
                      nearest_text(near ? &nearest : &exact, near ? prefix : "", hint, sizeof hint));
}

// ---- values ----

Status ds_wrong_value(const DsReader *r, const char *path, const cJSON *item, const char *wanted) {
    char *text = cJSON_PrintUnformatted(item);
    Status status = fail_usage("%s: \"%s\" is %.60s; it takes %s", r->path, path, text ? text : "?", wanted);
    cJSON_free(text);
    return status;
}

bool ds_is_auto(const cJSON *item) {
    return cJSON_IsString(item) && strcmp(item->valuestring, "auto") == 0;
}

Status ds_value_text(const DsReader *r, const char *path, const cJSON *item, DsValue value, char text[DS_PATH_BYTES]) {
    static const char *const wanted[] = {
        [DS_NUMBER] = "a number", [DS_SWITCH] = "true or false", [DS_TEXT] = "a text of less than 192 bytes"};
    double x = item->valuedouble;
    if (value == DS_NUMBER && cJSON_IsNumber(item) && isfinite(x))
        snprintf(text, DS_PATH_BYTES, x == floor(x) && fabs(x) <= FLAG_MAX_WHOLE ? "%.0f" : "%.17g", x);
    else if (value == DS_SWITCH && cJSON_IsBool(item))
        snprintf(text, DS_PATH_BYTES, "%s", cJSON_IsTrue(item) ? "on" : "off");
    else if (value == DS_TEXT && cJSON_IsString(item) && strlen(item->valuestring) < DS_PATH_BYTES)
        snprintf(text, DS_PATH_BYTES, "%s", item->valuestring);
    else
        return ds_wrong_value(r, path, item, wanted[value]);
    return OK;
}

Status ds_set(DsReader *r, const char *flag, const char *text, const char *path) {
    Status status = config_set(r->config, flag, text, path);
    return status == OK || strstr(status_message(), path) ? status : fail_context(status, "%s: \"%s\"", r->path, path);
}

// ---- every key by itself ----

static bool asks_for_nothing(const DsKey *key, const cJSON *item) {
    if (cJSON_IsNull(item) || ds_is_auto(item) || cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(item, "enabled")))
        return true;
    if ((cJSON_IsObject(item) || cJSON_IsArray(item)) && !item->child)
        return true;
    char *text = cJSON_PrintUnformatted(item);
    bool harmless = text && in_list(key->harmless, "|", text);
    cJSON_free(text);
    return harmless;
}

static Status take_key(DsReader *r, const DsKey *key, const char *path, const cJSON *item) {
    char text[DS_PATH_BYTES];
    if (key->effect == DS_HONOURED) {
        if (!key->flag || cJSON_IsNull(item) || ds_is_auto(item))
            return OK;
        TRY(ds_value_text(r, path, item, key->value, text));
        return ds_set(r, key->flag, text, key->path);
    }
    if (asks_for_nothing(key, item))
        return OK;
    if (key->effect == DS_REFUSED) {
        char *found = cJSON_PrintUnformatted(item);
        Status status = fail_usage("%s: \"%s\": %.60s is refused: %s", r->path, path, found ? found : "?", key->note);
        cJSON_free(found);
        return status;
    }
    ds_append(r->ignored, ", ", path);
    return OK;
}

static Status take_keys(DsReader *r, const cJSON *object, const char *block) {
    const cJSON *item;
    cJSON_ArrayForEach(item, object) {
        char path[DS_PATH_BYTES];
        bool beside;
        int n = snprintf(path, sizeof path, "%s%s%s", block, *block ? "." : "", item->string);
        bool is_name = n < DS_PATH_BYTES && !strchr(item->string, '.');  // "fp16.enabled" is no way to write a block
        const DsKey *key = is_name ? find_key(path, &beside) : NULL;
        if (!key)
            return unknown_key(r, path);
        if (beside && *key->harmless)
            continue;
        if (key->value != DS_BLOCK)
            TRY(take_key(r, key, path, item));
        else if (cJSON_IsObject(item))
            TRY(take_keys(r, item, path));
        else if (!cJSON_IsNull(item))
            return ds_wrong_value(r, path, item, "an object, { … }");
    }
    return OK;
}

static Status take_file(DsReader *r) {
    if (!cJSON_IsObject(r->json))
        return fail_usage("%s is not a JSON object, { … }", r->path);
    TRY(take_keys(r, r->json, ""));
    return ds_take_rules(r);
}

// ---- the file ----

static Status load(const char *path, cJSON **json) {
    struct stat info;
    FILE *file = fopen(path, "rb");
    if (!file)
        return fail_usage("cannot open --config %s: %s", path, strerror(errno));
    char *text = NULL;
    Status status = OK;
    if (fstat(fileno(file), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > MAX_FILE_BYTES)
        status = fail_usage("--config %s: a regular file of at most %d KiB is needed", path, MAX_FILE_BYTES >> 10);
    else if (!(text = malloc((size_t)info.st_size + 1)))
        status = fail("no memory for %s", path);
    if (status == OK) {
        size_t bytes = fread(text, 1, (size_t)info.st_size, file);
        status = ferror(file) ? fail("cannot read %s: %s", path, strerror(errno))
                              : relaxed_json_parse(text, bytes, path, json);
    }
    free(text);
    fclose(file);
    return status;
}

Status deepspeed_read(Config *config, FILE *notes) {
    cJSON *json;
    TRY(load(config->config_file, &json));
    DsReader r = {.path = config->config_file, .json = json, .config = config};
    Status status = take_file(&r);
    cJSON_Delete(json);
    if (status == OK && notes && *r.ignored)
        fprintf(notes, "note: %s: no effect here: %s (--config-help says why)\n", r.path, r.ignored);
    if (status == OK && notes && *r.notes)
        fprintf(notes, "note: %s: %s\n", r.path, r.notes);
    return status;
}

// ---- --config-help ----

static void print_key(FILE *file, const char *path, const DsKey *key) {
    fprintf(file, "  %-52s ", path);
    if (key->effect == DS_REFUSED && key->harmless && *key->harmless)
        fprintf(file, "unless %s: ", key->harmless);
    fprintf(file, "%s%s\n", key->flag ? "--" : "", key->flag ? key->flag : key->note);
}

void deepspeed_print_help(FILE *file) {
    static const char *const titles[DS_EFFECTS] = {
        [DS_HONOURED] = "Honoured",
        [DS_NO_EFFECT] = "No effect here (said at start, when the file asks for something)",
        [DS_REFUSED] = "Refused"};
    fprintf(
        file,
        "What --config makes of each key of DeepSpeed's JSON. \"auto\", null and a key that is left out mean: as the\n"
        "flag says. Inside of \"optimizer\" and \"scheduler\" what is left out has DeepSpeed's default, unless the "
        "flag\n"
        "is given. A flag that contradicts the file is an error. Comments and trailing commas are fine.\n");
    for (int effect = 0; effect < DS_EFFECTS; effect++) {
        fprintf(file, "\n%s\n", titles[effect]);
        for (int i = 0; i < n_deepspeed_keys; i++) {
            const DsKey *key = &deepspeed_keys[i];
            if ((int)key->effect != effect || key->value == DS_BLOCK)
                continue;
            print_key(file, key->path, key);
            for (const char *at = key->beside; at && *at; at += strspn(at, " ")) {
                char path[DS_PATH_BYTES];
                snprintf(path, sizeof path, "%.*s%.*s", (int)parent_len(key->path), key->path, (int)strcspn(at, " "),
                         at);
                DsKey like = *key;
                if (*key->harmless)
                    like = (DsKey){.note = "goes with the key above"};
                print_key(file, path, &like);
                at += strcspn(at, " ");
            }
        }
    }
}
