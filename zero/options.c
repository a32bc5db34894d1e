#include "zero/options.h"

#include <stdio.h>

Status options_open_device(const Config *c, const CommWorld *world, Device **device, char *why, size_t why_bytes) {
    DeviceOptions options = {.kind = DEVICE_CPU, .threads = c->threads, .local_rank = world->local_rank,
                             .local_size = world->local_size, .memory_limit = c->device_memory};
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
                          .training = true};
}

ZeroOptions options_zero(const Config *c) {
    return (ZeroOptions){.stage = c->zero_stage,
                         .dtype = c->dtype,
                         .grad_dtype = c->grad_dtype == STATE_FP32 ? DTYPE_FP32 : c->dtype,
                         .reduce_dtype = c->reduce_dtype == STATE_FP32 ? DTYPE_FP32 : c->dtype};
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
    int64_t longest = 0;
    for (int u = 0; u < layout->n_units; u++)
        longest = layout->units[u].shard_len > longest ? layout->units[u].shard_len : longest;
    return (CommOptions){
        .shape = shape, .wire = options_zero(c).reduce_dtype, .max_len = longest, .timeout = c->comm_timeout,
        .piece_bytes = kind == DEVICE_CUDA ? GPU_PIECE_BYTES : 0, .native = !c->deterministic};
}
