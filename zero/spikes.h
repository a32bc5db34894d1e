// spikes: steps whose loss or gradient norm stands out from those before, and are better not taken.
//
// A value is a spike when it is more than Z standard deviations above the mean of the last 128 values. (OLMo's
// SkipStepOptimizer: 128 values, 6 standard deviations.) What enters the window is at most that bound, so that one huge
// value does not blind the rule for 128 steps, while a level that stays changed is followed after some steps.
//
// Loss and norm of a step are the same bits on every rank, and the window is part of a checkpoint: every rank, and a
// resumed run, decides alike.
#ifndef ZERO_SPIKES_H
#define ZERO_SPIKES_H

#include <stdbool.h>
#include <stddef.h>

enum { SPIKE_WINDOW = 128, SPIKE_MIN = 32 };  // values; fewer than SPIKE_MIN decide nothing

typedef struct SpikeWindow {
    int n;
    double values[SPIKE_WINDOW];  // oldest first
} SpikeWindow;

// Take note of a value; what is not finite is not noted. Whether it is a spike (zscore 0: never); then `reason` gets
// "loss 9.1 is 7.2 standard deviations (0.8) above the mean 3.3 of the last 128", else it is left as it is.
bool spikes_look(SpikeWindow *window, const char *what, double zscore, double value, char *reason, size_t reason_bytes);

#endif
