// rope: the table of rotary position embedding (Su et al. 2021), with LLaMA 3.1's frequency scaling.
#ifndef LLM_ROPE_H
#define LLM_ROPE_H

#include "llm/config.h"

// table (positions, head_dim/2, 2): cos and sin of position · frequency[i], frequency[i] = theta^(-2i/head_dim). Host memory.
void rope_table(const ModelConfig *config, int positions, float *table);

#endif
