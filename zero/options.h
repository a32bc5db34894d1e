// options: what a run's Config means for each part of it.
#ifndef ZERO_OPTIONS_H
#define ZERO_OPTIONS_H

#include "llm/loss_scale.h"
#include "llm/schedule.h"
#include "zero/params.h"

// Open the device that --device means: with `auto` the GPU if one answers, else the CPU; `why` says which of both and why,
// and is empty where the user has chosen.
Status options_open_device(const Config *config, const CommWorld *world, Device **device, char *why, size_t why_bytes);

ModelOptions options_model(const Config *config);
ZeroOptions options_zero(const Config *config);
Schedule options_schedule(const Config *config);
LossScale options_loss_scale(const Config *config);
OffloadOptions options_offload(const Config *config, int rank);
int64_t options_input_bytes(const Config *config);  // of a block's input that is offloaded; 0: none is
// Fails when --deterministic off asks for what there is not: NCCL's own reductions need several ranks on GPUs.
Status options_shape(const Config *config, const CommWorld *world, DeviceKind kind, CommShape *shape);
CommOptions options_comm(const Config *config, const Layout *layout, CommShape shape, DeviceKind kind);

#endif
