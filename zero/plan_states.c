// A plan's model states, slots and staging: how many bytes one rank keeps of them, and on which level.
#include <string.h>

#include "zero/grads.h"
#include "zero/offload_params.h"
#include "zero/offload_state.h"
#include "zero/plan.h"

// Every rank would keep a copy of what is offloaded in stage 0.
static bool offloads(const PlanInput *in, int stage) {
    return in->offload.optimizer != OFFLOAD_NONE && (stage > 0 || in->n_ranks == 1);
}

static bool offloads_params(const PlanInput *in, int stage) {
    return stage == 3 && in->offload.params != OFFLOAD_NONE;
}

// What is offloaded of the optimizer (zero/offload_state.h), of gradients (zero/grads.h) and on the way to the parameters
// (zero/params.h).
static void add_offloaded(const PlanInput *in, int stage, size_t shard, PlanBytes *b) {
    size_t param = dtype_bytes(in->dtype), grad = dtype_bytes(in->grad_dtype), kinds = (size_t)in->offload.state_kinds;
    b->host[MEM_GRADIENTS] += shard * grad;
    if (!in->layout) {
        if (offloads_params(in, stage))
            *(in->offload.params == OFFLOAD_NVME ? &b->nvme : &b->host[MEM_PARAMETERS]) += shard * param;
        *(in->offload.optimizer == OFFLOAD_NVME ? &b->nvme : &b->host[MEM_OPTIMIZER]) += shard * sizeof(float) * kinds;
        return;
    }
    offload_state_plan(in->layout, &in->offload, b->host, &b->nvme);
    if (offloads_params(in, stage))
        offload_params_plan(in->layout, &in->offload, in->dtype, b->device, b->host, &b->nvme);
    else
        b->host[MEM_STAGING] += PARAMS_ROOMS * (size_t)offload_tile_len(in->layout, &in->offload) * param;
    if (stage >= 2)
        b->device[MEM_STAGING] += GRADS_STAGINGS * (size_t)layout_longest_shard(in->layout) * grad;
}

static void add_slots(const PlanInput *in, int stage, PlanBytes *b) {
    // Two slots for blocks (one where there is only one) and one that the first and last unit share (zero/params.h).
    int layers = in->layout->n_units - 2;
    size_t slots = (size_t)(layers < 2 ? layers : 2) * (size_t)in->layout->max_block_len + (size_t)in->layout->ends_len;
    if (stage == 3)
        b->device[MEM_SLOTS] += slots * dtype_bytes(in->dtype);
    // A gradient is formed in fp32: in place where that is what a rank keeps of all units, else in a slot
    // (zero/grads.h).
    if (stage >= 2 || in->grad_dtype != DTYPE_FP32)
        b->device[MEM_SLOTS] += slots * sizeof(float);
}

static void add_states(const PlanInput *in, int stage, PlanBytes *b) {
    size_t full = (size_t)in->n_params, shard = (full + (size_t)in->group - 1) / (size_t)in->group;
    if (in->layout) {
        full = (size_t)in->layout->full_len;
        shard = (size_t)in->layout->shard_len;
    }
    bool offloaded = offloads(in, stage);
    if (!offloads_params(in, stage))
        b->device[MEM_PARAMETERS] += (stage >= 3 ? shard : full) * dtype_bytes(in->dtype);
    if (stage < 2 || !offloaded)
        b->device[MEM_GRADIENTS] += (stage >= 2 ? shard : full) * dtype_bytes(in->grad_dtype);
    if (offloaded)
        add_offloaded(in, stage, shard, b);
    else
        b->device[MEM_OPTIMIZER] += (stage >= 1 ? shard : full) * plan_optimizer_bytes(in);
    if (in->layout)
        add_slots(in, stage, b);
}

size_t plan_stage(const PlanInput *in, int stage, const PlanChoice *choice, PlanBytes *bytes) {
    *bytes = (PlanBytes){.nvme = 0};
    if (choice) {
        memcpy(bytes->device, choice->bytes, sizeof choice->bytes);
        bytes->host[MEM_ACTIVATIONS] += choice->host_bytes;
    }
    bytes->device[MEM_STAGING] += in->staging_bytes;
    add_states(in, stage, bytes);
    size_t total = 0;
    for (int c = 0; c < MEM_CATEGORIES; c++)
        total += bytes->device[c] + (in->device_is_host && in->limit_is_found ? bytes->host[c] : 0);
    return total;
}
