// Shapes of models: presets, what follows from options, and config.json files (also hostile ones).
#include "llm/config.h"
#include "test/check.h"
#include "test/config_line.h"

// ---- presets and options ----

// Ψ counted from the shape alone: the sums a person would do on paper.
static int64_t count_params(const ModelConfig *m) {
    int64_t c = m->channels, f = m->ffn, q = (int64_t)m->heads * m->head_dim, kv = (int64_t)m->kv_heads * m->head_dim;
    int64_t head = m->tied ? 0 : m->vocab_size * c;
    if (m->arch == ARCH_GPT2) {
        int64_t block = 4 * c + (3 * c * c + 3 * c) + (c * c + c) + (c * f + f) + (f * c + c);
        return m->vocab_size * c + m->max_seq_len * c + m->layers * block + 2 * c + head;
    }
    int64_t block = 2 * c + (q + 2 * kv) * c + (m->qkv_bias ? q + 2 * kv : 0) + q * c + 3 * c * f;
    return m->vocab_size * c + m->layers * block + c + head;
}

static void presets_have_the_published_sizes(void **state) {
    (void)state;
    const struct {
        const char *name;
        int64_t params;
    } published[] = {
        {"gpt2-124m", 124439808},  {"gpt2-350m", 354823168},    {"gpt2-774m", 774030080},  {"gpt2-1558m", 1557611200},
        {"llama-110m", 109529856}, {"llama-1b", 1235814400},    {"llama2-7b", 6738415616}, {"llama2-13b", 13015864320},
        {"llama3-8b", 8030261248}, {"llama3-70b", 70553706496},
    };
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        ModelConfig m;
        assert_ok(model_config_preset(&m, published[i].name));
        assert_ok(model_config_check(&m));
        if (count_params(&m) != published[i].params) {
            print_error("%s: %lld parameters, expected %lld\n", published[i].name, (long long)count_params(&m),
                        (long long)published[i].params);
            fail_test();
        }
    }
    const char *tiny[] = {"gpt2-tiny", "llama-tiny"};
    for (int i = 0; i < 2; i++) {
        ModelConfig m;
        assert_ok(model_config_preset(&m, tiny[i]));
        assert_ok(model_config_check(&m));
        assert_true(m.layers == 8 && m.heads == 4 && m.channels == 128 && m.vocab_size == 512);
    }
    ModelConfig m;
    assert_fails(model_config_preset(&m, "gtp2-124m"), "did you mean \"gpt2-124m\"?");
    assert_fails(model_config_preset(&m, "bert"), "the presets are gpt2-tiny, gpt2-124m");
}

static void shapes_are_derived(void **state) {
    (void)state;
    Config c;
    assert_ok(resolve_line(&c, "--model gpt2-124m", 1, 0));
    assert_true(c.seq_len == 1024 && c.model.ffn == 3072 && c.model.head_dim == 64 && c.model.vocab_size == 50257);
    assert_ok(resolve_line(&c, "--model gpt2-tiny --channels 96 --heads 3", 1, 0));
    assert_true(c.model.ffn == 384 && c.model.head_dim == 32 && c.model.kv_heads == 3);
    assert_ok(resolve_line(&c, "--model llama-tiny --channels 256", 1, 0));
    assert_int_equal(c.model.ffn, 704);  // 682.67 → 683 → a multiple of 64
    assert_ok(resolve_line(&c, "--model llama-tiny --channels 192", 1, 0));
    assert_int_equal(c.model.ffn, 512);  // 8 · 192 / 3 exactly
    assert_ok(resolve_line(&c, "--model llama-tiny --channels 256 --ffn 100", 1, 0));
    assert_int_equal(c.model.ffn, 100);
    assert_ok(resolve_line(&c, "--model llama3-8b --heads 16", 1, 0));
    assert_true(c.model.kv_heads == 4 && c.model.head_dim == 256);
    assert_ok(resolve_line(&c, "--model llama-tiny --kv-heads 2 --tie on", 1, 0));
    assert_true(c.model.kv_heads == 2 && c.model.tied);

    assert_fails(resolve_line(&c, "--model gpt2-tiny --channels 130", 1, 0), "4 heads do not divide 130 channels");
    assert_fails(resolve_line(&c, "--model llama-tiny --kv-heads 3", 1, 0), "3 kv-heads do not divide 4 heads");
    assert_fails(resolve_line(&c, "--model gpt2-tiny --kv-heads 2", 1, 0), "GPT-2 has no grouped-query attention");
    assert_fails(resolve_line(&c, "--model llama3-8b --heads 2", 1, 0), "give --kv-heads");
    assert_fails(resolve_line(&c, "--model llama-tiny --channels 12", 1, 0), "must be even");
    assert_fails(resolve_line(&c, "--model gpt2-123m", 1, 0), "did you mean \"gpt2-124m\"?");
}

