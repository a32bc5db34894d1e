// ModelConfig → Hugging Face's config.json: every key that decides the arithmetic, also where transformers has the same
// default, because defaults differ between its versions.
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "llm/config.h"

// transformers wants to see that a number is a float: 8.0, where cJSON would print 8.
static void add_float(cJSON *json, const char *key, float x) {
    char text[40];
    int n = snprintf(text, sizeof text - 2, "%.15g", float_decimal(x));
    if (strcspn(text, ".e") == (size_t)n)
        strcat(text, ".0");
    cJSON_AddRawToObject(json, key, text);
}

static void add_gpt2(cJSON *json, const ModelConfig *m) {
    cJSON_AddNumberToObject(json, "n_layer", m->layers);
    cJSON_AddNumberToObject(json, "n_head", m->heads);
    cJSON_AddNumberToObject(json, "n_embd", m->channels);
    cJSON_AddNumberToObject(json, "n_inner", m->ffn);
    cJSON_AddNumberToObject(json, "n_positions", m->max_seq_len);
    cJSON_AddStringToObject(json, "activation_function", "gelu_new");
    add_float(json, "layer_norm_epsilon", m->norm_eps);
    cJSON_AddNumberToObject(json, "resid_pdrop", 0);
    cJSON_AddNumberToObject(json, "embd_pdrop", 0);
    cJSON_AddNumberToObject(json, "attn_pdrop", 0);
}

static void add_llama(cJSON *json, const ModelConfig *m) {
    cJSON_AddNumberToObject(json, "num_hidden_layers", m->layers);
    cJSON_AddNumberToObject(json, "num_attention_heads", m->heads);
    cJSON_AddNumberToObject(json, "num_key_value_heads", m->kv_heads);
    cJSON_AddNumberToObject(json, "hidden_size", m->channels);
    cJSON_AddNumberToObject(json, "head_dim", m->head_dim);
    cJSON_AddNumberToObject(json, "intermediate_size", m->ffn);
    cJSON_AddNumberToObject(json, "max_position_embeddings", m->max_seq_len);
    cJSON_AddStringToObject(json, "hidden_act", "silu");
    add_float(json, "rms_norm_eps", m->norm_eps);
    add_float(json, "rope_theta", m->rope_theta);
    cJSON_AddNumberToObject(json, "attention_dropout", 0);
    if (m->rope_llama3) {
        cJSON *scaling = cJSON_AddObjectToObject(json, "rope_scaling");
        cJSON_AddStringToObject(scaling, "rope_type", "llama3");
        add_float(scaling, "factor", m->rope_factor);
        add_float(scaling, "low_freq_factor", m->rope_low_freq);
        add_float(scaling, "high_freq_factor", m->rope_high_freq);
        cJSON_AddNumberToObject(scaling, "original_max_position_embeddings", m->rope_original_len);
    } else {
        cJSON_AddNullToObject(json, "rope_scaling");
    }
    if (m->qkv_bias) {
        cJSON_AddFalseToObject(json, "use_sliding_window");
    } else {
        cJSON_AddFalseToObject(json, "attention_bias");
        cJSON_AddFalseToObject(json, "mlp_bias");
    }
}

cJSON *model_config_to_hf(const ModelConfig *m, Dtype dtype) {
    static const char *const torch_dtypes[] = {
        [DTYPE_FP32] = "float32", [DTYPE_BF16] = "bfloat16", [DTYPE_FP16] = "float16"};
    bool gpt2 = m->arch == ARCH_GPT2;
    const char *class = gpt2 ? "GPT2LMHeadModel" : m->qkv_bias ? "Qwen2ForCausalLM" : "LlamaForCausalLM";
    cJSON *json = cJSON_CreateObject(), *classes = cJSON_AddArrayToObject(json, "architectures");
    cJSON_AddItemToArray(classes, cJSON_CreateString(class));
    cJSON_AddStringToObject(json, "model_type", gpt2 ? "gpt2" : m->qkv_bias ? "qwen2" : "llama");
    cJSON_AddStringToObject(json, "torch_dtype", torch_dtypes[dtype]);
    cJSON_AddNumberToObject(json, "vocab_size", (double)m->vocab_size);
    cJSON_AddBoolToObject(json, "tie_word_embeddings", m->tied);
    add_float(json, "initializer_range", m->init_std);
    if (gpt2)
        add_gpt2(json, m);
    else
        add_llama(json, m);
    return json;
}
