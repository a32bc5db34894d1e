// Hugging Face's config.json → ModelConfig. Whatever would make the model compute something else is refused by name;
// keys that do not touch the arithmetic (dropout, token ids, versions) are passed over. The file is not trusted.

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cjson/cJSON.h>

#include "llm/config.h"

enum { MAX_FILE_BYTES = 16 << 20, MAX_PATH_BYTES = 4096 };

typedef struct Reader {
    const char *path;
    const cJSON *json;  // the object whose keys are read
} Reader;

// ---- typed access: an absent key and null give the default ----

static const cJSON *find(const Reader *r, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(r->json, key);
    return cJSON_IsNull(item) ? NULL : item;
}

static Status wrong(const Reader *r, const char *key, const char *wanted) {
    char *found = cJSON_PrintUnformatted(find(r, key));
    Status status = found ? fail_usage("%s: \"%s\" is %.100s; %s", r->path, key, found, wanted)
                          : fail_usage("%s: \"%s\" is missing; %s", r->path, key, wanted);
    free(found);
    return status;
}

static Status read_int(const Reader *r, const char *key, int standard, int max, int *value) {
    const cJSON *item = find(r, key);
    char wanted[64];
    snprintf(wanted, sizeof wanted, "a whole number from 1 to %d is needed", max);
    if (!item && standard > 0) {
        *value = standard;
        return OK;
    }
    if (!cJSON_IsNumber(item))
        return wrong(r, key, wanted);
    double x = item->valuedouble;
    if (!(x >= 1 && x <= max) || x != floor(x))
        return wrong(r, key, wanted);
    *value = (int)x;
    return OK;
}

// Where transformers has a default of its own, null is not the same.
static bool is_absent(const Reader *r, const char *key) {
    return !cJSON_GetObjectItemCaseSensitive(r->json, key);
}

static Status read_float(const Reader *r, const char *key, double standard, float *value) {
    const cJSON *item = find(r, key);
    if (item && !(cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble <= 1e30))
        return wrong(r, key, "a number from 0 to 1e30 is needed");
    *value = (float)(item ? item->valuedouble : standard);
    return OK;
}

static Status read_bool(const Reader *r, const char *key, bool standard, bool *value) {
    const cJSON *item = find(r, key);
    if (item && !cJSON_IsBool(item))
        return wrong(r, key, "true or false is needed");
    *value = item ? cJSON_IsTrue(item) : standard;
    return OK;
}

// The key is absent, or has the one value that this program computes.
static Status require_bool(const Reader *r, const char *key, bool only) {
    bool value = only;
    TRY(read_bool(r, key, only, &value));
    return value == only ? OK : wrong(r, key, only ? "only true is supported" : "only false is supported");
}

static Status require_absent(const Reader *r, const char *key, const char *why) {
    return find(r, key) ? wrong(r, key, why) : OK;
}

static Status require_text(const Reader *r, const char *key, const char *only, const char *or_same) {
    const cJSON *item = find(r, key);
    char wanted[64];
    snprintf(wanted, sizeof wanted, "only \"%s\" is supported", only);
    if (item && !(cJSON_IsString(item) && (!strcmp(item->valuestring, only) || !strcmp(item->valuestring, or_same))))
        return wrong(r, key, wanted);
    return OK;
}

// ---- what the architectures share ----

static void note_dropout(const Reader *r, ModelConfig *m) {
    const char *const keys[] = {"resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout", "hidden_dropout"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const cJSON *item = find(r, keys[i]);
        m->had_dropout |= cJSON_IsNumber(item) && item->valuedouble != 0;
    }
}

static Status check_common(const Reader *r) {
    TRY(require_absent(r, "quantization_config", "quantized weights are not supported"));
    const cJSON *types = find(r, "layer_types"), *type;
    cJSON_ArrayForEach(type, types) {
        if (!cJSON_IsString(type) || strcmp(type->valuestring, "full_attention") != 0)
            return wrong(r, "layer_types", "only \"full_attention\" is supported");
    }
    return OK;
}

// ---- GPT-2 ----

