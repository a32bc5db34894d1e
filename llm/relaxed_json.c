#include "llm/relaxed_json.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "llm/utf8.h"

static int line_of(const char *text, const char *at) {
    int line = 1;
    for (; text < at; text++)
        line += *text == '\n';
    return line;
}

// ---- what JSON does not have becomes spaces, so that places in the text stay what they were ----

// The end of a comment that begins at `at`; `at` where none does, NULL where one does not end.
static char *comment_end(char *at) {
    if (*at == '#' || (at[0] == '/' && at[1] == '/'))
        return at + strcspn(at, "\n");
    if (at[0] != '/' || at[1] != '*')
        return at;
    char *end = strstr(at + 2, "*/");
    return end ? end + 2 : NULL;
}

static char *string_end(char *at) {
    for (at++; *at && *at != '"'; at++)
        if (*at == '\\' && at[1])
            at++;
    return *at ? at + 1 : at;
}

static Status blank(char *text, const char *path) {
    char *comma = NULL;  // the last one, when only space came after it
    char last = '\0';    // what came before that comma: "[,]" stays wrong
    for (char *at = text; *at;) {
        char *end = comment_end(at);
        if (!end)
            return fail_usage("%s, line %d: the comment does not end", path, line_of(text, at));
        if (end > at) {
            for (; at < end; at++)
                if (*at != '\n')
                    *at = ' ';
            continue;
        }
        if (strchr(" \t\r\n", *at)) {
            at++;
            continue;
        }
        if ((*at == '}' || *at == ']') && comma && !strchr("[{,", last))
            *comma = ' ';
        if (*at == ',') {
            comma = at++;
            continue;
        }
        comma = NULL;
        last = *at;
        at = *at == '"' ? string_end(at) : at + 1;
    }
    return OK;
}

// ---- keys that are there twice ----

static int by_key(const void *a, const void *b) {
    return strcmp((*(const cJSON *const *)a)->string, (*(const cJSON *const *)b)->string);
}

static Status check_twice(const cJSON *json, const char *path) {
    int n = cJSON_GetArraySize(json);
    const cJSON **items = malloc(((size_t)n + 1) * sizeof *items), *item;
    if (!items)
        return fail("no memory for %d keys of %s", n, path);
    int i = 0;
    cJSON_ArrayForEach(item, json) items[i++] = item;
    Status status = OK;
    if (cJSON_IsObject(json))
        qsort(items, (size_t)n, sizeof *items, by_key);
    for (i = 0; i < n && status == OK; i++) {
        if (cJSON_IsObject(json) && i > 0 && by_key(&items[i - 1], &items[i]) == 0)
            status = fail_usage("%s: the key \"%.100s\" is there twice in one object", path, items[i]->string);
        else if (cJSON_IsObject(items[i]) || cJSON_IsArray(items[i]))
            status = check_twice(items[i], path);
    }
    free(items);
    return status;
}

Status relaxed_json_parse(char *text, size_t bytes, const char *path, cJSON **json) {
    *json = NULL;
    text[bytes] = '\0';
    if (strlen(text) != bytes || !utf8_valid(text))
        return fail_usage("%s is not a text in UTF-8", path);
    TRY(blank(text, path));
    const char *end = text;
    cJSON *parsed = cJSON_ParseWithOpts(text, &end, true);
    if (!parsed) {
        int shown = (int)strcspn(end, "\n");
        return fail_usage("%s, line %d: not JSON at \"%.*s\"", path, line_of(text, end), shown < 40 ? shown : 40, end);
    }
    Status status = check_twice(parsed, path);
    if (status == OK)
        *json = parsed;
    else
        cJSON_Delete(parsed);
    return status;
}
