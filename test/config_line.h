// config_line: fill a Config from one string, as a shell would hand it to the program. For tests.
#ifndef TEST_CONFIG_LINE_H
#define TEST_CONFIG_LINE_H

#include "llm/config.h"
#include "test/check.h"

// Split a command line at spaces and parse it over the defaults. The words live until the next call.
static inline Status parse_line(Config *config, const char *line) {
    static char words[1024];
    char *argv[64] = {"train_gpt"}, *save;
    int argc = 1;
    snprintf(words, sizeof words, "%s", line);
    for (char *word = strtok_r(words, " ", &save); word; word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    config_defaults(config);
    return config_parse(config, argc, argv);
}

static inline Status resolve_line(Config *config, const char *line, int ranks, int64_t data_vocab) {
    TRY(parse_line(config, line));
    return config_resolve(config, ranks, data_vocab);
}

#endif
