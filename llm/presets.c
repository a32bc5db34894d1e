// Shapes of well-known models, and which numbers make a shape.

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "llm/config.h"
#include "llm/nearest.h"

// The sizes of GPT-2 (Radford et al. 2019): head_dim 64, ffn 4C, 1024 positions, tied.
#define GPT2(l, h, c, v, t)                                                                                        \
    {                                                                                                              \
        .arch = ARCH_GPT2, .layers = l, .heads = h, .kv_heads = h, .channels = c, .head_dim = c / h, .ffn = 4 * c, \
        .vocab_size = v, .max_seq_len = t, .tied = true, .norm_eps = 1e-5f, .init_std = 0.02f                      \
    }
#define LLAMA(l, h, kv, c, f, v, t, theta)                                                                   \
    .arch = ARCH_LLAMA, .layers = l, .heads = h, .kv_heads = kv, .channels = c, .head_dim = c / h, .ffn = f, \
    .vocab_size = v, .max_seq_len = t, .norm_eps = 1e-5f, .rope_theta = theta, .init_std = 0.02f

static const struct {
    const char *name;
    ModelConfig model;
} presets[] = {
    {"gpt2-tiny", GPT2(8, 4, 128, 512, 256)},
    {"gpt2-124m", GPT2(12, 12, 768, 50257, 1024)},
    {"gpt2-350m", GPT2(24, 16, 1024, 50257, 1024)},
    {"gpt2-774m", GPT2(36, 20, 1280, 50257, 1024)},
    {"gpt2-1558m", GPT2(48, 25, 1600, 50257, 1024)},
    {"llama-tiny", {LLAMA(8, 4, 4, 128, 384, 512, 256, 10000)}},
    {"llama-110m", {LLAMA(12, 12, 12, 768, 2048, 32000, 1024, 10000), .tied = true}},  // llama2.c's stories110M
    {"llama-1b",                                                                       // LLaMA 3.2 1B
     {LLAMA(16, 32, 8, 2048, 8192, 128256, 131072, 500000), .tied = true, .rope_llama3 = true, .rope_factor = 32,
      .rope_low_freq = 1, .rope_high_freq = 4, .rope_original_len = 8192}},
    {"llama2-7b", {LLAMA(32, 32, 32, 4096, 11008, 32000, 4096, 10000)}},
    {"llama2-13b", {LLAMA(40, 40, 40, 5120, 13824, 32000, 4096, 10000)}},
    {"llama3-8b", {LLAMA(32, 32, 8, 4096, 14336, 128256, 8192, 500000)}},
    {"llama3-70b", {LLAMA(80, 64, 8, 8192, 28672, 128256, 8192, 500000)}},
};
enum { N_PRESETS = sizeof presets / sizeof *presets };

Status model_config_preset(ModelConfig *model, const char *name) {
    Nearest nearest = {.word = name};
    char names[256] = "", hint[128];
    for (int i = 0; i < N_PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            *model = presets[i].model;
            return OK;
        }
        nearest_try(&nearest, presets[i].name, strlen(presets[i].name));
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", presets[i].name);
    }
    return fail_usage("no model is called \"%s\"%s, and no such config.json exists; the presets are %s", name,
                      nearest_text(&nearest, "", hint, sizeof hint), names);
}

static Status check_range(const char *what, int64_t value, int64_t max) {
    if (value < 1 || value > max)
        return fail_usage("model: %s %lld is out of range: it must be at least 1 and at most %lld", what,
                          (long long)value, (long long)max);
    return OK;
}

Status model_config_check(const ModelConfig *m) {
    // These bounds keep every product of sizes (a tensor, a unit, all layers) within 64 bits.
    TRY(check_range("layers", m->layers, MAX_LAYERS));
    TRY(check_range("heads", m->heads, 1 << 14));
    TRY(check_range("kv-heads", m->kv_heads, 1 << 14));
    TRY(check_range("channels", m->channels, 1 << 20));
    TRY(check_range("head_dim", m->head_dim, 1 << 14));
    TRY(check_range("ffn", m->ffn, 1 << 22));
    TRY(check_range("vocab-size", m->vocab_size, 1 << 24));
    TRY(check_range("the longest sequence", m->max_seq_len, 1 << 24));
    if (m->heads % m->kv_heads != 0)
        return fail_usage("model: %d kv-heads do not divide %d heads", m->kv_heads, m->heads);
    if (!(m->norm_eps > 0 && m->norm_eps <= 1))
        return fail_usage("model: the norms' epsilon %g must be above 0 and at most 1", m->norm_eps);
    if (!(m->init_std >= 0 && m->init_std <= 1e3f))
        return fail_usage("model: the initial standard deviation %g must be at least 0 and at most 1000", m->init_std);

    if (m->arch == ARCH_GPT2) {
        if ((int64_t)m->heads * m->head_dim != m->channels)
            return fail_usage("model: %d heads of GPT-2 do not divide %d channels", m->heads, m->channels);
        if (m->kv_heads != m->heads)
            return fail_usage("model: GPT-2 has no grouped-query attention: kv-heads %d must equal heads %d",
                              m->kv_heads, m->heads);
        return OK;
    }
    if (m->head_dim % 2 != 0)
        return fail_usage("model: rotary embedding turns pairs, so head_dim %d (channels / heads) must be even",
                          m->head_dim);
    if (!(m->rope_theta > 0 && isfinite(m->rope_theta)))
        return fail_usage("model: rope_theta %g must be above 0", m->rope_theta);
    if (m->rope_llama3) {
        TRY(check_range("rope_scaling's original_max_position_embeddings", m->rope_original_len, 1 << 24));
        if (!(m->rope_factor >= 1 && isfinite(m->rope_factor)) || !(m->rope_low_freq > 0) ||
            !(m->rope_high_freq > m->rope_low_freq && isfinite(m->rope_high_freq)))
            return fail_usage(
                "model: rope_scaling needs factor >= 1 and 0 < low_freq_factor < high_freq_factor, found %g, %g, %g",
                m->rope_factor, m->rope_low_freq, m->rope_high_freq);
    }
    return OK;
}
