// attention: causal flash attention on the CPU (Dao et al. 2022; Dao 2023). llm/ops.h says what these functions
// compute.
#ifndef LLM_CPU_ATTENTION_H
#define LLM_CPU_ATTENTION_H

#include "llm/ops.h"

void cpu_attention_forward(Stream *stream, Dtype dt, void *out, float *lse, const void *qkv, AttentionShape shape);
void cpu_attention_backward(Stream *stream, Dtype dt, void *dqkv, const void *dout, const void *qkv, const void *out,
                            const float *lse, AttentionShape shape);
size_t cpu_attention_scratch(Device *device, Dtype dt, AttentionShape shape);
void cpu_attention_decode(Stream *stream, Dtype dt, void *out, void *k_cache, void *v_cache, const void *qkv,
                          AttentionShape shape, int position, int max_positions);

#endif
