#include "zero/run.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "zero/durable.h"

// ---- requests: signals and the clock ----

// A thread of their own takes signals; all others block them. A handler would interrupt the thread that computes, and the
// frame that the kernel then puts on its stack destroys what matmul code generated at run time keeps below the stack
// pointer: a heap that is broken once in some hundred signals.
static _Atomic bool listening, speaks, stop_requested, save_requested;
static double started, time_limit;  // by comm_clock; time_limit 0: none
static double asked;                // when a stop was first asked for
// timeout(1), among others, signals a process and then its group, which comes to two signals for one request.
static const double SAME_REQUEST_SECONDS = 0.5;

static sigset_t handled_signals(void) {
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction now;
        bool ignored = sigaction(signals[i], NULL, &now) == 0 && now.sa_handler == SIG_IGN;
        if (signals[i] != SIGHUP || !ignored)  // nohup ignores it: that stays so
            sigaddset(&set, signals[i]);
    }
    return set;
}

// What the signal would have done without us.
static void take_default(int signal_number) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal_number);
    signal(signal_number, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    raise(signal_number);
}

// Lines of this thread: the main thread may hold the lock of a stream.
static void say(const char *line) {
    if (speaks && write(STDERR_FILENO, line, strlen(line)) < 0)
        return;  // nobody listens
}

static void note_stop(void) {
    if (!stop_requested) {
        asked = comm_clock();
        say("train_gpt: stopping after this micro-batch; a second signal stops at once, without saving\n");
    }
    stop_requested = true;
}

static void end_at_once(int signal_number) {
    say("train_gpt: stopped at once, as asked twice\n");
    _exit(128 + signal_number);
}

static void *take_signals(void *unused) {
    (void)unused;
    sigset_t set = handled_signals();
    for (;;) {
        int signal_number;
        if (sigwait(&set, &signal_number) != 0)
            continue;
        if (signal_number == SIGUSR1)
            save_requested = true;
        else if (!listening)
            take_default(signal_number);
        else if (stop_requested && signal_number != SIGHUP && comm_clock() - asked > SAME_REQUEST_SECONDS)
            end_at_once(signal_number);
        else
            note_stop();
    }
    return NULL;
}

Status run_take_signals(void) {
    sigset_t set = handled_signals();
    pthread_t thread;
    started = comm_clock();
    pthread_sigmask(SIG_BLOCK, &set, NULL);  // threads that come later inherit this
    int error = pthread_create(&thread, NULL, take_signals, NULL);
    if (error)
        return fail("cannot start the thread that takes signals: %s", strerror(error));
    pthread_detach(thread);
    return OK;
}

// The program that read the output has ended. This one comes while the main thread writes, and nothing else.
static void on_closed_pipe(int signal_number) {
    (void)signal_number;
    stop_requested = true;
}

void run_listen(int rank) {
    struct sigaction action = {.sa_handler = on_closed_pipe, .sa_flags = SA_RESTART}, now;
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGPIPE, NULL, &now) == 0 && now.sa_handler == SIG_DFL)  // MPI looks after it: that stays so
        sigaction(SIGPIPE, &action, NULL);
    speaks = rank == 0;
    listening = true;
}

