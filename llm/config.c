#include "llm/config.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "llm/flags.h"
#include "llm/nearest.h"

// ---- command line to Config ----

static void mark_given(Config *config, const Flag *flag) {
    size_t i = (size_t)(flag - flags);
    config->given[i / 32] |= 1u << i % 32;
}

bool config_given(const Config *config, const char *name) {
    size_t i = (size_t)(flag_find(name) - flags);
    return config->given[i / 32] >> i % 32 & 1;
}

const char *config_source(const Config *config, const char *name, char *text, size_t text_bytes) {
    const char *key = config->given_by[flag_find(name) - flags];
    if (key)
        snprintf(text, text_bytes, "\"%s\" of %s", key, config->config_file);
    else
        snprintf(text, text_bytes, "--%s", name);
    return text;
}

Status config_set(Config *config, const char *name, const char *text, const char *key) {
    const Flag *flag = flag_find(name);
    Config other = *config;
    TRY(flag_parse(flag, text, &other));
    if (config_given(config, name)) {
        char here[256], there[256], source[512];
        flag_text(flag, config, here, sizeof here);
        flag_text(flag, &other, there, sizeof there);
        return strcmp(here, there) == 0
                   ? OK
                   : fail_usage("%s says %s, but \"%s\" of %s says %s: leave one of the two out",
                                config_source(config, name, source, sizeof source), here, key, config->config_file, there);
    }
    *config = other;
    mark_given(config, flag);
    config->given_by[flag - flags] = key;
    return OK;
}

void config_defaults(Config *config) {
    memset(config, 0, sizeof *config);
    for (int i = 0; i < n_flags; i++)
        if (flags[i].standard)
            (void)flag_parse(&flags[i], flags[i].standard, config);  // a test parses them all
}

static bool is_switch(const Flag *flag) {
    return flag->kind == FLAG_BOOL && !flag->value;
}

static Status unknown_option(const char *name) {
    Nearest nearest = {.word = name};
    for (int i = 0; i < n_flags; i++)
        if (!(flags[i].traits & FLAG_DERIVED))
            nearest_try(&nearest, flags[i].name, strlen(flags[i].name));
    char hint[128];
    return fail_usage("unknown option --%s%s; --help lists the options", name,
                      nearest_text(&nearest, "--", hint, sizeof hint));
}

Status config_parse(Config *config, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *argument = argv[i];
        if (strncmp(argument, "--", 2) != 0 || argument[2] == '\0')
            return fail_usage(
                "unexpected argument \"%s\": options begin with two dashes; a glob pattern must be quoted "
                "(--train 'shards/*.h5'); --help lists the options",
                argument);

        char name[64];
        const char *equals = strchr(argument, '=');
        snprintf(name, sizeof name, "%.*s", equals ? (int)(equals - argument - 2) : (int)sizeof name, argument + 2);
        const Flag *flag = flag_find(name);
        if (!flag || flag->traits & FLAG_DERIVED)
            return unknown_option(name);
        if (flag->group == GROUP_TOOLS && config_given(config, flag->name))
            return fail_usage("--%s is given twice", name);  // else one would be left out, and look as if it had run

        if (is_switch(flag)) {
            if (equals)
                return fail_usage("--%s takes no value, found \"%s\"", name, equals + 1);
            TRY(flag_parse(flag, "on", config));
        } else {
            const char *value = equals ? equals + 1 : argv[i + 1 < argc ? i + 1 : i];
            if (!equals && i + 1 == argc)
                return fail_usage("--%s needs a value (%s)", name, flag->value);
            if (!equals && strncmp(value, "--", 2) == 0)
                return fail_usage(
                    "--%s needs a value (%s), found the option %s; a value that begins with dashes is "
                    "written --%s=%s",
                    name, flag->value, value, name, value);
            TRY(flag_parse(flag, value, config));
            i += !equals;
        }
        mark_given(config, flag);
    }
    return OK;
}

// ---- help ----

enum { HELP_COLUMN = 32, HELP_WIDTH = 100 };