static Status read_gpt2(const Reader *r, ModelConfig *m) {
    m->arch = ARCH_GPT2;
    TRY(read_int(r, "n_layer", 0, 1 << 14, &m->layers));
    TRY(read_int(r, "n_head", 0, 1 << 14, &m->heads));
    TRY(read_int(r, "n_embd", 0, 1 << 20, &m->channels));
    TRY(read_int(r, "n_inner", 4 * m->channels, 1 << 22, &m->ffn));
    TRY(read_int(r, "n_positions", 0, 1 << 24, &m->max_seq_len));
    TRY(read_float(r, "layer_norm_epsilon", 1e-5, &m->norm_eps));
    TRY(read_bool(r, "tie_word_embeddings", true, &m->tied));
    m->kv_heads = m->heads;
    if (m->channels % m->heads != 0)
        return fail_usage("%s: n_head %d does not divide n_embd %d", r->path, m->heads, m->channels);
    m->head_dim = m->channels / m->heads;

    TRY(require_text(r, "activation_function", "gelu_new", "gelu_pytorch_tanh"));  // two names of the tanh form
    TRY(require_bool(r, "scale_attn_weights", true));
    TRY(require_bool(r, "scale_attn_by_inverse_layer_idx", false));
    return require_bool(r, "add_cross_attention", false);
}

// ---- LLaMA, Qwen2, Mistral ----

static Status read_rope(const Reader *r, ModelConfig *m) {
    // Newer files keep everything in rope_parameters, older ones in rope_theta and rope_scaling.
    const char *key = find(r, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    const cJSON *object = find(r, key);
    TRY(read_float(r, "rope_theta", 10000, &m->rope_theta));
    if (!object)
        return OK;
    if (!cJSON_IsObject(object))
        return wrong(r, key, "an object is needed");
    Reader scaling = {r->path, object};
    TRY(read_float(&scaling, "rope_theta", m->rope_theta, &m->rope_theta));
    const cJSON *type = find(&scaling, "rope_type");
    if (!type)
        type = find(&scaling, "type");
    if (cJSON_IsString(type) && strcmp(type->valuestring, "default") == 0)
        return OK;
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "llama3") != 0)
        return wrong(r, key, "only the types \"llama3\" and \"default\" are supported");
    m->rope_llama3 = true;
    TRY(read_float(&scaling, "factor", 0, &m->rope_factor));
    TRY(read_float(&scaling, "low_freq_factor", 0, &m->rope_low_freq));
    TRY(read_float(&scaling, "high_freq_factor", 0, &m->rope_high_freq));
    return read_int(&scaling, "original_max_position_embeddings", 0, 1 << 24, &m->rope_original_len);
}

// A window that no sequence outgrows does nothing.
static Status check_sliding_window(const Reader *r, bool in_use, int max_seq_len) {
    const cJSON *window = find(r, "sliding_window");
    if (in_use && is_absent(r, "sliding_window") && max_seq_len > 4096)
        return wrong(r, "sliding_window", "transformers takes 4096 then; write null for attention without a window");
    if (in_use && window && !(cJSON_IsNumber(window) && window->valuedouble >= max_seq_len))
        return wrong(r, "sliding_window", "attention over a window is not supported");
    return OK;
}

static Status read_llama(const Reader *r, ModelConfig *m, const char *family) {
    bool qwen2 = strcmp(family, "qwen2") == 0, mistral = strcmp(family, "mistral") == 0;
    m->arch = ARCH_LLAMA;
    TRY(read_int(r, "num_hidden_layers", 0, 1 << 14, &m->layers));
    TRY(read_int(r, "num_attention_heads", 0, 1 << 14, &m->heads));
    bool own = is_absent(r, "num_key_value_heads");
    TRY(read_int(r, "num_key_value_heads", own && mistral ? 8 : own && qwen2 ? 32 : m->heads, 1 << 14, &m->kv_heads));
    TRY(read_int(r, "hidden_size", 0, 1 << 20, &m->channels));
    TRY(read_int(r, "intermediate_size", 0, 1 << 22, &m->ffn));
    TRY(read_int(r, "max_position_embeddings", 0, 1 << 24, &m->max_seq_len));
    TRY(read_float(r, "rms_norm_eps", 1e-6, &m->norm_eps));
    TRY(read_bool(r, "tie_word_embeddings", false, &m->tied));
    if (!find(r, "head_dim") && m->channels % m->heads != 0)
        return fail_usage("%s: num_attention_heads %d does not divide hidden_size %d, and there is no head_dim",
                          r->path, m->heads, m->channels);
    TRY(read_int(r, "head_dim", m->channels / m->heads, 1 << 14, &m->head_dim));
    TRY(read_rope(r, m));
    m->qkv_bias = qwen2;

    bool sliding = mistral;
    if (qwen2)
        TRY(read_bool(r, "use_sliding_window", false, &sliding));
    TRY(check_sliding_window(r, sliding, m->max_seq_len));
    TRY(require_text(r, "hidden_act", "silu", "swish"));
    TRY(require_bool(r, "attention_bias", false));  // LLaMA's also puts one on the output projection
    TRY(require_bool(r, "mlp_bias", false));
    const cJSON *partial = find(r, "partial_rotary_factor");
    if (partial && !(cJSON_IsNumber(partial) && partial->valuedouble == 1))
        return wrong(r, "partial_rotary_factor", "only 1 is supported");
    return OK;
}

