#include "zero/trace.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zero/agree.h"
#include "zero/comm_backend.h"

enum { MAX_TRACKS = 4, MAX_DEPTH = 8 };

// Work shorter than this is not kept: waits for what is there already, mostly.
static const double SHORTEST_SECONDS = 1e-6;

typedef struct Span {
    const char *name;
    int64_t number;
    int track;
    double start, end;  // seconds of comm_clock
} Span;

typedef struct Track {
    Stream *stream;
    int depth;             // of spans that are open; this and the next belong to the stream's thread
    Span open[MAX_DEPTH];
} Track;

static struct {
    bool on;
    FILE *file;  // rank 0
    double start;
    Track tracks[MAX_TRACKS];
    int n_tracks;
    Span *spans;
    atomic_llong n_spans;  // that ended, kept or not
} trace;

Status trace_open(Comm *comm, const char *path) {
    Status status = OK;
    trace.spans = malloc(TRACE_MAX_SPANS * sizeof *trace.spans);
    if (!trace.spans)
        status = fail("out of host memory for --trace");
    else if (comm_rank(comm) == 0 && !(trace.file = fopen(path, "w")))
        status = fail("cannot write --trace %s: %s", path, strerror(errno));
    TRY(agree(comm, "open the trace", status));
    TRY(comm_barrier(comm, "the trace's start"));
    trace.start = comm_clock();
    trace.on = true;
    return OK;
}

// ---- recording ----

typedef struct Mark {
    int track;
    const char *name;  // NULL: the end of the innermost span
    int64_t number;
} Mark;

static Status run_mark(void *arguments) {
    const Mark *mark = arguments;
    Track *track = &trace.tracks[mark->track];
    double time = comm_clock();
    if (mark->name) {
        if (track->depth < MAX_DEPTH)
            track->open[track->depth] = (Span){mark->name, mark->number, mark->track, time, 0};
        track->depth++;
        return OK;
    }
    track->depth--;
    if (track->depth >= MAX_DEPTH || time - track->open[track->depth].start < SHORTEST_SECONDS)
        return OK;
    long long i = atomic_fetch_add(&trace.n_spans, 1);
    if (i < TRACE_MAX_SPANS) {
        trace.spans[i] = track->open[track->depth];
        trace.spans[i].end = time;
    }
    return OK;
}

static void mark(Stream *stream, const char *name, int64_t number) {
    Mark m = {.name = name, .number = number};
    while (m.track < trace.n_tracks && trace.tracks[m.track].stream != stream)
        m.track++;
    if (m.track == MAX_TRACKS)
        return;
    if (m.track == trace.n_tracks)
        trace.tracks[trace.n_tracks++].stream = stream;
    stream_call(stream, run_mark, &m, sizeof m);
}

void trace_begin(Stream *stream, const char *name, int64_t number) {
    if (trace.on)
        mark(stream, name, number);
}

void trace_end(Stream *stream) {
    if (trace.on)
        mark(stream, NULL, 0);
}

void trace_wait(Stream *stream, Event *event, const char *name, int64_t number) {
    trace_begin(stream, name, number);
    stream_wait(stream, event);
    trace_end(stream);
}

// ---- the file ----

static void print_name(FILE *file, int rank, const char *kind, int track, const char *name) {
    fprintf(file, "{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"args\":{\"name\":\"%s\"}},\n", rank, track, kind,
            name);
}

// This rank's events, one a line. The caller frees the text.
static char *own_events(int rank, size_t *bytes) {
    char *text = NULL, name[32];
    FILE *file = open_memstream(&text, bytes);
    if (!file)
        return NULL;
    long long ended = atomic_load(&trace.n_spans), kept = ended < TRACE_MAX_SPANS ? ended : TRACE_MAX_SPANS;
    snprintf(name, sizeof name, "rank %d", rank);
    print_name(file, rank, "process_name", 0, name);
    for (int t = 0; t < trace.n_tracks; t++)
        print_name(file, rank, "thread_name", t, stream_name(trace.tracks[t].stream));
    for (long long i = 0; i < kept; i++) {
        const Span *s = &trace.spans[i];
        fprintf(file, "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"%s", rank, s->track,
                1e6 * (s->start - trace.start), 1e6 * (s->end - s->start), s->name);
        if (s->number >= 0)
            fprintf(file, " %lld", (long long)s->number);
        fputs("\"},\n", file);
    }
    fprintf(file, "{\"ph\":\"M\",\"pid\":%d,\"name\":\"spans_not_kept\",\"args\":{\"count\":%lld}}", rank, ended - kept);
    if (fclose(file) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

// Every rank hands its events to all; rank 0 writes them.
static Status write_events(Comm *comm) {
    int rank = comm_rank(comm), n = comm_size(comm);
    for (int r = 0; r < n; r++) {
        size_t bytes = 0;
        char *text = r == rank ? own_events(rank, &bytes) : NULL;
        TRY(comm_broadcast(comm, "the trace's length", &bytes, sizeof bytes, r));
        if (r != rank)
            text = malloc(bytes + 1);
        if (!text)
            return fail("out of host memory for --trace");
        Status status = comm_broadcast(comm, "the trace", text, bytes, r);
        if (status == OK && trace.file)
            fprintf(trace.file, "%s%.*s", r ? ",\n" : "{\"traceEvents\":[\n", (int)bytes, text);
        free(text);
        TRY(status);
    }
    return OK;
}

Status trace_close(Comm *comm) {
    if (!trace.on)
        return OK;
    trace.on = false;
    for (int t = 0; t < trace.n_tracks; t++)
        TRY(stream_sync(trace.tracks[t].stream));
    TRY(write_events(comm));
    Status status = OK;
    if (trace.file) {
        fputs("\n]}\n", trace.file);
        bool failed = ferror(trace.file);
        if (fclose(trace.file) != 0 || failed)
            status = fail("cannot write the file of --trace: %s", strerror(errno));
    }
    free(trace.spans);
    return agree(comm, "write the trace", status);
}
