// run: what a training run needs around its loop: the log, the status line, signals.
//
// Log. OUT/log.jsonl gets one JSON object an event (DESIGN of the log: README "Log"); the terminal gets one line a step:
// redrawn in place on a terminal, plain lines elsewhere. Rank 0 writes both; other ranks write nothing. On resume the file is
// cut to the length the checkpoint recorded, so no line is doubled and none is lost.
//
// Signals. SIGUSR2, SIGTERM and SIGINT ask for an end: the loop drops the unfinished step, saves the last finished
// one and exits with status 3; a second such signal exits at once. So do, once, SIGHUP and SIGPIPE: the terminal or the
// reader of the output is gone. SIGUSR1 asks for a checkpoint. When --max-minutes have passed, the run ends in the same
// way.
#ifndef ZERO_RUN_H
#define ZERO_RUN_H

#include "llm/config.h"
#include "zero/comm.h"
#include "zero/optimizer.h"

struct cJSON;

typedef enum RunRequest { REQUEST_NONE, REQUEST_SAVE, REQUEST_TIME_OVER, REQUEST_STOP } RunRequest;  // by strength
// Called before any other thread exists. Until run_listen, signals that ask for an end do what they do to any program.
Status run_take_signals(void);
void run_listen(int rank);  // from now on the loop asks; rank 0 says what a signal does
// Standard input, output and error that the caller closed become /dev/null. Otherwise the next file to be opened takes
// their number, and what is printed goes into it. First thing in main.
void run_open_standard_files(void);
// --max-minutes after the program's start, the loop is asked to end as if by a signal: REQUEST_TIME_OVER.
void run_limit_time(double minutes);

// What the ranks tell each other at the boundaries that they pass together.
typedef struct RunNews {
    RunRequest request;  // out: since the last call, the strongest of any rank
    bool writing;        // in: this rank is writing a checkpoint; out: any rank is
} RunNews;
Status run_exchange(Comm *comm, RunNews *news);  // collective

typedef struct RunLog RunLog;

typedef struct StepReport {
    int64_t step, steps;      // finished steps, of the run
    StepResult result;
    char skip_reason[256];    // why the update was skipped; "": it was not
    double lr, loss_scale;    // the scale that this step's backward used
    int64_t skipped;          // steps skipped so far
    int64_t tokens;           // trained on so far
    double seconds;           // of this step
    double tokens_per_s;      // of this step, all ranks
    double peak_fraction;     // of the measured matmul peak of all ranks; NAN when not measured
    double data_wait_s;
    double save_wait_s;       // that saves have held training up since the step before
    CommStats comm;
    const OffloadStats *offload;  // NULL: nothing is offloaded
} StepReport;

// Open OUT/log.jsonl (out NULL: terminal only), cut to `length`; a missing or empty one begins anew. Creates OUT. Only rank
// 0 writes. Fails when another run is writing it, or when it is shorter.
Status log_open(const char *out, int64_t length, int rank, int n_ranks, RunLog **log);
void log_close(RunLog *log);                   // NULL is fine
void log_end_line(RunLog *log);                // others may print: a status line that is redrawn ends; NULL is fine
int64_t log_length(const RunLog *log);         // bytes of the file so far
void log_step(RunLog *log, const StepReport *report, const Device *device);
// Any other event: adds "event" and writes the object (and frees it). For the file only.
void log_event(RunLog *log, const char *event, struct cJSON *fields);
// A line for people, above the status line.
void log_line(RunLog *log, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
