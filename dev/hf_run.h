// hf_run: a Hugging Face model on one CPU rank, token by token, for comparing its logits with those of transformers.
#ifndef DEV_HF_RUN_H
#define DEV_HF_RUN_H

#include <stdlib.h>

#include "zero/hf.h"

typedef struct HfRun {
    ModelConfig config;
    int n_units, position;
    Device *device;
    Stream *stream;
    Model *model;
    void **params;  // (n_units) fp32
    float *logits;  // (V) of the last token
} HfRun;

static Status hf_run_load(HfRun *r, HfModel *hf) {
    for (int u = 0; u < r->n_units; u++) {
        UnitSpec spec;
        model_unit(&r->config, u, &spec);
        size_t bytes = (size_t)spec.len * sizeof(float);
        TRY(device_alloc(r->device, MEM_PARAMETERS, "weights", bytes, &r->params[u]));
        TRY(hf_read(hf, &spec, u, 0, spec.len, r->params[u]));  // a CPU device: its memory is the host's
    }
    return OK;
}

static Status hf_run_open(const char *directory, int seq_len, HfRun *r) {
    *r = (HfRun){0};
    TRY(model_config_read_hf(&r->config, directory));
    r->n_units = model_n_units(&r->config);
    r->params = calloc((size_t)r->n_units, sizeof *r->params);
    ModelOptions options = {.config = r->config, .batch = 1, .seq_len = seq_len, .sampling = true};
    TRY(device_open(&(DeviceOptions){.kind = DEVICE_CPU}, &r->device));
    TRY(stream_create(r->device, STREAM_COMPUTE, "compute", &r->stream));
    TRY(model_open(r->device, r->stream, &options, &r->model));
    TRY(device_host_alloc(r->device, "logits", (size_t)r->config.vocab_size * sizeof(float), (void **)&r->logits));
    HfModel hf;
    TRY(hf_open(directory, &r->config, &hf));
    Status status = hf_run_load(r, &hf);
    hf_close(&hf);
    return status;
}

// The next token of the sequence; r->logits then predict the one after it.
static Status hf_run_token(HfRun *r, int32_t token) {
    int head = r->n_units - 1;
    for (int u = 0; u < head; u++)
        model_decode(r->model, u, (UnitParams){.unit = r->params[u]}, token, r->position);
    UnitParams params = {.unit = r->params[head], .tied = r->config.tied ? r->params[0] : NULL};
    model_decode_logits(r->model, params, r->logits);
    r->position++;
    return stream_sync(r->stream);
}

static void hf_run_close(HfRun *r) {
    for (int u = 0; u < r->n_units && r->params; u++)
        device_free(r->device, r->params[u]);
    device_host_free(r->device, r->logits);
    model_close(r->model);
    stream_destroy(r->stream);
    device_close(r->device);
    free(r->params);
}

#endif
