// Options: parsing and its messages, presets, config.json files (also hostile ones), the batch equation, JSON, comparison.
#include <math.h>

#include <cjson/cJSON.h>

#include "llm/config.h"
#include "llm/flags.h"
#include "llm/nearest.h"
#include "test/check.h"

// Split a command line at spaces and parse it over the defaults. The words live until the next call.
static Status parse(Config *config, const char *line) {
    static char words[1024];
    char *argv[64] = {"train_gpt"}, *save;
    int argc = 1;
    snprintf(words, sizeof words, "%s", line);
    for (char *word = strtok_r(words, " ", &save); word; word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    config_defaults(config);
    return config_parse(config, argc, argv);
}

static Status resolve(Config *config, const char *line, int ranks, int64_t data_vocab) {
    TRY(parse(config, line));
    return config_resolve(config, ranks, data_vocab);
}

// ---- parsing ----

static void every_default_passes_its_own_range(void **state) {
    (void)state;
    Config config;
    memset(&config, 0, sizeof config);
    for (int i = 0; i < n_flags; i++) {
        const Flag *flag = &flags[i];
        if (flag->traits & FLAG_DERIVED)
            continue;
        assert_non_null(flag->help);
        assert_ptr_equal(flag_find(flag->name), flag);  // names are unique
        if (flag->standard)
            assert_ok(flag_parse(flag, flag->standard, &config));
    }
}

static void values_arrive(void **state) {
    (void)state;
    Config c;
    assert_ok(parse(&c, "--layers 3 --lr=1e-3 --steps 20K --device-memory 1.5Gi --tie off --overlap=off --optimizer sgd "
                        "--dtype bf16 --zero 3 --train a=b.h5 --plan --seed 999999999999999 --recompute full"));
    assert_int_equal(c.model.layers, 3);
    assert_true(c.lr == 1e-3);
    assert_int_equal(c.steps, 20000);
    assert_int_equal(c.device_memory, 3ull << 29);
    assert_false(c.model.tied);
    assert_false(c.overlap);
    assert_true(c.deterministic);
    assert_int_equal(c.optimizer, OPTIMIZER_SGD);
    assert_int_equal(c.dtype, DTYPE_BF16);
    assert_int_equal(c.zero_stage, 3);
    assert_int_equal(c.recompute, RECOMPUTE_FULL);
    assert_string_equal(c.train, "a=b.h5");
    assert_int_equal(c.seed, 999999999999999);
    assert_true(c.plan && !c.print_config);
    assert_true(config_given(&c, "plan") && config_given(&c, "tie") && !config_given(&c, "print-config"));
    assert_ok(parse(&c, "--steps 5 --steps 7"));
    assert_int_equal(c.steps, 7);
    assert_ok(parse(&c, "--prompt=--"));
    assert_string_equal(c.prompt, "--");
}

static void sizes(void **state) {
    (void)state;
    const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"--device-memory 1", 1},          {"--device-memory 80G", 80000000000}, {"--device-memory 2Ki", 2048},
                {"--device-memory 3M", 3000000},   {"--device-memory 7Mi", 7340032},     {"--device-memory 1T", 1000000000000},
                {"--device-memory 0.5Ki", 512},    {"--device-memory 1Ti", 1ull << 40},  {"--device-memory 1.25K", 1250}};
    const char *bad[] = {"1.5", "G", "1KB", "1 K", "-", ".5G", "0x10", "1e9", "1.2.3K", "nan", "1Kii"};
    Config c;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_ok(parse(&c, good[i].text));
        assert_int_equal(c.device_memory, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        config_defaults(&c);
        assert_fails(flag_parse(flag_find("device-memory"), bad[i], &c), "takes a whole number");
    }
    assert_fails(parse(&c, "--device-memory 18446744073709551616"), "at most 999999999999999");  // 2^64
    assert_fails(parse(&c, "--device-memory 99999999999999999999999999999999999999999"), "at most 999999999999999");
    assert_fails(parse(&c, "--device-memory 1000T"), "at most 999999999999999");
    assert_fails(parse(&c, "--layers 4294967297"), "must be at least 1 and at most 16384");  // 2^32 + 1
    assert_fails(parse(&c, "--device-memory 1.00000000000000000000000000000000000000K"), "out of range");
}