static void sequence_and_vocabulary(void **state) {
    (void)state;
    Config c;
    assert_ok(resolve_line(&c, "--model llama3-8b", 1, 0));
    assert_true(c.seq_len == 1024 && c.model.max_seq_len == 8192);
    assert_ok(resolve_line(&c, "--model gpt2-tiny", 1, 0));
    assert_int_equal(c.seq_len, 256);
    assert_ok(resolve_line(&c, "--model gpt2-124m --seq-len 64", 1, 0));
    assert_int_equal(c.model.max_seq_len, 1024);  // the table keeps its size
    assert_ok(resolve_line(&c, "--model gpt2-124m --seq-len 2048", 1, 0));
    assert_int_equal(c.model.max_seq_len, 2048);  // and grows when it must

    assert_ok(resolve_line(&c, "--model gpt2-124m", 1, 300));
    assert_int_equal(c.model.vocab_size, 300);
    assert_ok(config_resolve(&c, 1, 400));  // again, when more is known
    assert_int_equal(c.model.vocab_size, 400);
    assert_ok(resolve_line(&c, "--model gpt2-124m --vocab-size 512", 1, 300));
    assert_int_equal(c.model.vocab_size, 512);
    assert_fails(resolve_line(&c, "--model gpt2-124m --vocab-size 256", 1, 300),
                 "300 tokens, more than the model's 256 (--vocab-size)");
}

// ---- config.json ----

static char *directory;

static int make_directory(void **state) {
    (void)state;
    directory = check_make_dir();
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    check_remove_dir(directory);
    return 0;
}

static const char *write_config(const char *text, size_t bytes) {
    static char path[320];
    snprintf(path, sizeof path, "%s/config.json", directory);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    fclose(file);
    return path;
}

static Status read_text(ModelConfig *model, const char *text) {
    return model_config_read_hf(model, write_config(text, strlen(text)));
}

#define GPT2_JSON                                                                                                  \
    "\"architectures\":[\"GPT2LMHeadModel\"],\"model_type\":\"gpt2\",\"n_embd\":768,\"n_layer\":12,\"n_head\":12," \
    "\"n_positions\":1024,\"vocab_size\":50257,\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-05"
#define LLAMA_JSON                                                                                                    \
    "\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":2048,\"intermediate_size\":8192,\"num_hidden_layers\":" \
    "16,"                                                                                                             \
    "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-05," \
    "\"vocab_size\":128256,\"hidden_act\":\"silu\",\"rope_theta\":500000.0,\"attention_bias\":false,\"mlp_bias\":"    \
    "false"
#define LLAMA3_ROPE                                                                                                \
    "\"rope_scaling\":{\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"rope_type\":\"llama3\"," \
    "\"original_max_position_embeddings\":8192}"

static void config_json_equals_the_presets(void **state) {
    (void)state;
    ModelConfig read, preset;
    assert_ok(read_text(&read, "{" GPT2_JSON ",\"n_inner\":null}"));
    assert_ok(model_config_preset(&preset, "gpt2-124m"));
    assert_memory_equal(&read, &preset, sizeof read);
    assert_ok(read_text(&read, "{" LLAMA_JSON "," LLAMA3_ROPE ",\"head_dim\":64,\"tie_word_embeddings\":true}"));
    assert_ok(model_config_preset(&preset, "llama-1b"));
    assert_memory_equal(&read, &preset, sizeof read);
    // Today's transformers writes rope_parameters instead.
    assert_ok(read_text(&read,
                        "{" LLAMA_JSON ",\"tie_word_embeddings\":true,\"rope_parameters\":{\"rope_theta\":500000.0,"
                        "\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"rope_type\":\"llama3\","
                        "\"original_max_position_embeddings\":8192}}"));
    assert_memory_equal(&read, &preset, sizeof read);
    assert_ok(model_config_read_hf(&read, directory));  // a directory holds a config.json
    assert_memory_equal(&read, &preset, sizeof read);
}

