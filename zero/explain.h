// explain: which gradient was not finite first.
//
// A run that skips --max-skips steps in a row ends. Its last step is computed once more, with the same parameters, samples
// and loss scale, and every unit's gradient is looked at on every rank before it is reduced; after a reduction the fault of
// one rank is in every sum, and its name is lost. First means: in the earliest micro-batch, in the order in which backward
// forms gradients, and then on the lowest rank.
#ifndef ZERO_EXPLAIN_H
#define ZERO_EXPLAIN_H

#include "zero/grads.h"

typedef struct NonFinite {
    bool found;
    int micro, unit, tensor;
    int64_t element;  // of the tensor
    double value;
} NonFinite;

typedef struct Explain {
    const Layout *layout;
    Comm *comm;
    Stream *compute;
    Grads *grads;
    float *staging;   // (STATE_PIECE_LEN) host memory
    int micro;        // the micro-batch that is replayed: the caller sets it
    NonFinite first;  // on this rank
    Status status;
} Explain;

// What grads_inspect calls during the replay, with the Explain as context.
void explain_look(void *explain, int u, const float *gradient);

// After the replay: a failure with the same message on every rank. Collective. Where every rank's own gradient is finite,
// it names what became too large when it was added up or rounded to the reduce dtype.
Status explain_skips(Explain *explain, int64_t step, int64_t skipped_in_a_row, double loss_scale);

#endif
