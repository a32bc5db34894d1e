// deepspeed: --config ds_config.json, DeepSpeed's own configuration file, read into the options of this program.
//
// One table (llm/deepspeed_table.c) has every key of https://www.deepspeed.ai/docs/config-json/ and what is made of it:
// honoured (it gives a flag its value), no effect here (said once, when the file asks for something), or refused with the
// reason. A key that is not in the table is refused with the nearest one. --config-help prints the table.
//
// "auto", null and a key that is left out mean: as the flag says. Inside of a block that is there ("optimizer",
// "scheduler", an enabled "fp16") what is left out has DeepSpeed's default, unless the flag is given. A flag on the command
// line that contradicts the file is an error; one that agrees is none.
#ifndef LLM_DEEPSPEED_H
#define LLM_DEEPSPEED_H

#include <stdio.h>

#include "llm/config.h"

typedef enum DsEffect { DS_HONOURED, DS_NO_EFFECT, DS_REFUSED, DS_EFFECTS } DsEffect;

typedef enum DsValue {
    DS_ANY,
    DS_NUMBER,
    DS_SWITCH,  // true or false
    DS_TEXT,
    DS_BLOCK,  // an object whose keys have rows of their own
    DS_FREE,   // an object or a list of whatever
} DsValue;

typedef struct DsKey {
    const char *path;  // "zero_optimization.stage"
    DsEffect effect;
    DsValue value;
    const char *flag;      // honoured: the flag that takes the value as it is; NULL: deepspeed.c works it out
    const char *harmless;  // no effect, refused: JSON values that ask for nothing, separated by |
    const char *note;      // for people: what is made of it, or why not
    const char *beside;    // names of more keys of the same block, separated by spaces: where `harmless` has a value they
                           // only say more about this one, else they are treated alike
} DsKey;

extern const DsKey deepspeed_keys[];
extern const int n_deepspeed_keys;

// Read config->config_file. Call it after config_parse and before config_resolve. What has no effect is said on `notes`,
// unless that is NULL.
Status deepspeed_read(Config *config, FILE *notes);

void deepspeed_print_help(FILE *file);  // --config-help

#endif
