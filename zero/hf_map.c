#include "zero/hf_map.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARTS = 3, SPLITS = 6 };  // parts of a tensor; more tensors a block than ours, at most

typedef struct Rule {
    const char *ours;               // in a block without "h.3."
    const char *theirs[MAX_PARTS];  // in a block without "transformer.h.3." or "model.layers.3."
    bool transposed;
} Rule;

static const Rule gpt2_ends[] = {{"wte", {"wte.weight"}, false},
                                 {"wpe", {"wpe.weight"}, false},
                                 {"ln_f.weight", {"ln_f.weight"}, false},
                                 {"ln_f.bias", {"ln_f.bias"}, false},
                                 {0}};
static const Rule gpt2_block[] = {{"ln_1.weight", {"ln_1.weight"}, false},
                                  {"ln_1.bias", {"ln_1.bias"}, false},
                                  {"attn.qkv.weight", {"attn.c_attn.weight"}, true},
                                  {"attn.qkv.bias", {"attn.c_attn.bias"}, false},
                                  {"attn.proj.weight", {"attn.c_proj.weight"}, true},
                                  {"attn.proj.bias", {"attn.c_proj.bias"}, false},
                                  {"ln_2.weight", {"ln_2.weight"}, false},
                                  {"ln_2.bias", {"ln_2.bias"}, false},
                                  {"mlp.fc.weight", {"mlp.c_fc.weight"}, true},
                                  {"mlp.fc.bias", {"mlp.c_fc.bias"}, false},
                                  {"mlp.proj.weight", {"mlp.c_proj.weight"}, true},
                                  {"mlp.proj.bias", {"mlp.c_proj.bias"}, false},
                                  {0}};
static const Rule llama_ends[] = {
    {"wte", {"embed_tokens.weight"}, false}, {"norm_f.weight", {"norm.weight"}, false}, {0}};
static const Rule llama_block[] = {
    {"norm_1.weight", {"input_layernorm.weight"}, false},
    {"attn.qkv.weight", {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}, false},
    {"attn.qkv.bias", {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"}, false},
    {"attn.proj.weight", {"self_attn.o_proj.weight"}, false},
    {"norm_2.weight", {"post_attention_layernorm.weight"}, false},
    {"mlp.gate_up.weight", {"mlp.gate_proj.weight", "mlp.up_proj.weight"}, false},
    {"mlp.down.weight", {"mlp.down_proj.weight"}, false},
    {0}};

static const struct {
    const char *body, *blocks;
    const Rule *ends, *block;
} families[] = {[ARCH_GPT2] = {"transformer.", "h", gpt2_ends, gpt2_block},
                [ARCH_LLAMA] = {"model.", "layers", llama_ends, llama_block}};

static const Rule *find_rule(const Rule *rules, const char *ours) {
    while (rules->ours && strcmp(rules->ours, ours) != 0)
        rules++;
    assert(rules->ours);  // every tensor of llm/gpt2.c and llm/llama.c has a rule
    return rules;
}

// Rows of each part of a fused matrix.
static void part_rows(const ModelConfig *m, const TensorSpec *spec, const Rule *rule, int64_t rows[MAX_PARTS]) {
    rows[0] = spec->shape[0];
    if (rule->theirs[2]) {
        rows[0] = (int64_t)m->heads * m->head_dim;
        rows[1] = rows[2] = (int64_t)m->kv_heads * m->head_dim;
    } else if (rule->theirs[1]) {
        rows[0] = rows[1] = m->ffn;
    }
}

static void add_tensor(const ModelConfig *m, const UnitSpec *unit, int u, int t, const char *prefix, HfMap *map) {
    const TensorSpec *spec = &unit->tensors[t];
    char place[HF_NAME_BYTES] = "";
    static const Rule head = {"head.weight", {"lm_head.weight"}, false};
    const Rule *rule = &head;
    if (u > 0 && u <= m->layers) {
        snprintf(place, sizeof place, "%s%s.%d.", prefix, families[m->arch].blocks, u - 1);
        rule = find_rule(families[m->arch].block, strchr(spec->name + 2, '.') + 1);  // behind "h.3."
    } else if (strcmp(spec->name, head.ours) != 0) {
        snprintf(place, sizeof place, "%s", prefix);
        rule = find_rule(families[m->arch].ends, spec->name);
    }
    int64_t rows[MAX_PARTS], columns = spec->n_dims == 2 ? spec->shape[1] : 1, first = 0;
    part_rows(m, spec, rule, rows);
    for (int p = 0; p < MAX_PARTS && rule->theirs[p]; p++) {
        HfTensor *tensor = &map->tensors[map->n++];
        *tensor = (HfTensor){.unit = u,
                             .tensor = t,
                             .first = first,
                             .len = rows[p] * columns,
                             .rows = rows[p],
                             .columns = columns,
                             .n_dims = spec->n_dims,
                             .transposed = rule->transposed};
        int n = snprintf(tensor->name, sizeof tensor->name, "%s%s", place, rule->theirs[p]);
        assert(n < HF_NAME_BYTES);
        (void)n;
        first += tensor->len;
    }
    assert(first == spec->len);
}

Status hf_map_make(const ModelConfig *m, bool prefix, HfMap *map) {
    *map = (HfMap){.n_units = model_n_units(m)};
    UnitSpec unit;
    model_unit(m, 1, &unit);
    map->tensors = calloc((size_t)map->n_units * (size_t)(unit.n_tensors + SPLITS), sizeof *map->tensors);
    map->first = calloc((size_t)map->n_units + 1, sizeof *map->first);
    if (!map->tensors || !map->first) {
        hf_map_free(map);
        return fail("no memory for the names of %d units", map->n_units);
    }
    for (int u = 0; u < map->n_units; u++) {
        model_unit(m, u, &unit);
        for (int t = 0; t < unit.n_tensors; t++)
            add_tensor(m, &unit, u, t, prefix ? families[m->arch].body : "", map);
        map->first[u + 1] = map->n;
    }
    return OK;
}

void hf_map_free(HfMap *map) {
    free(map->tensors);
    free(map->first);
    *map = (HfMap){0};
}

int hf_shape(const HfTensor *tensor, int64_t shape[2]) {
    shape[0] = tensor->transposed ? tensor->columns : tensor->rows;
    shape[1] = tensor->transposed ? tensor->rows : tensor->columns;
    return tensor->n_dims;
}

bool hf_is_surplus(const ModelConfig *m, const char *name) {
    static const char *const buffers[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
    size_t len = strlen(name);
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        size_t end = strlen(buffers[i]);
        if (len > end && strcmp(name + len - end, buffers[i]) == 0)
            return true;
    }
    return m->tied && strcmp(name, "lm_head.weight") == 0;
}
