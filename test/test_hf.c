// Hugging Face models of test/fixtures (dev/make_hf_fixtures.py): the weights come in so that logits are those of
// transformers, in any cut; config.json comes out as it went in.
#include <cjson/cJSON.h>
#include <hdf5.h>
#include <math.h>

#include "dev/hf_run.h"
#include "test/check.h"

static const char *const fixtures[] = {"gpt2", "llama_gqa", "llama3_bf16", "qwen2_tied_parts"};
enum { N_FIXTURES = sizeof fixtures / sizeof *fixtures };

static const char *fixture_path(int i) {
    static char path[256];
    snprintf(path, sizeof path, "test/fixtures/hf_%s", fixtures[i]);
    return path;
}

static void open_fixture(int i, ModelConfig *model, HfModel *hf) {
    static char paths[N_FIXTURES][256];
    snprintf(paths[i], sizeof paths[i], "%s", fixture_path(i));
    assert_ok(model_config_read_hf(model, paths[i]));
    assert_ok(hf_open(paths[i], model, hf));
}

// ---- logits ----

static double attribute(hid_t file, const char *name) {
    double value = 0;
    hid_t id = H5Aopen(file, name, H5P_DEFAULT);
    assert_true(id >= 0 && H5Aread(id, H5T_NATIVE_DOUBLE, &value) >= 0 && H5Aclose(id) >= 0);
    return value;
}

static void *dataset(hid_t file, const char *name, hid_t type, size_t len) {
    hid_t id = H5Dopen2(file, name, H5P_DEFAULT);
    void *memory = malloc(len * H5Tget_size(type));
    assert_true(id >= 0 && H5Dread(id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, memory) >= 0 && H5Dclose(id) >= 0);
    return memory;
}

static void check_logits(int i) {
    char path[300];
    HfRun run;
    snprintf(path, sizeof path, "%s/expected.h5", fixture_path(i));
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    assert_true(file >= 0);
    size_t T = (size_t)attribute(file, "seq_len"), V = (size_t)attribute(file, "vocab_size");
    int32_t *tokens = dataset(file, "tokens", H5T_NATIVE_INT32, T * (size_t)attribute(file, "windows") + 1);
    float *expected = dataset(file, "logits", H5T_NATIVE_FLOAT, T * V);
    H5Fclose(file);

    assert_ok(hf_run_open(fixture_path(i), (int)T, &run));
    double worst = 0;
    for (size_t t = 0; t < T; t++) {
        assert_ok(hf_run_token(&run, tokens[t]));
        for (size_t v = 0; v < V; v++)
            worst = fmax(worst, fabs((double)run.logits[v] - expected[t * V + v]));
    }
    print_message("    %s: logits within %.1e of transformers'\n", fixtures[i], worst);
    assert_true(worst < 2e-5);
    hf_run_close(&run);
    free(tokens);
    free(expected);
}

static void test_logits(void **state) {
    (void)state;
    for (int i = 0; i < N_FIXTURES; i++)
        check_logits(i);
}

// ---- any cut of a unit ----

static void test_cuts(void **state) {
    (void)state;
    for (int i = 0; i < N_FIXTURES; i++) {
        ModelConfig model;
        HfModel hf;
        open_fixture(i, &model, &hf);
        for (int u = 0; u < model_n_units(&model); u++) {
            UnitSpec spec;
            model_unit(&model, u, &spec);
            float *whole = malloc((size_t)spec.len * sizeof *whole), *part = malloc((size_t)spec.len * sizeof *part);
            assert_ok(hf_read(&hf, &spec, u, 0, spec.len, whole));
            for (int t = 0; t < spec.n_tensors; t++) {  // gaps are zero, weights are not
                const TensorSpec *tensor = &spec.tensors[t];
                int64_t end = t + 1 < spec.n_tensors ? spec.tensors[t + 1].offset : spec.len;
                for (int64_t k = tensor->offset; k < end; k++)
                    assert_true((whole[k] == 0) == (k >= tensor->offset + tensor->len));
            }
            for (int64_t n = 1, step; n <= 9; n++) {
                step = spec.len / n + 1;
                for (int64_t begin = 0; begin < spec.len; begin += step) {
                    int64_t len = begin + step > spec.len ? spec.len - begin : step;
                    memset(part, 0xff, (size_t)spec.len * sizeof *part);
                    assert_ok(hf_read(&hf, &spec, u, begin, len, part));
                    assert_memory_equal(part, whole + begin, (size_t)len * sizeof *part);
                }
            }
            free(whole);
            free(part);
        }
        hf_close(&hf);
    }
}

