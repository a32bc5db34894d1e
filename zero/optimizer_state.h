// optimizer_state: the view (zero/state.h) of an optimizer's state, wherever it lives.
#ifndef ZERO_OPTIMIZER_STATE_H
#define ZERO_OPTIMIZER_STATE_H

#include "zero/optimizer.h"
#include "zero/state.h"

typedef struct OptimizerView {
    StateView view;  // what checkpoint_save, checkpoint_load and state_hashes take; valid until optimizer_view_close
    Device *device;
    Stream *stream;  // copies are ordered after the work enqueued on it
    Optim *optimizer;
} OptimizerView;

// Allocates the staging buffer, so it is called before the first step. `view` must not move afterwards.
Status optimizer_view_open(Device *device, Stream *stream, Optim *optimizer, OptimizerView *view);
void optimizer_view_close(OptimizerView *view);  // a zeroed view is fine

#endif
