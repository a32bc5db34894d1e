// toy_units: units built by hand, with sizes that fit nothing, for tests of layout, hash, init and checkpoint.
#ifndef TEST_TOY_UNITS_H
#define TEST_TOY_UNITS_H

#include <stdio.h>

#include "zero/layout.h"

enum { TOY_UNITS = 4 };

static inline void toy_add(UnitSpec *unit, const char *name, int64_t out, int64_t in, InitKind init) {
    TensorSpec *tensor = &unit->tensors[unit->n_tensors++];
    *tensor = (TensorSpec){.n_dims = in ? 2 : 1, .shape = {out, in ? in : 1}, .init = init, .init_std = 0.02f};
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    tensor->len = tensor->shape[0] * tensor->shape[1];
    tensor->offset = unit->len;
    tensor->decay = in != 0;
    unit->len = (tensor->offset + tensor->len + TENSOR_ALIGN - 1) / TENSOR_ALIGN * TENSOR_ALIGN;
}

// Embeddings, two blocks, and a last unit of a single element. `scale` stretches the matrices.
static inline void toy_units(UnitSpec units[TOY_UNITS], int64_t scale) {
    for (int u = 0; u < TOY_UNITS; u++)
        units[u] = (UnitSpec){0};
    toy_add(&units[0], "wte", 37 * scale, 11, INIT_NORMAL);
    toy_add(&units[0], "wpe", 5, 11, INIT_NORMAL);
    for (int u = 1; u < TOY_UNITS - 1; u++) {
        char name[40];
        snprintf(name, sizeof name, "h.%d.ln_1.weight", u - 1);
        toy_add(&units[u], name, 11, 0, INIT_ONE);
        snprintf(name, sizeof name, "h.%d.attn.qkv.weight", u - 1);
        toy_add(&units[u], name, 33 * scale, 11, INIT_NORMAL);
        snprintf(name, sizeof name, "h.%d.attn.qkv.bias", u - 1);
        toy_add(&units[u], name, 64, 0, INIT_ZERO);
    }
    toy_add(&units[TOY_UNITS - 1], "ln_f.weight", 1, 0, INIT_ONE);
}

#endif