// ---- another model than its config.json ----

static void test_mismatch(void **state) {
    (void)state;
    ModelConfig model;
    HfModel hf;
    open_fixture(0, &model, &hf);
    hf_close(&hf);
    const char *gpt2 = "test/fixtures/hf_gpt2";
    ModelConfig other = model;
    other.layers = 3;
    assert_fails(hf_open(gpt2, &other, &hf), "missing: transformer.h.2.ln_1.weight");
    assert_fails(hf_open(gpt2, &other, &hf), " and 8 more");
    other.layers = 1;
    assert_fails(hf_open(gpt2, &other, &hf), "no place for: transformer.h.1.attn.c_attn.bias");
    other = model;
    other.ffn = 127;
    assert_fails(hf_open(gpt2, &other, &hf),
                 "transformer.h.0.mlp.c_fc.weight has the shape (32, 128), but config.json makes it (32, 127)");
    other = model;
    other.tied = false;
    assert_fails(hf_open(gpt2, &other, &hf), "missing: lm_head.weight (set \"tie_word_embeddings\": true");

    open_fixture(3, &model, &hf);
    hf_close(&hf);
    model.qkv_bias = false;
    assert_fails(hf_open("test/fixtures/hf_qwen2_tied_parts", &model, &hf),
                 "no place for: model.layers.0.self_attn.k_proj.bias");
    model.arch = ARCH_GPT2;
    assert_fails(hf_open("test/fixtures/hf_qwen2_tied_parts", &model, &hf), "missing: transformer.wte.weight");
    assert_fails(hf_open("test/fixtures", &model, &hf), "has no model.safetensors");
}

static void test_surplus(void **state) {
    (void)state;
    ModelConfig model = {.arch = ARCH_GPT2, .tied = true};
    assert_true(hf_is_surplus(&model, "h.0.attn.bias"));
    assert_true(hf_is_surplus(&model, "transformer.h.11.attn.masked_bias"));
    assert_true(hf_is_surplus(&model, "model.layers.0.self_attn.rotary_emb.inv_freq"));
    assert_true(hf_is_surplus(&model, "lm_head.weight"));
    assert_false(hf_is_surplus(&model, "h.0.attn.c_attn.bias"));
    assert_false(hf_is_surplus(&model, "model.layers.0.self_attn.q_norm.weight"));
    model.tied = false;
    assert_false(hf_is_surplus(&model, "lm_head.weight"));
}

// ---- config.json ----

static void assert_same_model(const ModelConfig *a, const ModelConfig *b) {
    ModelConfig x = *a, y = *b;
    x.had_dropout = y.had_dropout = false;  // read as 0 once, and written as 0
    assert_memory_equal(&x, &y, sizeof x);
}

static void check_config(const ModelConfig *model) {
    char directory[256], path[300];
    snprintf(directory, sizeof directory, "%s", check_make_dir());
    snprintf(path, sizeof path, "%s/config.json", directory);
    cJSON *json = model_config_to_hf(model, DTYPE_BF16);
    char *text = cJSON_Print(json);
    ModelConfig back = {0};
    assert_ok(durable_write_file(path, text, strlen(text)));
    assert_ok(model_config_read_hf(&back, directory));
    assert_same_model(model, &back);
    cJSON_free(text);
    cJSON_Delete(json);
    check_remove_dir(directory);

    Config config;
    config_defaults(&config);
    config.model = *model;
    json = config_to_json(&config);
    assert_ok(model_config_from_json(&back, json));
    assert_same_model(model, &back);
    cJSON_DeleteItemFromObjectCaseSensitive(cJSON_GetObjectItem(json, "model"), "heads");
    assert_fails(model_config_from_json(&back, json), "heads");
    cJSON_Delete(json);
}

static void test_config(void **state) {
    (void)state;
    static const char *const presets[] = {"gpt2-tiny", "gpt2-124m", "gpt2-1558m", "llama-tiny",
                                          "llama-1b",  "llama2-7b", "llama3-8b",  "llama3-70b"};
    ModelConfig model;
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        memset(&model, 0, sizeof model);
        assert_ok(model_config_preset(&model, presets[i]));
        check_config(&model);
        model.tied = !model.tied;
        check_config(&model);
    }
    for (int i = 0; i < N_FIXTURES; i++) {
        memset(&model, 0, sizeof model);
        assert_ok(model_config_read_hf(&model, fixture_path(i)));
        check_config(&model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_logits), cmocka_unit_test(test_cuts),
                                       cmocka_unit_test(test_mismatch), cmocka_unit_test(test_surplus),
                                       cmocka_unit_test(test_config)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
