// options: what a run's Config means for each part of it.
#ifndef ZERO_OPTIONS_H
#define ZERO_OPTIONS_H

#include "llm/loss_scale.h"
#include "llm/schedule.h"
#include "zero/params.h"

ModelOptions options_model(const Config *config);
ZeroOptions options_zero(const Config *config);
Schedule options_schedule(const Config *config);
LossScale options_loss_scale(const Config *config);
OffloadOptions options_offload(const Config *config, int rank);
int64_t options_input_bytes(const Config *config);  // of a block's input that is offloaded; 0: none is
CommOptions options_comm(const Config *config, const Layout *layout, CommShape shape);

#endif