static void messages(void **state) {
    (void)state;
    Config c;
    assert_int_equal(parse(&c, "--leyers 3"), BAD_USAGE);
    status_clear();
    assert_fails(parse(&c, "--leyers 3"), "unknown option --leyers (did you mean \"--layers\"?)");
    assert_fails(parse(&c, "--micro 3"), "did you mean \"--micro-batch\"?");
    assert_fails(parse(&c, "--lr-min 3"), "unknown option --lr-min");
    assert_fails(parse(&c, "--zreo=1"), "did you mean \"--zero\"?");
    assert_fails(parse(&c, "--completely-else 3"), "unknown option --completely-else; --help");
    assert_fails(parse(&c, "--arch gpt2"), "unknown option --arch");         // derived, not an option
    assert_fails(parse(&c, "--offload-optimizer cpu"), "unknown option --offload-optimizer");
    assert_fails(parse(&c, "--dtype bf61"), "--dtype takes fp32|bf16|fp16, not \"bf61\" (did you mean \"bf16\"?)");
    assert_fails(parse(&c, "--dtype bf"), "--dtype takes fp32|bf16|fp16, not \"bf\"");
    assert_fails(parse(&c, "--schedule cosin"), "did you mean \"cosine\"?");
    assert_fails(parse(&c, "--tie yes"), "--tie takes on|off, not \"yes\"");
    assert_fails(parse(&c, "--plan=on"), "--plan takes no value, found \"on\"");
    assert_fails(parse(&c, "--lr"), "--lr needs a value (RATE)");
    assert_fails(parse(&c, "--out --steps 5"), "--out needs a value (DIR), found the option --steps");
    assert_fails(parse(&c, "--out="), "--out needs a value, found an empty one");
    assert_fails(parse(&c, "--train a.h5 b.h5"), "unexpected argument \"b.h5\"");
    assert_fails(parse(&c, "-h"), "unexpected argument \"-h\"");
    assert_fails(parse(&c, "--zero 4"), "--zero 4 is out of range: it must be at least 0 and at most 3");
    assert_fails(parse(&c, "--steps 0"), "--steps 0 is out of range: it must be at least 1");
    assert_fails(parse(&c, "--steps -5"), "out of range");
    assert_fails(parse(&c, "--steps ten"), "--steps takes a whole number, not \"ten\"");
    assert_fails(parse(&c, "--beta2 1"), "at least 0 and below 1");
    assert_fails(parse(&c, "--eps 0"), "above 0 and at most 1");
    assert_fails(parse(&c, "--lr nan"), "--lr takes a number, not \"nan\"");
    assert_fails(parse(&c, "--lr 1e999"), "out of range");
    assert_fails(parse(&c, "--lr -1"), "out of range");
    assert_fails(parse(&c, "--lr 1e-3x"), "takes a number");
    assert_fails(parse(&c, "--top-p 0"), "above 0 and at most 1");
}

static void ignored_options_are_refused(void **state) {
    (void)state;
    Config c;
    assert_fails(resolve(&c, "--momentum 0.5", 1, 0), "--momentum has no effect here: it goes with --optimizer sgd");
    assert_fails(resolve(&c, "--optimizer sgd --beta1 0.5", 1, 0), "--optimizer adamw or adam");
    assert_fails(resolve(&c, "--wsd-decay 0.5", 1, 0), "--schedule wsd");
    assert_fails(resolve(&c, "--schedule constant --min-lr 0", 1, 0), "--min-lr");
    assert_fails(resolve(&c, "--ranks 8", 1, 0), "--plan");
    assert_fails(resolve(&c, "--plan --params 7e9 --model llama2-7b", 1, 0), "--model");
    assert_fails(resolve(&c, "--keep 3", 1, 0), "--out");
    assert_ok(resolve(&c, "--optimizer sgd --momentum 0.5 --schedule wsd --wsd-decay 0.2 --out x --keep 1", 1, 0));
    assert_ok(resolve(&c, "--plan --params 7e9 --ranks 8", 8, 0));
}

