// optimizer: one decision and one update a step, on the rank's shard (stage 0: on everything, as DDP does).
//
//     g = reduced / loss_scale;  norm = ‖g‖ over all ranks;  finite = norm is finite
//     not finite: nothing changes, on any rank.   else: g *= min(1, clip / (norm + 1e-6)); AdamW; publish parameters
//
// The norm adds fp32 squares of tiles of 4,096 shard elements, then tiles, units and ranks in double, in order: the same
// number in every stage, on every rank, for any number of threads.
//
// Where the optimizer is offloaded (zero/offload.h), norm and update are made on the host, the update tile by tile: while
// one tile is updated, the parameters of those before go up, and on NVMe the next are read and the last written.
#ifndef ZERO_OPTIMIZER_H
#define ZERO_OPTIMIZER_H

#include "zero/grads.h"
#include "zero/offload_state.h"
#include "zero/state.h"

typedef struct OptimizerState Optim;

typedef struct OptimizerConfig {
    Optimizer kind;
    double beta1, beta2, eps, momentum, weight_decay, grad_clip;
} OptimizerConfig;

typedef struct StepResult {
    double loss;      // mean over the global batch
    double norm;      // before clipping, after unscaling
    bool finite;
} StepResult;

Status optimizer_open(Device *device, const Layout *layout, Comm *comm, Stream *compute, Params *params, Grads *grads,
                      OptimizerConfig config, ZeroOptions options, Offload *offload, Optim **optimizer);
void optimizer_close(Optim *optimizer);

// Fill master weights and parameters with model_init's values (each rank its own shard), moments with zero; publish.
Status optimizer_init(Optim *optimizer, uint64_t seed);

// The step's one host read: wait for the reductions, form loss, norm and the finite flag, the same on every rank.
// loss_sums: this rank's sums of losses per micro-batch (host memory), n_valid: valid targets of the whole global batch.
Status optimizer_measure(Optim *optimizer, const double *loss_sums, int n_micro, double n_valid, double loss_scale,
                         StepResult *result);
// Apply the update. updates: how many updates were applied before this one (Adam's t - 1).
Status optimizer_step(Optim *optimizer, double lr, int64_t updates, double loss_scale, double norm);

// A unit shard's state of one kind, in device memory: shard_len fp32 elements; NULL where the kind does not exist (SGD: no v)
// or is offloaded. In fp32 runs without offload the parameters themselves are STATE_MASTER. Used by checkpoints and hashes,
// on the compute stream.
float *optimizer_state(Optim *optimizer, StateKind kind, int u);
bool optimizer_has(const Optim *optimizer, StateKind kind);
OffloadState *optimizer_offloaded(Optim *optimizer);  // where it is otherwise; NULL: on the device
// After a checkpoint filled the state: refresh the rounded parameters and publish them.
Status optimizer_state_loaded(Optim *optimizer);

#endif
