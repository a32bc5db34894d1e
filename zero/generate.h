// generate: continue a sequence with the model being trained, one token at a time, with a KV cache.
//
// Collective: in stage 3 every token gathers every unit, so all ranks take part and all get the same tokens.
#ifndef ZERO_GENERATE_H
#define ZERO_GENERATE_H

#include "llm/sampler.h"
#include "zero/params.h"

typedef struct Generator {
    Device *device;
    Stream *compute;
    Comm *comm;
    Model *model;            // opened with sampling
    Params *params;
    const Layout *layout;
    int64_t vocab_size;
    float *logits;           // (vocab_size) host memory
    void *sampler_scratch;
} Generator;

// Allocates the host buffers. `generator` has the fields above them filled.
Status generator_open(Generator *generator);
void generator_close(Generator *generator);  // a zeroed generator is fine

// tokens holds *n of them, all inside the vocabulary, and has room for `end`; continues up to `end`, or to `stop_token` (-1: none), which is kept.
Status generate(Generator *generator, const SamplerOptions *options, int32_t *tokens, int *n, int end, int64_t stop_token);

#endif
