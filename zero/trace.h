// trace: a timeline of the streams of all ranks, for ui.perfetto.dev and chrome://tracing (--trace FILE).
//
// A span is a piece of work of one stream, from trace_begin to trace_end, both enqueued on the stream like the work itself;
// spans of a stream nest. What the compute stream waits for is a span too. While nothing is recorded each call costs one
// test. Memory is bounded: the first TRACE_MAX_SPANS spans of a rank are kept (some hundred steps), and the file says how
// many were not.
//
// The file is one JSON object (Trace Event Format, complete events): pid is the rank, tid the stream, times in
// microseconds since trace_open, which all ranks leave together.
#ifndef ZERO_TRACE_H
#define ZERO_TRACE_H

#include "zero/comm.h"

enum { TRACE_MAX_SPANS = 1 << 16 };

// Start to record. Collective. Rank 0 opens the file now, so that a mistake shows before the run.
Status trace_open(Comm *comm, const char *path);
// Collect what the ranks recorded, write the file and stop. Collective.
Status trace_close(Comm *comm);

// `name` is a literal; it is shown as "name number", or alone when the number is negative.
void trace_begin(Stream *stream, const char *name, int64_t number);
void trace_end(Stream *stream);
// stream_wait in a span.
void trace_wait(Stream *stream, Event *event, const char *name, int64_t number);

#endif