static void distances(void **state) {
    (void)state;
    assert_int_equal(edit_distance("kitten", 6, "sitting", 7), 3);
    assert_int_equal(edit_distance("zreo", 4, "zero", 4), 1);  // a swap
    assert_int_equal(edit_distance("", 0, "abc", 3), 3);
    assert_int_equal(edit_distance("abc", 3, "", 0), 3);
    char a[200], b[200];
    memset(a, 'a', sizeof a);
    memset(b, 'b', sizeof b);
    assert_int_equal(edit_distance(a, sizeof a, b, sizeof b), NEAREST_MAX);
}

// ---- models ----

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
        {"gpt2-124m", 124439808},   {"gpt2-350m", 354823168},    {"gpt2-774m", 774030080},   {"gpt2-1558m", 1557611200},
        {"llama-110m", 109529856},  {"llama-1b", 1235814400},    {"llama2-7b", 6738415616},  {"llama2-13b", 13015864320},
        {"llama3-8b", 8030261248},  {"llama3-70b", 70553706496},
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
    assert_ok(resolve(&c, "--model gpt2-124m", 1, 0));
    assert_true(c.seq_len == 1024 && c.model.ffn == 3072 && c.model.head_dim == 64 && c.model.vocab_size == 50257);
    assert_ok(resolve(&c, "--model gpt2-tiny --channels 96 --heads 3", 1, 0));
    assert_true(c.model.ffn == 384 && c.model.head_dim == 32 && c.model.kv_heads == 3);
    assert_ok(resolve(&c, "--model llama-tiny --channels 256", 1, 0));
    assert_int_equal(c.model.ffn, 704);  // 682.67 → 683 → a multiple of 64
    assert_ok(resolve(&c, "--model llama-tiny --channels 192", 1, 0));
    assert_int_equal(c.model.ffn, 512);  // 8 · 192 / 3 exactly
    assert_ok(resolve(&c, "--model llama-tiny --channels 256 --ffn 100", 1, 0));
    assert_int_equal(c.model.ffn, 100);
    assert_ok(resolve(&c, "--model llama3-8b --heads 16", 1, 0));
    assert_true(c.model.kv_heads == 4 && c.model.head_dim == 256);
    assert_ok(resolve(&c, "--model llama-tiny --kv-heads 2 --tie on", 1, 0));
    assert_true(c.model.kv_heads == 2 && c.model.tied);

    assert_fails(resolve(&c, "--model gpt2-tiny --channels 130", 1, 0), "4 heads do not divide 130 channels");
    assert_fails(resolve(&c, "--model llama-tiny --kv-heads 3", 1, 0), "3 kv-heads do not divide 4 heads");
    assert_fails(resolve(&c, "--model gpt2-tiny --kv-heads 2", 1, 0), "GPT-2 has no grouped-query attention");
    assert_fails(resolve(&c, "--model llama3-8b --heads 2", 1, 0), "give --kv-heads");
    assert_fails(resolve(&c, "--model llama-tiny --channels 12", 1, 0), "must be even");
    assert_fails(resolve(&c, "--model gpt2-123m", 1, 0), "did you mean \"gpt2-124m\"?");
}

