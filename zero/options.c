#include "zero/options.h"

#include <stdio.h>

Status options_open_device(const Config *c, const CommWorld *world, Device **device, char *why, size_t why_bytes) {
    DeviceOptions options = {.kind = DEVICE_CPU, .threads = c->threads, .local_rank = world->local_rank,
                             .local_size = world->local_size, .memory_limit = c->device_memory, .tf32 = c->tf32};
    *why = '\0';
    if (c->device == CHOOSE_CPU)
        return device_open(&options, device);
    options.kind = DEVICE_CUDA;
    Status status = device_open(&options, device);
    if (c->device == CHOOSE_CUDA)
        return status == OK ? OK : fail_context(status, "--device cuda");
    if (status == OK)
        snprintf(why, why_bytes, "a GPU answers");
    if (status != FAILED)  // more ranks than GPUs: the user decides
        return status;
    if (c->tf32 && !c->plan)
        return fail_context(status, "--tf32 on needs a GPU");
    snprintf(why, why_bytes, "the CPU, as %s", status_message());
    status_clear();
    options.kind = DEVICE_CPU;
    return device_open(&options, device);
}

ModelOptions options_model(const Config *c) {
    return (ModelOptions){.config = c->model,
                          .dtype = c->dtype,
                          .batch = c->micro_batch,
                          .seq_len = c->seq_len,
                          .recompute = c->recompute,
                          .head_chunk = c->head_chunk,
                          .sampling = c->sample_every > 0,
                          .training = true,
                          .offload_inputs = c->offload_activations};
}

ZeroOptions options_zero(const Config *c) {
    return (ZeroOptions){.stage = c->zero_stage,
                         .dtype = c->dtype,
                         .grad_dtype = c->grad_dtype == STATE_FP32 ? DTYPE_FP32 : c->dtype,
                         .reduce_dtype = c->reduce_dtype == STATE_FP32 ? DTYPE_FP32 : c->dtype};
}

Schedule options_schedule(const Config *c) {
    return (Schedule){.kind = c->schedule,
                      .lr = c->lr,
                      .min_lr = c->min_lr,
                      .wsd_decay = c->wsd_decay,
                      .warmup = c->warmup,
                      .steps = c->steps,
                      .warmup_min_lr = c->warmup_min_lr,
                      .warmup_type = c->warmup_type};
}

LossScale options_loss_scale(const Config *c) {
    bool dynamic = c->dtype == DTYPE_FP16 && c->loss_scale == 0;
    LossScale scale = loss_scale_make(dynamic, dynamic ? c->loss_scale_init : c->loss_scale);
    scale.window = c->loss_scale_window;
    scale.hysteresis = scale.hysteresis_left = c->loss_scale_hysteresis;
    scale.minimum = c->loss_scale_min;
    scale.consecutive = c->loss_scale_consecutive;
    return scale;
}

OffloadOptions options_offload(const Config *c, int rank) {
    return (OffloadOptions){.activations = c->offload_activations,
                            .optimizer = c->offload_optimizer,
                            .params = c->offload_params,
                            .nvme_path = c->nvme_path,
                            .nvme_buffer = c->nvme_buffer,
                            .state_kinds = c->optimizer == OPTIMIZER_SGD ? 2 : 3,
                            .overlap = c->overlap,
                            .rank = rank};
}

int64_t options_input_bytes(const Config *c) {
    return c->offload_activations
               ? (int64_t)c->micro_batch * c->seq_len * c->model.channels * (int64_t)dtype_bytes(c->dtype)
               : 0;
}

Status options_shape(const Config *c, const CommWorld *world, DeviceKind kind, CommShape *shape) {
    if (!c->deterministic && (kind != DEVICE_CUDA || world->size == 1))
        return fail_usage(
            "--deterministic off lets NCCL choose the order in which gradients of several GPUs are added; this run has %s, "
            "so it would change nothing: leave it out",
            world->size == 1 ? "one rank" : "no GPU");
    int one_level = c->shard_group > 0 ? c->shard_group : world->size;  // NCCL knows the hosts by itself
    return comm_shape_make(world, c->shard_group, c->deterministic ? 0 : one_level, shape);
}

// Messages between GPUs must be long: each exchange costs some ten microseconds, in which a link moves megabytes.
enum { GPU_PIECE_BYTES = 8 << 20 };

CommOptions options_comm(const Config *c, const Layout *layout, CommShape shape, DeviceKind kind) {
    return (CommOptions){
        .shape = shape, .wire = options_zero(c).reduce_dtype, .max_len = layout_longest_shard(layout),
        .timeout = c->comm_timeout, .piece_bytes = kind == DEVICE_CUDA ? GPU_PIECE_BYTES : 0, .native = !c->deterministic};
}