// ---- the file ----

static Status read_model(const Reader *r, ModelConfig *m) {
    static const struct {
        const char *architecture, *type;
    } known[] = {{"GPT2LMHeadModel", "gpt2"},
                 {"LlamaForCausalLM", "llama"},
                 {"Qwen2ForCausalLM", "qwen2"},
                 {"MistralForCausalLM", "mistral"}};
    if (!cJSON_IsObject(r->json))
        return fail_usage("%s: not a JSON object", r->path);

    const cJSON *architecture = cJSON_GetArrayItem(find(r, "architectures"), 0), *type = find(r, "model_type");
    const char *key = architecture ? "architectures" : "model_type", *family = NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known && !family; i++) {
        if (architecture ? cJSON_IsString(architecture) && !strcmp(architecture->valuestring, known[i].architecture)
                         : cJSON_IsString(type) && !strcmp(type->valuestring, known[i].type))
            family = known[i].type;
    }
    if (!family)
        return wrong(r, key,
                     "supported are GPT2LMHeadModel, LlamaForCausalLM, Qwen2ForCausalLM and MistralForCausalLM");

    TRY(check_common(r));
    int vocab_size;
    TRY(read_int(r, "vocab_size", 0, INT32_MAX, &vocab_size));
    m->vocab_size = vocab_size;
    TRY(read_float(r, "initializer_range", 0.02, &m->init_std));
    note_dropout(r, m);
    return strcmp(family, "gpt2") == 0 ? read_gpt2(r, m) : read_llama(r, m, family);
}

// The file's bytes, at most MAX_FILE_BYTES; the caller frees.
static Status read_file(const char *path, char **data, size_t *bytes) {
    struct stat info;
    FILE *file = fopen(path, "rb");
    if (!file)
        return fail("cannot open the model description %s: %s", path, strerror(errno));
    *data = NULL;
    Status status = OK;
    if (fstat(fileno(file), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > MAX_FILE_BYTES) {
        status = fail_usage("%s is not a config.json: a regular file of at most %d MiB is needed", path,
                            MAX_FILE_BYTES >> 20);
    } else if (!(*data = malloc((size_t)info.st_size + 1))) {
        status = fail("out of host memory for %s", path);
    } else {
        *bytes = fread(*data, 1, (size_t)info.st_size, file);
        if (ferror(file))
            status = fail("cannot read %s: %s", path, strerror(errno));
    }
    if (status != OK) {
        free(*data);
        *data = NULL;
    }
    fclose(file);
    return status;
}

Status model_config_read_hf(ModelConfig *model, const char *path) {
    char inside[MAX_PATH_BYTES];
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        snprintf(inside, sizeof inside, "%s/config.json", path);
        path = inside;
    }
    char *data = NULL;
    size_t bytes = 0;
    TRY(read_file(path, &data, &bytes));
    cJSON *json = cJSON_ParseWithLength(data, bytes);
    ModelConfig result = {0};
    Status status = json ? read_model(&(Reader){path, json}, &result) : fail_usage("%s: not valid JSON", path);
    if (status == OK && (status = model_config_check(&result)) != OK)
        status = fail_context(status, "%s", path);
    cJSON_Delete(json);
    free(data);
    if (status == OK)
        *model = result;
    return status;
}
