// The tensors of a model: names, shapes, places in their unit, how they start. Pure arithmetic.
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "llm/blocks.h"

void unit_add(UnitSpec *unit, const char *name, int64_t out, int64_t in, InitKind init, float init_std) {
    assert(unit->n_tensors < MAX_TENSORS);
    TensorSpec *t = &unit->tensors[unit->n_tensors++];
    *t = (TensorSpec){.n_dims = in ? 2 : 1, .shape = {out, in}, .len = in ? out * in : out, .offset = unit->len,
                      .decay = in != 0, .init = init, .init_std = init_std};
    snprintf(t->name, sizeof t->name, "%s", name);
    unit->len += (t->len + TENSOR_ALIGN - 1) / TENSOR_ALIGN * TENSOR_ALIGN;
}

void block_add(UnitSpec *unit, int layer, const char *suffix, int64_t out, int64_t in, InitKind init, float init_std) {
    char name[sizeof unit->tensors[0].name];
    snprintf(name, sizeof name, "h.%d.%s", layer, suffix);
    unit_add(unit, name, out, in, init, init_std);
}

int model_n_units(const ModelConfig *m) {
    return m->layers + 2;
}

void model_unit(const ModelConfig *m, int u, UnitSpec *unit) {
    memset(unit, 0, sizeof *unit);
    if (u == 0) {
        unit_add(unit, "wte", m->vocab_size, m->channels, INIT_NORMAL, m->init_std);
        if (m->arch == ARCH_GPT2)
            unit_add(unit, "wpe", m->max_seq_len, m->channels, INIT_NORMAL, m->init_std);
    } else if (u <= m->layers) {
        if (m->arch == ARCH_GPT2)
            gpt2_block_unit(m, u - 1, unit);
        else
            llama_block_unit(m, u - 1, unit);
    } else {
        unit_add(unit, m->arch == ARCH_GPT2 ? "ln_f.weight" : "norm_f.weight", m->channels, 0, INIT_ONE, 0);
        if (m->arch == ARCH_GPT2)
            unit_add(unit, "ln_f.bias", m->channels, 0, INIT_ZERO, 0);
        if (!m->tied)
            unit_add(unit, "head.weight", m->vocab_size, m->channels, INIT_NORMAL, m->init_std);
    }
}

int64_t model_n_params(const ModelConfig *m) {
    int64_t total = 0;
    for (int u = 0; u < model_n_units(m); u++) {
        UnitSpec unit;
        model_unit(m, u, &unit);
        for (int i = 0; i < unit.n_tensors; i++)
            total += unit.tensors[i].len;
    }
    return total;
}

const TensorSpec *unit_find(const UnitSpec *unit, const char *name) {
    for (int i = 0; i < unit->n_tensors; i++)
        if (strcmp(unit->tensors[i].name, name) == 0)
            return &unit->tensors[i];
    return NULL;
}

const void *unit_param(const UnitSpec *spec, Dtype dtype, const void *unit, int tensor) {
    return (const char *)unit + (size_t)spec->tensors[tensor].offset * dtype_bytes(dtype);
}

float *unit_grad(const UnitSpec *spec, float *unit, int tensor) {
    return unit + spec->tensors[tensor].offset;
}

double model_flops_per_token(const ModelConfig *m, int seq_len) {
    double matmul_params = (double)m->vocab_size * m->channels;  // the head, tied or not
    UnitSpec block;
    model_unit(m, 1, &block);
    for (int i = 0; i < block.n_tensors; i++)
        if (block.tensors[i].n_dims == 2)
            matmul_params += (double)m->layers * (double)block.tensors[i].len;
    // q·kᵀ and p·v: 2 products of 2·T²/2·head_dim a head forward, twice that backward
    double attention = 6.0 * m->layers * (double)seq_len * m->heads * m->head_dim;
    return 6.0 * matmul_params + attention;
}