static void sequence_and_vocabulary(void **state) {
    (void)state;
    Config c;
    assert_ok(resolve(&c, "--model llama3-8b", 1, 0));
    assert_true(c.seq_len == 1024 && c.model.max_seq_len == 8192);
    assert_ok(resolve(&c, "--model gpt2-tiny", 1, 0));
    assert_int_equal(c.seq_len, 256);
    assert_ok(resolve(&c, "--model gpt2-124m --seq-len 64", 1, 0));
    assert_int_equal(c.model.max_seq_len, 1024);  // the table keeps its size
    assert_ok(resolve(&c, "--model gpt2-124m --seq-len 2048", 1, 0));
    assert_int_equal(c.model.max_seq_len, 2048);  // and grows when it must

    assert_ok(resolve(&c, "--model gpt2-124m", 1, 300));
    assert_int_equal(c.model.vocab_size, 300);
    assert_ok(config_resolve(&c, 1, 400));  // again, when more is known
    assert_int_equal(c.model.vocab_size, 400);
    assert_ok(resolve(&c, "--model gpt2-124m --vocab-size 512", 1, 300));
    assert_int_equal(c.model.vocab_size, 512);
    assert_fails(resolve(&c, "--model gpt2-124m --vocab-size 256", 1, 300), "300 tokens, more than the model's 256 (--vocab-size)");
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

#define GPT2_JSON                                                                                                      \
    "\"architectures\":[\"GPT2LMHeadModel\"],\"model_type\":\"gpt2\",\"n_embd\":768,\"n_layer\":12,\"n_head\":12,"        \
    "\"n_positions\":1024,\"vocab_size\":50257,\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-05"
#define LLAMA_JSON                                                                                                     \
    "\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":2048,\"intermediate_size\":8192,\"num_hidden_layers\":16,"  \
    "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-05,"    \
    "\"vocab_size\":128256,\"hidden_act\":\"silu\",\"rope_theta\":500000.0,\"attention_bias\":false,\"mlp_bias\":false"
#define LLAMA3_ROPE                                                                                                    \
    "\"rope_scaling\":{\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"rope_type\":\"llama3\","        \
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
    assert_ok(read_text(&read, "{" LLAMA_JSON ",\"tie_word_embeddings\":true,\"rope_parameters\":{\"rope_theta\":500000.0,"
                               "\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"rope_type\":\"llama3\","
                               "\"original_max_position_embeddings\":8192}}"));
    assert_memory_equal(&read, &preset, sizeof read);
    assert_ok(model_config_read_hf(&read, directory));  // a directory holds a config.json
    assert_memory_equal(&read, &preset, sizeof read);
}

static void config_json_details(void **state) {
    (void)state;
    ModelConfig m;
    assert_ok(read_text(&m, "{" GPT2_JSON ",\"n_inner\":100,\"resid_pdrop\":0.1,\"tie_word_embeddings\":false,\"initializer_range\":0.01}"));
    assert_true(m.ffn == 100 && m.had_dropout && !m.tied && m.init_std == 0.01f);
    assert_ok(read_text(&m, "{" GPT2_JSON ",\"resid_pdrop\":0.0}"));
    assert_false(m.had_dropout);
    assert_ok(read_text(&m, "{" LLAMA_JSON "}"));
    assert_true(!m.tied && !m.qkv_bias && !m.rope_llama3 && m.rope_theta == 500000 && m.head_dim == 64);
    assert_ok(read_text(&m, "{" LLAMA_JSON ",\"head_dim\":128,\"rope_scaling\":{\"type\":\"default\"}}"));
    assert_int_equal(m.head_dim, 128);
    assert_ok(read_text(&m, "{\"model_type\":\"qwen2\",\"hidden_size\":896,\"intermediate_size\":4864,\"num_hidden_layers\":24,"
                            "\"num_attention_heads\":14,\"num_key_value_heads\":2,\"max_position_embeddings\":32768,"
                            "\"rms_norm_eps\":1e-06,\"vocab_size\":151936,\"rope_theta\":1000000.0,\"sliding_window\":4096,"
                            "\"use_sliding_window\":false,\"tie_word_embeddings\":true}"));
    assert_true(m.qkv_bias && m.tied && m.norm_eps == 1e-6f && count_params(&m) == 494032768);  // Qwen2-0.5B
    const char *mistral = "{\"architectures\":[\"MistralForCausalLM\"],\"hidden_size\":4096,\"intermediate_size\":14336,"
                          "\"num_hidden_layers\":32,\"num_attention_heads\":32,\"num_key_value_heads\":8,"
                          "\"max_position_embeddings\":32768,\"vocab_size\":32768,\"sliding_window\":%s}";
    char text[512];
    snprintf(text, sizeof text, mistral, "null");
    assert_ok(read_text(&m, text));
    snprintf(text, sizeof text, mistral, "32768");
    assert_ok(read_text(&m, text));
    snprintf(text, sizeof text, mistral, "4096");
    assert_fails(read_text(&m, text), "\"sliding_window\" is 4096");
}

