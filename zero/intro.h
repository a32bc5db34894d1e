// intro: the first lines of a run, which say what it is: model, device, batch equation, data, memory predicted and
// measured. The same goes to log.jsonl as the "start" event, with the bytes that a step will send.
#ifndef ZERO_INTRO_H
#define ZERO_INTRO_H

#include "zero/params.h"
#include "zero/plan.h"
#include "zero/run.h"

typedef struct Intro {
    const Config *config;
    const Layout *layout;
    Device *device;
    const char *device_why;         // how --device auto came to it; "": the user has chosen
    Comm *comm;
    ZeroOptions zero;
    double peak_flops;              // measured matmul FLOP/s of this rank's device; NAN: not measured
    int64_t n_tokens, n_windows;    // of the training data
    int n_shards;
    PlanBytes predicted;
    const Offload *offload;         // NULL: everything stays on the device
    const char *saves;              // how saves are made; NULL: nothing is ever saved
} Intro;

// Collective: all ranks compare what they measured with what was predicted.
Status introduce(const Intro *intro, RunLog *log);

#endif
