// heartbeat: OUT/heartbeat.json, which says to other programs that the run is alive, and how far it is:
//
//     {"step": 1200, "time": 1764458753, "pid": 4711, "host": "node7"}      of rank 0; seconds since 1970
//
// It is replaced, never written over, so a reader finds all of it or none, and its age is that of the last beat. A run
// beats before every micro-batch, at most once a second; while it saves, evaluates or samples it is silent.
#ifndef ZERO_HEARTBEAT_H
#define ZERO_HEARTBEAT_H

#include <stdint.h>

// Rank 0 calls it, with the number of finished steps. `out` NULL: nothing. A full disk is no reason to end a run, nor to
// say more than its log does: errors are ignored.
void heartbeat(const char *out, int64_t step);

#endif