static void config_json_details(void **state) {
    (void)state;
    ModelConfig m;
    assert_ok(read_text(
        &m, "{" GPT2_JSON
            ",\"n_inner\":100,\"resid_pdrop\":0.1,\"tie_word_embeddings\":false,\"initializer_range\":0.01}"));
    assert_true(m.ffn == 100 && m.had_dropout && !m.tied && m.init_std == 0.01f);
    assert_ok(read_text(&m, "{" GPT2_JSON ",\"resid_pdrop\":0.0}"));
    assert_false(m.had_dropout);
    assert_ok(read_text(&m, "{" LLAMA_JSON "}"));
    assert_true(!m.tied && !m.qkv_bias && !m.rope_llama3 && m.rope_theta == 500000 && m.head_dim == 64);
    assert_ok(read_text(&m, "{" LLAMA_JSON ",\"head_dim\":128,\"rope_scaling\":{\"type\":\"default\"}}"));
    assert_int_equal(m.head_dim, 128);
    assert_ok(
        read_text(&m,
                  "{\"model_type\":\"qwen2\",\"hidden_size\":896,\"intermediate_size\":4864,\"num_hidden_layers\":24,"
                  "\"num_attention_heads\":14,\"num_key_value_heads\":2,\"max_position_embeddings\":32768,"
                  "\"rms_norm_eps\":1e-06,\"vocab_size\":151936,\"rope_theta\":1000000.0,\"sliding_window\":4096,"
                  "\"use_sliding_window\":false,\"tie_word_embeddings\":true}"));
    assert_true(m.qkv_bias && m.tied && m.norm_eps == 1e-6f && count_params(&m) == 494032768);  // Qwen2-0.5B
    const char *mistral =
        "{\"architectures\":[\"MistralForCausalLM\"],\"hidden_size\":4096,\"intermediate_size\":14336,"
        "\"num_hidden_layers\":32,\"num_attention_heads\":32,\"num_key_value_heads\":8,"
        "\"max_position_embeddings\":32768,\"vocab_size\":32768,\"sliding_window\":%s}";
    char text[512];
    snprintf(text, sizeof text, mistral, "null");
    assert_ok(read_text(&m, text));
    snprintf(text, sizeof text, mistral, "32768");
    assert_ok(read_text(&m, text));
    snprintf(text, sizeof text, mistral, "4096");
    assert_fails(read_text(&m, text), "\"sliding_window\" is 4096");
    const char *without =  // what is left out has transformers' defaults: a window of 4096, 8 heads of keys and values
        "{\"model_type\":\"mistral\",\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32,"
        "\"num_attention_heads\":32,\"vocab_size\":32768,\"max_position_embeddings\":%d}";
    snprintf(text, sizeof text, without, 32768);
    assert_fails(read_text(&m, text), "\"sliding_window\" is missing");
    snprintf(text, sizeof text, without, 4096);
    assert_ok(read_text(&m, text));
    assert_int_equal(m.kv_heads, 8);
}

