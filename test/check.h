// check: what every test file includes: cmocka, with status checks and a scratch directory.
#ifndef TEST_CHECK_H
#define TEST_CHECK_H

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#undef fail  // cmocka's macro; llm/status.h has a function of that name
#define fail_test() _fail(__FILE__, __LINE__)
// clang-format on

#include "llm/status.h"

// The expression must return OK; otherwise its message is printed.
#define assert_ok(expression)                                                          \
    do {                                                                               \
        status_clear();                                                                \
        if ((expression) != OK) {                                                      \
            print_error("%s failed: %s\n", #expression, status_message());             \
            fail_test();                                                                    \
        }                                                                              \
    } while (0)

// The expression must fail, and its message must contain `text`.
#define assert_fails(expression, text)                                                            \
    do {                                                                                          \
        status_clear();                                                                           \
        if ((expression) == OK) {                                                                 \
            print_error("%s succeeded, expected an error with \"%s\"\n", #expression, text);      \
            fail_test();                                                                               \
        }                                                                                         \
        if (!strstr(status_message(), text)) {                                                    \
            print_error("%s: message \"%s\" lacks \"%s\"\n", #expression, status_message(), text); \
            fail_test();                                                                               \
        }                                                                                         \
        status_clear();                                                                           \
    } while (0)

// A new directory under $TMPDIR (or /tmp) for this test; removed by check_remove_dir.
static inline char *check_make_dir(void) {
    static char path[256];
    snprintf(path, sizeof path, "%s/zero_test_XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(path))
        abort();
    return path;
}

static inline void check_remove_dir(const char *path) {
    char command[512];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    if (system(command) != 0)
        print_error("cannot remove %s\n", path);
}

#endif
