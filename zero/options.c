#include "zero/options.h"

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

CommOptions options_comm(const Config *c, const Layout *layout, CommShape shape) {
    return (CommOptions){
        .shape = shape, .wire = options_zero(c).reduce_dtype, .max_len = layout_longest_shard(layout), .timeout = c->comm_timeout};
}
