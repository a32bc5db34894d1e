// status: how functions fail.
//
// A function that can fail returns a Status. The message that a user reads is written where the fault is found, by
// `fail(...)`: what was being done, on what (file, tensor, rank), what was found, and what to do about it. Callers pass
// the status on with TRY. Only main() turns a status into an exit code.
//
//   Status shard_open(const char *path, ...) {
//       if (fd < 0) return fail("cannot open shard %s: %s", path, strerror(errno));
//       TRY(check_header(fd));
//       ...
//   }
//
// The message belongs to the thread that failed. `status_message()` returns the last one of the calling thread; a worker
// thread hands its message over with status_take/status_put (see device streams). The first error wins: a later failure
// while cleaning up does not replace it. The idea of check macros that keep the first error is NCCL's.
#ifndef LLM_STATUS_H
#define LLM_STATUS_H

#include <stdbool.h>
#include <stddef.h>

typedef enum Status {
    OK = 0,
    FAILED = 1,       // exit status 1: something could not be done
    BAD_USAGE = 2,    // exit status 2: the command line or a configuration file is wrong
    INTERRUPTED = 3,  // exit status 3: stopped on request, after saving
} Status;

enum { STATUS_MESSAGE_BYTES = 2048 };

// Record a message (printf style, no trailing newline) and return FAILED / BAD_USAGE.
Status fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
Status fail_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Put `context: ` in front of the current message: for callers that know more (the rank, the file) than the callee.
Status fail_context(Status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

// The calling thread's message, "" if there is none. status_clear forgets it (after an error was handled).
const char *status_message(void);
void status_clear(void);

// Pass a failed status on to the caller.
#define TRY(expression)                      \
    do {                                     \
        Status try_status_ = (expression);   \
        if (try_status_ != OK)               \
            return try_status_;              \
    } while (0)

// Pass a failed status on after cleaning up: sets `status` (a local variable) and jumps.
#define TRY_GOTO(expression, label)          \
    do {                                     \
        status = (expression);               \
        if (status != OK)                    \
            goto label;                      \
    } while (0)

#endif