// Print words from column `column` on, broken before HELP_WIDTH, later lines indented to HELP_COLUMN.
static void print_wrapped(FILE *file, const char *text, int column) {
    while (*text) {
        int len = (int)strcspn(text, " ");
        if (column + 1 + len > HELP_WIDTH) {
            fprintf(file, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        }
        fprintf(file, "%s%.*s", column == HELP_COLUMN ? "" : " ", len, text);
        column += len + (column != HELP_COLUMN);
        text += len;
        text += strspn(text, " ");
    }
    fputc('\n', file);
}

static void print_option(FILE *file, const Flag *flag) {
    int column = fprintf(file, "  --%s%s%s", flag->name, flag->value ? " " : "", flag->value ? flag->value : "");
    if (column >= HELP_COLUMN - 1)
        fprintf(file, "\n%*s", HELP_COLUMN, "");
    else
        fprintf(file, "%*s", HELP_COLUMN - column, "");
    const char *standard = flag->standard ? flag->standard : flag->otherwise;
    char text[512];
    snprintf(text, sizeof text, "%s%s%s%s", flag->help, standard ? " [" : "", standard ? standard : "",
             standard ? "]" : "");
    print_wrapped(file, text, HELP_COLUMN);
}

void config_print_help(FILE *file) {
    fprintf(file,
            "Usage: train_gpt --train 'shards/*.h5' [options]\n"
            "Pretrain a GPT-2 or LLaMA model on tokenized HDF5 shards, on one rank or many (mpirun), with ZeRO stages "
            "0-3.\n"
            "\n"
            "--option VALUE and --option=VALUE are the same; the last one of an option counts. Defaults are in "
            "[brackets].\n"
            "Whole numbers take K, M, G, T (1000, ...) and Ki, Mi, Gi, Ti (1024, ...).\n");
    for (int group = 0; group < FLAG_GROUPS; group++) {
        fprintf(file, "\n%s\n", flag_group_titles[group]);
        for (int i = 0; i < n_flags; i++)
            if ((int)flags[i].group == group && !(flags[i].traits & FLAG_DERIVED))
                print_option(file, &flags[i]);
    }
    fprintf(file, "\nExit status: 0 done, 1 failed, 2 bad usage, 3 interrupted after saving.\n");
}

// ---- JSON ----

enum { KEY_BYTES = 64 };

// "seq-len" is seq_len in JSON, like the log's keys.
static const char *json_key(const Flag *flag, char key[KEY_BYTES]) {
    snprintf(key, KEY_BYTES, "%s", flag->name);
    for (char *c = key; *c; c++)
        if (*c == '-')
            *c = '_';
    return key;
}

static cJSON *json_value(const Flag *flag, const Config *config) {
    if (flag->kind == FLAG_BOOL)
        return cJSON_CreateBool(flag_number(flag, config) != 0);
    if (flag->kind == FLAG_TEXT) {
        const char *string = *(const char *const *)((const char *)config + flag->offset);
        return string ? cJSON_CreateString(string) : cJSON_CreateNull();
    }
    if (flag->kind == FLAG_CHOICE) {
        char text[64];
        return cJSON_CreateString(flag_text(flag, config, text, sizeof text));
    }
    return cJSON_CreateNumber(flag_number(flag, config));
}

cJSON *config_to_json(const Config *config) {
    cJSON *json = cJSON_CreateObject();
    for (int group = 0; group < GROUP_TOOLS; group++) {
        cJSON *object = cJSON_AddObjectToObject(json, flag_group_keys[group]);
        for (int i = 0; i < n_flags; i++) {
            char key[KEY_BYTES];
            if ((int)flags[i].group == group)
                cJSON_AddItemToObject(object, json_key(&flags[i], key), json_value(&flags[i], config));
        }
    }
    return json;
}

void config_print_json(const Config *config, FILE *file) {
    cJSON *json = config_to_json(config);
    char *text = cJSON_Print(json);
    fprintf(file, "%s\n", text ? text : "");
    free(text);
    cJSON_Delete(json);
}

// "fp32" for the string "fp32", 0.001 for a number: as a user would write it.
static void value_text(const cJSON *value, char *text, size_t text_bytes) {
    if (!value)
        snprintf(text, text_bytes, "nothing");
    else if (cJSON_IsString(value))
        snprintf(text, text_bytes, "%s", value->valuestring);
    else if (cJSON_IsBool(value))
        snprintf(text, text_bytes, "%s", cJSON_IsTrue(value) ? "on" : "off");
    else if (cJSON_IsNumber(value))
        snprintf(text, text_bytes, "%.15g", value->valuedouble);
    else
        snprintf(text, text_bytes, "something else");
}

int config_compare(const Config *config, const cJSON *saved, char *differences, size_t differences_bytes) {
    int n = 0;
    size_t used = 0;
    if (differences_bytes > 0)
        differences[0] = '\0';
    for (int i = 0; i < n_flags; i++) {
        if (!(flags[i].traits & FLAG_NUMBERS))
            continue;
        char key[KEY_BYTES], before[64], after[64];
        const cJSON *group = cJSON_GetObjectItemCaseSensitive(saved, flag_group_keys[flags[i].group]);
        const cJSON *then = cJSON_GetObjectItemCaseSensitive(group, json_key(&flags[i], key));
        cJSON *now = json_value(&flags[i], config);
        bool was_off = group && !then && cJSON_IsFalse(now);  // a switch that the program of then did not have
        if (!was_off && !cJSON_Compare(then, now, true)) {
            n++;
            value_text(then, before, sizeof before);
            value_text(now, after, sizeof after);
            if (used < differences_bytes)
                used += (size_t)snprintf(differences + used, differences_bytes - used, "%s: saved %s, now %s\n",
                                         flags[i].name, before, after);
        }
        cJSON_Delete(now);
    }
    return n;
}

Status model_config_from_json(ModelConfig *model, const cJSON *saved) {
    Config config = {0};
    const cJSON *group = cJSON_GetObjectItemCaseSensitive(saved, flag_group_keys[GROUP_MODEL]);
    for (int i = 0; i < n_flags; i++) {
        if (flags[i].offset < offsetof(Config, model) || flags[i].offset >= offsetof(Config, model) + sizeof *model)
            continue;
        // Of what was derived the table has no range: model_config_check has.
        Flag flag = flags[i];
        flag.min = flag.kind == FLAG_FLOAT ? -1e30 : INT_MIN;
        flag.max = flag.kind == FLAG_FLOAT ? 1e30 : INT_MAX;
        char key[KEY_BYTES], text[64];
        value_text(cJSON_GetObjectItemCaseSensitive(group, json_key(&flag, key)), text, sizeof text);
        TRY(flag_parse(&flag, text, &config));
    }
    TRY(model_config_check(&config.model));
    *model = config.model;
    return OK;
}

// ---- text ----

char *format_bytes(char *text, size_t text_bytes, double bytes) {
    const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int unit = 0;
    for (; fabs(bytes) >= 1024 && unit < 5; unit++)
        bytes /= 1024;
    int decimals = bytes == floor(bytes) ? 0 : fabs(bytes) < 10 ? 2 : fabs(bytes) < 100 ? 1 : 0;
    snprintf(text, text_bytes, "%.*f %s", decimals, bytes, units[unit]);
    return text;
}
