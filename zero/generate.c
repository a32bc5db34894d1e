#include "zero/generate.h"

Status generator_open(Generator *g) {
    TRY(device_host_alloc(g->device, "logits", (size_t)g->vocab_size * sizeof(float), (void **)&g->logits));
    return device_host_alloc(g->device, "sampler", (size_t)g->vocab_size * SAMPLER_SCRATCH_BYTES, &g->sampler_scratch);
}

void generator_close(Generator *g) {
    device_host_free(g->device, g->sampler_scratch);
    device_host_free(g->device, g->logits);
}

// The logits of the token after `token`, which is at `position`.
static Status next_logits(Generator *g, int32_t token, int position) {
    int head = g->layout->n_units - 1;
    for (int u = 0; u <= head; u++) {
        UnitParams w = params_acquire(g->params, u, FORWARD);
        if (u < head)
            model_decode(g->model, u, w, token, position);
        else
            model_decode_logits(g->model, w, g->logits);
        params_release(g->params, u);
    }
    return stream_sync(g->compute);
}

Status generate(Generator *g, const SamplerOptions *options, int32_t *tokens, int *n, int end, int64_t stop_token) {
    int given = *n;
    for (int i = 0; i + 1 < end; i++) {
        TRY(next_logits(g, tokens[i], i));
        if (i + 1 < given)
            continue;
        int32_t next = sampler_pick(options, (uint64_t)i, g->logits, g->vocab_size, g->sampler_scratch);
        TRY(comm_broadcast(g->comm, "sampled token", &next, sizeof next, 0));
        tokens[(*n)++] = next;
        if (next == stop_token)
            break;
    }
    return OK;
}
