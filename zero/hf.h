// hf: weights of Hugging Face models in and out (GPT2LMHeadModel, LlamaForCausalLM, Qwen2ForCausalLM; Mistral without a
// sliding window is a LLaMA).
//
// In: config.json gives the shape (llm/config.h), model.safetensors the weights (zero/safetensors.h, zero/hf_map.h).
// Each rank reads what its shards need, unit by unit, into the master weights; the moments stay zero. Host memory: the
// rank's shard of the largest unit. Out: a checkpoint of any number of ranks becomes a directory that transformers
// loads. Host memory: the largest unit. What comes in in fp32 goes out with the same bits, as long as nothing trains
// it.
#ifndef ZERO_HF_H
#define ZERO_HF_H

#include <stdio.h>

#include "zero/hf_map.h"
#include "zero/safetensors.h"
#include "zero/state.h"

// ---- in ----

typedef struct HfModel {
    const char *directory;
    Safetensors files;
    HfMap map;
    float *strip;  // rows of a transposed matrix
    int64_t strip_len;
} HfModel;

// Open the weights of a model whose config.json said `model`. Tensors that are missing, that are there without a place
// in the model, or that have another shape are errors that name them. `directory` must outlive the HfModel.
Status hf_open(const char *directory, const ModelConfig *model, HfModel *hf);
void hf_close(HfModel *hf);  // a zeroed one is fine

// Elements [begin, begin+len) of unit u, in our order; gaps are zero. `spec` is that of model_unit.
Status hf_read(HfModel *hf, const UnitSpec *spec, int u, int64_t begin, int64_t len, float *values);

// Fill the rank's master weights; the caller then publishes them (optimizer_state_loaded). Collective.
Status hf_import(const char *directory, const ModelConfig *model, const Layout *layout, Comm *comm,
                 const StateView *view);

// ---- out ----

typedef struct HfExport {
    const char *checkpoint;  // directory of a checkpoint
    const char *directory;   // to be made: it must not exist
    Dtype dtype;             // fp32: the master weights' bits
    int64_t max_file_bytes;  // 0: 5 GB, as transformers
} HfExport;

// Rows of the vocabulary that the shards do not have (50257 padded to 50304 by --vocab-size) are left out, unless the model
// came with them (--init-from). One process, no device. The directory appears when it is complete and synced. Says on `file` what was written.
Status hf_export(const HfExport *options, FILE *file);

#endif