static void config_json_refusals(void **state) {
    (void)state;
    const struct {
        const char *json, *message;
    } cases[] = {
        {"{" GPT2_JSON ",\"scale_attn_by_inverse_layer_idx\":true}",
         "\"scale_attn_by_inverse_layer_idx\" is true; only false"},
        {"{" GPT2_JSON ",\"scale_attn_weights\":false}", "\"scale_attn_weights\" is false; only true"},
        {"{" GPT2_JSON ",\"add_cross_attention\":true}", "\"add_cross_attention\""},
        {"{" GPT2_JSON ",\"quantization_config\":{}}", "quantized weights are not supported"},
        {"{\"model_type\":\"gpt2\",\"n_embd\":8,\"n_layer\":1,\"n_head\":1,\"n_positions\":8,\"vocab_size\":9,"
         "\"activation_function\":\"relu\"}",
         "\"activation_function\" is \"relu\"; only \"gelu_new\""},
        {"{" LLAMA_JSON ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0}}", "\"rope_scaling\" is"},
        {"{" LLAMA_JSON ",\"rope_scaling\":3}", "an object is needed"},
        {"{" LLAMA_JSON ",\"rope_scaling\":{\"rope_type\":\"llama3\"}}",
         "\"original_max_position_embeddings\" is missing"},
        {"{" LLAMA_JSON ",\"partial_rotary_factor\":0.5}", "\"partial_rotary_factor\" is 0.5"},
        {"{" LLAMA_JSON ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", "\"layer_types\""},
        {"{\"architectures\":[\"BertForMaskedLM\"]}", "supported are GPT2LMHeadModel"},
        {"{\"architectures\":[7]}", "supported are"},
        {"{\"architectures\":{\"a\":\"x\"}}", "supported are"},
        {"{}", "\"model_type\" is missing"},
        {"[1,2]", "not a JSON object"},
        {"null", "not a JSON object"},
        {"", "not valid JSON"},
        {"{\"model_type\":", "not valid JSON"},
        {"{\"model_type\":\"gpt2\"}", "\"vocab_size\" is missing; a whole number"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":\"9\"}", "\"vocab_size\" is \"9\"; a whole number"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":-1}", "\"vocab_size\" is -1"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":1.5}", "\"vocab_size\" is 1.5"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":1e30}", "\"vocab_size\" is 1e+30"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":9,\"n_layer\":99999999}", "\"n_layer\" is 99999999"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":9,\"n_layer\":1,\"n_head\":3,\"n_embd\":8,\"n_positions\":8}",
         "n_head 3 does not divide n_embd 8"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":9,\"n_layer\":1,\"n_head\":1,\"n_embd\":1048576,\"n_positions\":8,"
         "\"n_inner\":0}",
         "\"n_inner\" is 0"},
        {"{" GPT2_JSON ",\"tie_word_embeddings\":1}", "\"tie_word_embeddings\" is 1; true or false"},
        {"{" GPT2_JSON ",\"initializer_range\":-1}", "\"initializer_range\" is -1"},
        {"{" LLAMA_JSON ",\"head_dim\":63}", "config.json: model: rotary embedding"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ModelConfig m = {.layers = 77};
        assert_fails(read_text(&m, cases[i].json), cases[i].message);
        assert_int_equal(m.layers, 77);  // untouched
    }
    const char *bias[] = {"attention_bias", "mlp_bias"};
    for (int i = 0; i < 2; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":64,\"num_hidden_layers\":1,"
                 "\"num_attention_heads\":2,\"max_position_embeddings\":8,\"vocab_size\":9,\"%s\":true}",
                 bias[i]);
        ModelConfig m;
        assert_fails(read_text(&m, text), bias[i]);
    }

    ModelConfig m;
    char nested[5000];
    memset(nested, '[', sizeof nested);
    assert_fails(model_config_read_hf(&m, write_config(nested, sizeof nested)), "not valid JSON");
    assert_fails(model_config_read_hf(&m, write_config("{\"a\":\"\0\"", 8)), "not valid JSON");
    assert_fails(model_config_read_hf(&m, "/dev/null"), "regular file");
    assert_fails(model_config_read_hf(&m, "/does/not/exist.json"),
                 "cannot open the model description /does/not/exist.json");
}

static void init_from_fixes_the_shape(void **state) {
    (void)state;
    write_config("{" GPT2_JSON "}", strlen("{" GPT2_JSON "}"));
    Config c;
    char line[512];
    snprintf(line, sizeof line, "--init-from %s --seq-len 512", directory);
    assert_ok(resolve_line(&c, line, 1, 50000));
    assert_true(c.model.layers == 12 && c.model.vocab_size == 50257 && c.seq_len == 512);
    assert_ok(config_resolve(&c, 1, 50257));
    assert_fails(config_resolve(&c, 1, 60000), "60000 tokens, more than the model's 50257");
    snprintf(line, sizeof line, "--init-from %s --seq-len 2048", directory);
    assert_fails(resolve_line(&c, line, 1, 0), "longer than the position table");
    snprintf(line, sizeof line, "--init-from %s --model gpt2-124m", directory);
    assert_fails(resolve_line(&c, line, 1, 0), "leave out --model gpt2-124m");
    snprintf(line, sizeof line, "--init-from %s --layers 3", directory);
    assert_fails(resolve_line(&c, line, 1, 0), "--layers cannot change the shape");
    snprintf(line, sizeof line, "--model %s/config.json --layers 3 --seq-len 2048",
             directory);  // a shape only: may change
    assert_ok(resolve_line(&c, line, 1, 0));
    assert_true(c.model.layers == 3 && c.model.max_seq_len == 2048);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_have_the_published_sizes),
        cmocka_unit_test(shapes_are_derived),
        cmocka_unit_test(sequence_and_vocabulary),
        cmocka_unit_test(config_json_equals_the_presets),
        cmocka_unit_test(config_json_details),
        cmocka_unit_test(config_json_refusals),
        cmocka_unit_test(init_from_fixes_the_shape),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
