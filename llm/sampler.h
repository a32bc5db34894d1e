// sampler: choose the next token from logits. Temperature, then top-k, then top-p (nucleus, Holtzman et al. 2020).
#ifndef LLM_SAMPLER_H
#define LLM_SAMPLER_H

#include <stdint.h>

typedef struct SamplerOptions {
    double temperature;  // 0: the most likely token
    int64_t top_k;       // 0: off
    double top_p;        // 1: off
    uint64_t seed;       // counter-based: sample number `index` of `seed` is a pure function
} SamplerOptions;

enum { SAMPLER_SCRATCH_BYTES = 16 };  // a token of the vocabulary

// Pick a token of logits (vocab). scratch holds vocab · SAMPLER_SCRATCH_BYTES bytes.
int32_t sampler_pick(const SamplerOptions *options, uint64_t index, const float *logits, int64_t vocab, void *scratch);

#endif
