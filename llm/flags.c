// Values of options: text to field and back.

#include "llm/flags.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "llm/nearest.h"
#include "llm/utf8.h"

_Static_assert(sizeof(size_t) == sizeof(uint64_t), "sizes are 64 bits");
_Static_assert(sizeof(Optimizer) == sizeof(int), "enumerations are stored as int");

const Flag *flag_find(const char *name) {
    for (int i = 0; i < n_flags; i++)
        if (strcmp(flags[i].name, name) == 0)
            return &flags[i];
    return NULL;
}

const char *flag_choice(const Flag *flag, int i, size_t *len) {
    const char *name = flag->kind == FLAG_BOOL ? "off|on" : flag->value;
    for (; i > 0 && name; i--) {
        name = strchr(name, '|');
        if (name)
            name++;
    }
    if (name)
        *len = strcspn(name, "|");
    return name;
}

// ---- fields ----

static void set_number(const Flag *flag, double x, Config *config) {
    void *field = (char *)config + flag->offset;
    switch (flag->kind) {
        case FLAG_BOOL: *(bool *)field = x != 0; break;
        case FLAG_CHOICE:
        case FLAG_INT: *(int *)field = (int)x; break;
        case FLAG_INT64: *(int64_t *)field = (int64_t)x; break;
        case FLAG_UINT64: *(uint64_t *)field = (uint64_t)x; break;
        case FLAG_REAL: *(double *)field = x; break;
        case FLAG_FLOAT: *(float *)field = (float)x; break;
        case FLAG_TEXT: break;
    }
}

double float_decimal(float x) {
    char text[32];
    snprintf(text, sizeof text, "%.7g", x);
    double decimal = strtod(text, NULL);
    return (float)decimal == x ? decimal : x;
}

double flag_number(const Flag *flag, const Config *config) {
    const void *field = (const char *)config + flag->offset;
    switch (flag->kind) {
        case FLAG_BOOL: return *(const bool *)field;
        case FLAG_CHOICE:
        case FLAG_INT: return *(const int *)field;
        case FLAG_INT64: return (double)*(const int64_t *)field;
        case FLAG_UINT64: return (double)*(const uint64_t *)field;
        case FLAG_REAL: return *(const double *)field;
        case FLAG_FLOAT: return float_decimal(*(const float *)field);
        case FLAG_TEXT: break;
    }
    return 0;
}

static void number_text(double x, char *text, size_t text_bytes) {
    if (x == floor(x) && fabs(x) <= FLAG_MAX_WHOLE)
        snprintf(text, text_bytes, "%.0f", x);
    else
        snprintf(text, text_bytes, "%.15g", x);
}

char *flag_text(const Flag *flag, const Config *config, char *text, size_t text_bytes) {
    if (flag->kind == FLAG_TEXT) {
        const char *string = *(const char *const *)((const char *)config + flag->offset);
        snprintf(text, text_bytes, "%s", string ? string : "");
    } else if (flag->kind == FLAG_BOOL || flag->kind == FLAG_CHOICE) {
        size_t len;
        const char *name = flag_choice(flag, (int)flag_number(flag, config), &len);
        snprintf(text, text_bytes, "%.*s", name ? (int)len : 0, name ? name : "");
    } else {
        number_text(flag_number(flag, config), text, text_bytes);
    }
    return text;
}

// ---- parsing ----