static void config_json_refusals(void **state) {
    (void)state;
    const struct {
        const char *json, *message;
    } cases[] = {
        {"{" GPT2_JSON ",\"scale_attn_by_inverse_layer_idx\":true}", "\"scale_attn_by_inverse_layer_idx\" is true; only false"},
        {"{" GPT2_JSON ",\"scale_attn_weights\":false}", "\"scale_attn_weights\" is false; only true"},
        {"{" GPT2_JSON ",\"add_cross_attention\":true}", "\"add_cross_attention\""},
        {"{" GPT2_JSON ",\"quantization_config\":{}}", "quantized weights are not supported"},
        {"{\"model_type\":\"gpt2\",\"n_embd\":8,\"n_layer\":1,\"n_head\":1,\"n_positions\":8,\"vocab_size\":9,"
         "\"activation_function\":\"relu\"}", "\"activation_function\" is \"relu\"; only \"gelu_new\""},
        {"{" LLAMA_JSON ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0}}", "\"rope_scaling\" is"},
        {"{" LLAMA_JSON ",\"rope_scaling\":3}", "an object is needed"},
        {"{" LLAMA_JSON ",\"rope_scaling\":{\"rope_type\":\"llama3\"}}", "\"original_max_position_embeddings\" is missing"},
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
         "\"n_inner\":0}", "\"n_inner\" is 0"},
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
        snprintf(text, sizeof text, "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":64,\"num_hidden_layers\":1,"
                 "\"num_attention_heads\":2,\"max_position_embeddings\":8,\"vocab_size\":9,\"%s\":true}", bias[i]);
        ModelConfig m;
        assert_fails(read_text(&m, text), bias[i]);
    }

    ModelConfig m;
    char nested[5000];
    memset(nested, '[', sizeof nested);
    assert_fails(model_config_read_hf(&m, write_config(nested, sizeof nested)), "not valid JSON");
    assert_fails(model_config_read_hf(&m, write_config("{\"a\":\"\0\"", 8)), "not valid JSON");
    assert_fails(model_config_read_hf(&m, "/dev/null"), "regular file");
    assert_fails(model_config_read_hf(&m, "/does/not/exist.json"), "cannot open the model description /does/not/exist.json");
}

static void init_from_fixes_the_shape(void **state) {
    (void)state;
    write_config("{" GPT2_JSON "}", strlen("{" GPT2_JSON "}"));
    Config c;
    char line[512];
    snprintf(line, sizeof line, "--init-from %s --seq-len 512", directory);
    assert_ok(resolve(&c, line, 1, 50000));
    assert_true(c.model.layers == 12 && c.model.vocab_size == 50257 && c.seq_len == 512);
    assert_ok(config_resolve(&c, 1, 50257));
    assert_fails(config_resolve(&c, 1, 60000), "60000 tokens, more than the model's 50257");
    snprintf(line, sizeof line, "--init-from %s --seq-len 2048", directory);
    assert_fails(resolve(&c, line, 1, 0), "longer than the position table");
    snprintf(line, sizeof line, "--init-from %s --model gpt2-124m", directory);
    assert_fails(resolve(&c, line, 1, 0), "leave out --model gpt2-124m");
    snprintf(line, sizeof line, "--init-from %s --layers 3", directory);
    assert_fails(resolve(&c, line, 1, 0), "--layers cannot change the shape");
    snprintf(line, sizeof line, "--model %s/config.json --layers 3 --seq-len 2048", directory);  // a shape only: may change
    assert_ok(resolve(&c, line, 1, 0));
    assert_true(c.model.layers == 3 && c.model.max_seq_len == 2048);
}

// ---- batch, schedule ----

