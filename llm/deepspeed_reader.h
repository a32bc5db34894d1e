// deepspeed_reader: what the two parts of the reader of DeepSpeed's JSON share: deepspeed.c takes every key by itself,
// deepspeed_rules.c what several say together.
#ifndef LLM_DEEPSPEED_READER_H
#define LLM_DEEPSPEED_READER_H

#include "llm/deepspeed.h"

enum { DS_PATH_BYTES = 192, DS_NOTES_BYTES = 4096 };

typedef struct DsReader {
    const char *path;  // of the file
    const struct cJSON *json;
    Config *config;
    char ignored[DS_NOTES_BYTES];  // keys without effect
    char notes[DS_NOTES_BYTES];    // what else a user should know
} DsReader;

void ds_append(char list[DS_NOTES_BYTES], const char *separator, const char *text);

// The value of key `path` as text for a flag: "fp32" for the string "fp32", "5e-05" for a number, "on" for true. Fails if it
// is of another kind.
Status ds_value_text(const DsReader *reader, const char *path, const struct cJSON *item, DsValue value,
                     char text[DS_PATH_BYTES]);
Status ds_wrong_value(const DsReader *reader, const char *path, const struct cJSON *item, const char *wanted);
bool ds_is_auto(const struct cJSON *item);

// config_set, with the key in front of what flag_parse says. `text` (of flags that are text) and `path` must live as long as
// the program.
Status ds_set(DsReader *reader, const char *flag, const char *text, const char *path);

Status ds_take_rules(DsReader *reader);

#endif