// "20000", "20K", "1.5Gi": digits, an optional fraction, an optional unit; the result must be whole. Infinity stands
// for too large.
static bool parse_whole(const char *text, double *value) {
    static const struct {
        const char *name;
        uint64_t factor;
    } units[] = {{"", 1},
                 {"K", 1000},
                 {"M", 1000000},
                 {"G", 1000000000},
                 {"T", 1000000000000},
                 {"Ki", 1ull << 10},
                 {"Mi", 1ull << 20},
                 {"Gi", 1ull << 30},
                 {"Ti", 1ull << 40}};
    const char *at = text + (*text == '-');
    unsigned __int128 digits = 0, scale = 1;
    if (!isdigit((unsigned char)*at))
        return false;
    bool fraction = false;
    for (; isdigit((unsigned char)*at) || (*at == '.' && !fraction); at++) {
        if (*at == '.') {
            fraction = true;
            continue;
        }
        digits = digits * 10 + (unsigned)(*at - '0');
        if (fraction)
            scale *= 10;
        if (digits > (unsigned __int128)1 << 80 || scale > (unsigned __int128)1 << 80) {
            *value = INFINITY;  // the range check says what is allowed
            return true;
        }
    }
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(at, units[i].name) != 0)
            continue;
        digits *= units[i].factor;
        if (digits % scale != 0)
            return false;
        *value = digits / scale > (uint64_t)FLAG_MAX_WHOLE ? INFINITY : (double)(uint64_t)(digits / scale);
        if (*text == '-')
            *value = -*value;
        return true;
    }
    return false;
}

static bool parse_real(const char *text, double *value) {
    if (strspn(text, "0123456789+-.eE") != strlen(text) || *text == '\0')  // no hexadecimal, no "nan", no spaces
        return false;
    char *end;
    *value = strtod(text, &end);
    return *end == '\0';
}

static Status parse_choice(const Flag *flag, const char *text, Config *config) {
    Nearest nearest = {.word = text};
    size_t len;
    const char *name;
    for (int i = 0; (name = flag_choice(flag, i, &len)) != NULL; i++) {
        if (strlen(text) == len && strncmp(text, name, len) == 0) {
            set_number(flag, i, config);
            return OK;
        }
        nearest_try(&nearest, name, len);
    }
    char hint[128];
    return fail_usage("--%s takes %s, not \"%s\"%s", flag->name, flag->kind == FLAG_BOOL ? "on|off" : flag->value, text,
                      nearest_text(&nearest, "", hint, sizeof hint));
}

Status flag_parse(const Flag *flag, const char *text, Config *config) {
    if (flag->kind == FLAG_TEXT) {
        if (*text == '\0')
            return fail_usage("--%s needs a value, found an empty one", flag->name);
        if (!utf8_valid(text))
            return fail_usage("--%s takes text in UTF-8, found other bytes: the log and checkpoints could not say them",
                              flag->name);
        memcpy((char *)config + flag->offset, &text, sizeof text);
        return OK;
    }
    if (flag->kind == FLAG_BOOL || flag->kind == FLAG_CHOICE)
        return parse_choice(flag, text, config);

    double x;
    bool whole = flag->kind != FLAG_REAL && flag->kind != FLAG_FLOAT;
    if (!(!whole && parse_real(text, &x)) && !((whole || flag->traits & FLAG_UNITS) && parse_whole(text, &x)))
        return fail_usage(
            "--%s takes a %s, not \"%s\"%s", flag->name, whole ? "whole number" : "number", text,
            whole ? " (20000, 20K and 20Ki are fine; K = 1000, Ki = 1024)" : " (0.001 and 1e-3 are fine)");
    bool too_low = !(x >= flag->min) || (x == flag->min && flag->traits & FLAG_ABOVE_MIN);
    bool too_high = x > flag->max || (x == flag->max && flag->traits & FLAG_BELOW_MAX);
    if (too_low || too_high) {
        char low[32], high[32], range[128];
        number_text(flag->min, low, sizeof low);
        number_text(flag->max, high, sizeof high);
        int n = snprintf(range, sizeof range, "%s %s", flag->traits & FLAG_ABOVE_MIN ? "above" : "at least", low);
        if (too_high || flag->max < FLAG_MAX_WHOLE)
            snprintf(range + n, sizeof range - (size_t)n, " and %s %s",
                     flag->traits & FLAG_BELOW_MAX ? "below" : "at most", high);
        return fail_usage("--%s %s is out of range: it must be %s", flag->name, text, range);
    }
    set_number(flag, x, config);
    return OK;
}
