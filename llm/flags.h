// flags: one table that says everything about every option; config.c reads it to parse, print, help and compare.
//
// A row knows where its value lives in Config and of which type it is (from the field's own type, so the two cannot
// disagree), its default (as text, parsed like a user's), its range, and what it does. Rows marked FLAG_DERIVED are no
// options: config_resolve works them out, and they are printed and compared like the others.
#ifndef LLM_FLAGS_H
#define LLM_FLAGS_H

#include "llm/config.h"

typedef enum FlagGroup {
    GROUP_MODEL,
    GROUP_DATA,
    GROUP_BATCH,
    GROUP_OPTIMIZER,
    GROUP_PRECISION,
    GROUP_ZERO,
    GROUP_MEMORY,
    GROUP_RUN,
    GROUP_TOOLS,
    FLAG_GROUPS
} FlagGroup;

extern const char *const flag_group_titles[FLAG_GROUPS];  // help
extern const char *const flag_group_keys[FLAG_GROUPS];    // JSON

typedef enum FlagKind {
    FLAG_BOOL,    // on|off, or a switch without a value when the row has no `value`
    FLAG_CHOICE,  // one of the names in `value`, which are in the order of the enumeration
    FLAG_INT,     // whole numbers; K M G T and Ki Mi Gi Ti may follow
    FLAG_INT64,
    FLAG_UINT64,
    FLAG_REAL,
    FLAG_FLOAT,
    FLAG_TEXT,
} FlagKind;

typedef enum FlagTraits {
    FLAG_NUMBERS = 1,    // another value gives another run (other losses): config_compare looks at it
    FLAG_DERIVED = 2,    // not an option
    FLAG_ABOVE_MIN = 4,  // `min` itself is out of range
    FLAG_BELOW_MAX = 8,  // `max` itself is out of range
    FLAG_UNITS = 16,     // a real number that K, M, G, T may follow
} FlagTraits;

typedef struct Flag {
    const char *name;  // without dashes
    FlagGroup group;
    FlagKind kind;
    size_t offset;          // of the field in Config
    const char *value;      // what help calls the value, with its unit; choices: the names, "a|b|c"; NULL: a switch
    const char *standard;   // default, as a user would write it; NULL: zero, and `otherwise` says what that means
    const char *otherwise;  // help's words for the default, where `standard` does not say it
    double min, max;        // range of numbers
    int traits;             // FlagTraits
    const char *help;
} Flag;

extern const Flag flags[];
extern const int n_flags;

// No option goes beyond: whole numbers of 15 digits are exact in double, and cJSON writes all of their digits.
#define FLAG_MAX_WHOLE 999999999999999.0

const Flag *flag_find(const char *name);  // NULL: no such row

// Parse `text` into the flag's field; fails, naming the option, with what was found and what is allowed.
Status flag_parse(const Flag *flag, const char *text, Config *config);

// A field as a number (every kind but text), and as text in the form a user would write ("" for a NULL text).
double flag_number(const Flag *flag, const Config *config);
char *flag_text(const Flag *flag, const Config *config, char *text, size_t text_bytes);

// Name i of a choice: returns its start and sets *len; NULL past the last one.
const char *flag_choice(const Flag *flag, int i, size_t *len);

#endif
