#include "zero/spikes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// Two passes, oldest first: the same bits however the values came into the window.
static void mean_and_deviation(const SpikeWindow *w, double *mean, double *deviation) {
    double sum = 0, squares = 0;
    for (int i = 0; i < w->n; i++)
        sum += w->values[i];
    *mean = sum / w->n;
    for (int i = 0; i < w->n; i++)
        squares += (w->values[i] - *mean) * (w->values[i] - *mean);
    *deviation = sqrt(squares / (w->n - 1));
}

static void push(SpikeWindow *w, double value) {
    if (w->n == SPIKE_WINDOW)
        memmove(w->values, w->values + 1, (size_t)--w->n * sizeof *w->values);
    w->values[w->n++] = value;
}

bool spikes_look(SpikeWindow *w, const char *what, double zscore, double value, char *reason, size_t reason_bytes) {
    bool spike = false;
    double entering = value;
    if (!isfinite(value))
        return false;
    if (zscore > 0 && w->n >= SPIKE_MIN) {
        double mean, deviation;
        mean_and_deviation(w, &mean, &deviation);
        double bound = mean + zscore * deviation;
        spike = value > bound;
        if (spike) {
            entering = bound;
            snprintf(reason, reason_bytes, "%s %.4g is %.3g standard deviations (%.3g) above the mean %.4g of the last %d",
                     what, value, (value - mean) / deviation, deviation, mean, w->n);
        }
    }
    push(w, entering);
    return spike;
}