static void batch_equation(void **state) {
    (void)state;
    const struct {
        const char *line;
        int ranks, micro, accum, global;
    } good[] = {
        {"", 1, 4, 1, 4},
        {"", 8, 4, 1, 32},
        {"--micro-batch 3", 2, 3, 1, 6},
        {"--grad-accum 5", 2, 4, 5, 40},
        {"--global-batch 64", 2, 4, 8, 64},
        {"--global-batch 6", 1, 3, 2, 6},
        {"--global-batch 7", 1, 1, 7, 7},
        {"--global-batch 64 --micro-batch 8", 2, 8, 4, 64},
        {"--global-batch 64 --grad-accum 2", 4, 8, 2, 64},
        {"--micro-batch 2 --grad-accum 3", 5, 2, 3, 30},
        {"--micro-batch 2 --grad-accum 3 --global-batch 30", 5, 2, 3, 30},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        Config c;
        assert_ok(resolve(&c, good[i].line, good[i].ranks, 0));
        assert_ok(config_resolve(&c, good[i].ranks, 0));  // twice gives the same
        assert_int_equal(c.micro_batch, good[i].micro);
        assert_int_equal(c.grad_accum, good[i].accum);
        assert_int_equal(c.global_batch, good[i].global);
    }
    Config c;
    assert_fails(resolve(&c, "--micro-batch 4 --grad-accum 3 --global-batch 64", 2, 0),
                 "global-batch 64 (--global-batch) = micro-batch 4 (--micro-batch) * grad-accum 3 (--grad-accum) * ranks 2 (this "
                 "run), but 24 is not 64");
    assert_fails(resolve(&c, "--micro-batch 5 --global-batch 64", 2, 0), "grad-accum ? (not given) * ranks 2 (this run), but 10 does not divide 64");
    assert_fails(resolve(&c, "--global-batch 7", 2, 0), "but 2 does not divide 7");
    assert_fails(resolve(&c, "--global-batch 2 --micro-batch 4", 1, 0), "but 4 does not divide 2");
    assert_fails(resolve(&c, "--plan --ranks 3 --global-batch 7", 3, 0), "ranks 3 (--ranks)");
    assert_fails(resolve(&c, "--micro-batch 1M --grad-accum 1M", 2, 0), "is beyond 2147483647 sequences");
    assert_fails(resolve(&c, "--micro-batch 1M --seq-len 4096", 1, 0), "is beyond 2147483647 tokens");
    assert_fails(resolve(&c, "--shard-group 3", 4, 0), "--shard-group 3 does not divide the 4 ranks");
}

static void schedule_defaults(void **state) {
    (void)state;
    Config c;
    assert_ok(resolve(&c, "--lr 1e-3 --steps 200", 1, 0));
    assert_true(c.warmup == 10 && c.min_lr == 1e-4);
    assert_ok(resolve(&c, "--steps 1M", 1, 0));
    assert_int_equal(c.warmup, 2000);
    assert_ok(resolve(&c, "--warmup 0 --min-lr 0", 1, 0));
    assert_true(c.warmup == 0 && c.min_lr == 0);
    assert_fails(resolve(&c, "--warmup 11 --steps 10", 1, 0), "--warmup 11 is longer than the run of 10 steps");
    assert_fails(resolve(&c, "--stop-at 11 --steps 10", 1, 0), "--stop-at 11 is beyond");
    assert_fails(resolve(&c, "--lr 1e-3 --min-lr 2e-3", 1, 0), "--min-lr 0.002 is above --lr 0.001");
}

// ---- JSON, help, text ----

