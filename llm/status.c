#include "llm/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[STATUS_MESSAGE_BYTES];

static void record(const char *format, va_list arguments) {
    if (message[0] == '\0')  // the first error wins
        vsnprintf(message, sizeof message, format, arguments);
}

Status fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    record(format, arguments);
    va_end(arguments);
    return FAILED;
}

Status fail_usage(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    record(format, arguments);
    va_end(arguments);
    return BAD_USAGE;
}

Status fail_context(Status status, const char *format, ...) {
    char inner[STATUS_MESSAGE_BYTES];
    memcpy(inner, message, sizeof inner);
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (n >= 0 && (size_t)n < sizeof message)
        snprintf(message + n, sizeof message - (size_t)n, ": %.*s", (int)(sizeof message - (size_t)n), inner);
    return status;
}

const char *status_message(void) {
    return message;
}

void status_clear(void) {
    message[0] = '\0';
}