void run_open_standard_files(void) {
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

void run_limit_time(double minutes) {
    time_limit = minutes > 0 ? started + 60 * minutes : 0;
}

Status run_exchange(Comm *comm, RunNews *news) {
    bool over = time_limit > 0 && comm_clock() > time_limit;
    double most[2] = {stop_requested   ? REQUEST_STOP
                      : over           ? REQUEST_TIME_OVER
                      : save_requested ? REQUEST_SAVE
                                       : REQUEST_NONE,
                      news->writing};
    TRY(comm_max(comm, "requests", most, 2));
    news->request = (RunRequest)most[0];
    news->writing = most[1] > 0;
    if (news->request == REQUEST_SAVE)
        save_requested = false;
    return OK;
}

// ---- log ----

struct RunLog {
    int file;           // descriptor; -1: no file
    int64_t bytes;      // its length
    char path[PATH_BYTES];
    bool incomplete;    // a line could not be written, which was said
    bool speaks;        // rank 0
    bool terminal;      // stdout is one: redraw the status line
    bool line_open;     // a status line is on screen
    double speed;       // smoothed seconds a step, for the ETA
};

static Status make_directory(const char *path) {
    TRY(durable_make_parents(path));
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return fail("cannot create %s: %s", path, strerror(errno));
    return OK;
}

// A run that begins anew where another logged, and saved nothing, leaves it its lines.
static Status keep_old(const RunLog *log, const char *out) {
    char old[PATH_BYTES];
    TRY(durable_join(old, out, "log.jsonl.old"));
    int from = log->file, to = open(old, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    ssize_t got = to < 0 ? -1 : 1;
    char piece[4096];
    for (off_t at = 0; got > 0; at += got)
        if ((got = pread(from, piece, sizeof piece, at)) > 0 && write(to, piece, (size_t)got) != got)
            got = -1;
    if (to >= 0)
        close(to);
    return got == 0 ? OK : fail("cannot keep the log of an earlier run in %s: %s", old, strerror(errno));
}

// Open the file and take it for this run alone; where a file system knows no locks, nothing guards it.
static Status open_file(RunLog *log, const char *out, int64_t length) {
    Status made = make_directory(out);
    if (made != OK)
        return fail_context(made, "--out");
    TRY(durable_join(log->path, out, "log.jsonl"));
    log->file = open(log->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (log->file < 0)
        return fail("cannot write %s: %s", log->path, strerror(errno));
    if (flock(log->file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return fail("another run is writing %s: stop it, or choose another --out", log->path);
    struct stat info;
    if (fstat(log->file, &info) != 0)
        return fail("cannot read the length of %s: %s", log->path, strerror(errno));
    if (info.st_size == 0)
        return OK;  // a new one, also for a checkpoint whose log is lost
    if (info.st_size < length)
        return fail("%s is shorter (%lld bytes) than when the checkpoint was written (%lld): it belongs to another run; "
                    "move it away or choose another --out",
                    log->path, (long long)info.st_size, (long long)length);
    if (length == 0)
        TRY(keep_old(log, out));
    if (ftruncate(log->file, length) != 0)
        return fail("cannot cut %s to %lld bytes: %s", log->path, (long long)length, strerror(errno));
    log->bytes = length;
    return OK;
}

Status log_open(const char *out, int64_t length, int rank, int n_ranks, RunLog **log_out) {
    *log_out = NULL;
    RunLog *log = calloc(1, sizeof *log);
    if (!log)
        return fail("out of host memory");
    log->speaks = rank == 0;
    // mpirun gives rank 0 a terminal that is none.
    log->terminal = n_ranks == 1 && !getenv("OMPI_COMM_WORLD_SIZE") && isatty(STDOUT_FILENO);
    log->file = -1;
    Status status = out && log->speaks ? open_file(log, out, length) : OK;
    if (status == OK)
        *log_out = log;
    else
        log_close(log);
    return status;
}

void log_end_line(RunLog *log) {
    if (log && log->line_open)
        fputs("\n", stdout);
    if (log)
        log->line_open = false;
}

void log_close(RunLog *log) {
    if (!log)
        return;
    log_end_line(log);
    fflush(stdout);
    if (log->file >= 0)
        close(log->file);
    free(log);
}

int64_t log_length(const RunLog *log) {
    return log->bytes;
}

// A line that cannot be written, on a full disk, is left out whole, and training goes on.
static void append(RunLog *log, const char *line, size_t bytes) {
    if (durable_write_at(log->file, log->path, line, bytes, log->bytes) == OK) {
        log->bytes += (int64_t)bytes;
        return;
    }
    if (!log->incomplete)
        log_line(log, "the log will lack lines: %s", status_message());
    log->incomplete = true;
    status_clear();
    if (ftruncate(log->file, log->bytes) != 0)
        log->file = -1;  // half a line is in it, and will be the last
}

void log_event(RunLog *log, const char *event, cJSON *fields) {
    if (log->file >= 0 && fields) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "event", event);
        for (cJSON *item = fields->child; item; item = item->next)
            cJSON_AddItemReferenceToObject(object, item->string, item);
        char *text = cJSON_PrintUnformatted(object), *line = NULL;
        int bytes = text ? asprintf(&line, "%s\n", text) : -1;
        if (bytes >= 0)
            append(log, line, (size_t)bytes);
        if (bytes >= 0)
            free(line);
        cJSON_free(text);
        cJSON_Delete(object);
    }
    cJSON_Delete(fields);
}

void log_line(RunLog *log, const char *format, ...) {
    if (!log->speaks)
        return;
    log_end_line(log);
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    fputs("\n", stdout);
    fflush(stdout);
}

// "1d02h", "3h05m", "12m08s", "45s"
static void format_duration(char *text, size_t bytes, double seconds) {
    long long s = seconds < 0 ? 0 : (long long)(seconds + 0.5);
    if (s >= 86400)
        snprintf(text, bytes, "%lldd%02lldh", s / 86400, s / 3600 % 24);
    else if (s >= 3600)
        snprintf(text, bytes, "%lldh%02lldm", s / 3600, s / 60 % 60);
    else if (s >= 60)
        snprintf(text, bytes, "%lldm%02llds", s / 60, s % 60);
    else
        snprintf(text, bytes, "%llds", s);
}

static size_t all_bytes(const Device *device) {
    size_t total = 0;
    for (int c = 0; c < MEM_CATEGORIES; c++)
        total += device_bytes(device, (MemoryCategory)c);
    return total;
}

// Bytes moved and seconds waited, a level.
static void offload_json(cJSON *o, const OffloadStats *s) {
    cJSON_AddNumberToObject(o, "bytes_down", (double)s->bytes_down);
    cJSON_AddNumberToObject(o, "bytes_up", (double)s->bytes_up);
    cJSON_AddNumberToObject(o, "copy_wait_s", s->copy_wait_s);
    cJSON_AddNumberToObject(o, "nvme_bytes_read", (double)s->bytes_read);
    cJSON_AddNumberToObject(o, "nvme_bytes_written", (double)s->bytes_written);
    cJSON_AddNumberToObject(o, "nvme_wait_s", s->nvme_wait_s);
    cJSON_AddNumberToObject(o, "update_s", s->update_s);
}

static void step_json(RunLog *log, const StepReport *r, const Device *device) {
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "step", (double)r->step);
    cJSON_AddNumberToObject(o, "loss", r->result.loss);  // cJSON writes null for what is not finite
    cJSON_AddNumberToObject(o, "norm", r->result.norm);
    cJSON_AddNumberToObject(o, "lr", r->lr);
    cJSON_AddNumberToObject(o, "loss_scale", r->loss_scale);
    cJSON_AddNumberToObject(o, "skipped", (double)r->skipped);
    if (r->skip_reason[0])
        cJSON_AddStringToObject(o, "skip_reason", r->skip_reason);
    cJSON_AddNumberToObject(o, "tokens", (double)r->tokens);
    cJSON_AddNumberToObject(o, "seconds", r->seconds);
    cJSON_AddNumberToObject(o, "tokens_per_s", r->tokens_per_s);
    cJSON_AddNumberToObject(o, "peak_fraction", r->peak_fraction);
    cJSON_AddNumberToObject(o, "comm_wait_s", r->comm.wait_seconds);
    cJSON_AddNumberToObject(o, "comm_cpu_s", r->comm.cpu_seconds);
    cJSON_AddNumberToObject(o, "data_wait_s", r->data_wait_s);
    cJSON_AddNumberToObject(o, "save_wait_s", r->save_wait_s);
    cJSON *sent = cJSON_AddObjectToObject(o, "bytes_sent");
    for (int c = 0; c < COMM_COLLECTIVES; c++)
        cJSON_AddNumberToObject(sent, collective_names[c], (double)r->comm.bytes_sent[c]);
    cJSON *bytes = cJSON_AddObjectToObject(o, "device_bytes");
    for (int c = 0; c < MEM_CATEGORIES; c++)
        cJSON_AddNumberToObject(bytes, memory_category_names[c], (double)device_bytes(device, (MemoryCategory)c));
    if (r->offload)
        offload_json(cJSON_AddObjectToObject(o, "offload"), r->offload);
    log_event(log, "step", o);
}

void log_step(RunLog *log, const StepReport *r, const Device *device) {
    if (!log->speaks)
        return;
    step_json(log, r, device);
    log->speed = log->speed > 0 ? 0.9 * log->speed + 0.1 * r->seconds : r->seconds;
    char eta[32], memory[32], peak[16] = "";
    format_duration(eta, sizeof eta, log->speed * (double)(r->steps - r->step));
    format_bytes(memory, sizeof memory, (double)all_bytes(device));
    if (isfinite(r->peak_fraction))
        snprintf(peak, sizeof peak, " | peak %.0f%%", 100 * r->peak_fraction);
    if (log->terminal)
        fputs("\r\033[K", stdout);
    printf("step %lld/%lld | loss %.4f | norm %.3f | lr %.2e | %.0f tok/s%s | comm %.1f%% | data %.1f%% | %s | eta %s",
           (long long)r->step, (long long)r->steps, r->result.loss, r->result.norm, r->lr, r->tokens_per_s, peak,
           100 * r->comm.wait_seconds / r->seconds, 100 * r->data_wait_s / r->seconds, memory, eta);
    if (r->skip_reason[0])
        printf(" | SKIPPED: %s", r->skip_reason);
    log->line_open = log->terminal;
    if (!log->terminal || r->skip_reason[0])
        fputs("\n", stdout), log->line_open = false;
    fflush(stdout);
}