static void json_round_trip_and_comparison(void **state) {
    (void)state;
    Config a, b;
    char differences[1024];
    assert_ok(resolve(&a, "--model llama-1b --lr 3e-4 --seed 999999999999999", 2, 0));
    cJSON *json = config_to_json(&a);
    char *text = cJSON_Print(json);
    cJSON *saved = cJSON_Parse(text);
    assert_int_equal(config_compare(&a, saved, differences, sizeof differences), 0);
    assert_string_equal(differences, "");
    const cJSON *model = cJSON_GetObjectItem(saved, "model");
    assert_true(cJSON_GetObjectItem(model, "norm_eps")->valuedouble == 1e-5);
    assert_string_equal(cJSON_GetObjectItem(model, "arch")->valuestring, "llama");
    assert_true(cJSON_GetObjectItem(cJSON_GetObjectItem(saved, "data"), "seed")->valuedouble == 999999999999999.0);

    // What does not change the numbers may differ: ranks and how they share the batch, stage, paths, memory, output.
    assert_ok(resolve(&b, "--model llama-1b --lr 3e-4 --seed 999999999999999 --micro-batch 1 --grad-accum 2 --zero 3 "
                          "--recompute full --train x --out y --stop-at 5", 4, 0));
    assert_int_equal(config_compare(&b, saved, differences, sizeof differences), 0);

    assert_ok(resolve(&b, "--model llama-1b --lr 1e-3 --min-lr 3e-5 --seed 999999999999998 --dtype bf16 --tie off "
                          "--global-batch 16", 2, 0));
    assert_int_equal(config_compare(&b, saved, differences, sizeof differences), 5);
    assert_string_equal(differences, "tie: saved on, now off\n"
                                     "seed: saved 999999999999999, now 999999999999998\n"
                                     "global-batch: saved 8, now 16\n"
                                     "lr: saved 0.0003, now 0.001\n"
                                     "dtype: saved fp32, now bf16\n");
    char small[20];  // no more than fits, still terminated
    assert_int_equal(config_compare(&b, saved, small, sizeof small), 5);
    assert_int_equal(strlen(small), sizeof small - 1);
    cJSON *empty = cJSON_CreateObject();
    assert_true(config_compare(&a, empty, differences, sizeof differences) > 20);  // a damaged or foreign manifest
    assert_non_null(strstr(differences, "layers: saved nothing, now 16\n"));
    assert_true(config_compare(&a, NULL, differences, sizeof differences) > 20);
    cJSON_Delete(empty);
    cJSON_Delete(saved);
    cJSON_Delete(json);
    free(text);
}

static void help_shows_every_option(void **state) {
    (void)state;
    char *text;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    config_print_help(file);
    fclose(file);
    for (int i = 0; i < n_flags; i++) {
        char option[80];
        snprintf(option, sizeof option, "  --%s%s", flags[i].name, flags[i].value ? " " : "\n");
        if (!flags[i].value)  // a switch: followed by the padding before its help
            snprintf(option, sizeof option, "  --%s  ", flags[i].name);
        assert_int_equal(strstr(text, option) != NULL, !(flags[i].traits & FLAG_DERIVED));
    }
    for (char *save, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        assert_true(strlen(line) <= 120);
    free(text);
}

static void byte_counts_as_text(void **state) {
    (void)state;
    const struct {
        double bytes;
        const char *text;
    } cases[] = {{0, "0 B"}, {1023, "1023 B"}, {1024, "1 KiB"}, {1536, "1.50 KiB"}, {8589934592.0, "8 GiB"}, {80e9, "74.5 GiB"},
                 {123456789, "118 MiB"}, {1023.9 * 1048576, "1024 MiB"}, {0x1p63, "8192 PiB"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[16];
        assert_string_equal(format_bytes(text, sizeof text, cases[i].bytes), cases[i].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_default_passes_its_own_range),
        cmocka_unit_test(values_arrive),
        cmocka_unit_test(sizes),
        cmocka_unit_test(messages),
        cmocka_unit_test(ignored_options_are_refused),
        cmocka_unit_test(distances),
        cmocka_unit_test(presets_have_the_published_sizes),
        cmocka_unit_test(shapes_are_derived),
        cmocka_unit_test(sequence_and_vocabulary),
        cmocka_unit_test(config_json_equals_the_presets),
        cmocka_unit_test(config_json_details),
        cmocka_unit_test(config_json_refusals),
        cmocka_unit_test(init_from_fixes_the_shape),
        cmocka_unit_test(batch_equation),
        cmocka_unit_test(schedule_defaults),
        cmocka_unit_test(json_round_trip_and_comparison),
        cmocka_unit_test(help_shows_every_option),
        cmocka_unit_test(byte_counts_as_text),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
