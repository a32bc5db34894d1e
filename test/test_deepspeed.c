// DeepSpeed's JSON: the dialect, every row of the table, what keys say together, and the messages.
#include <cjson/cJSON.h>
#include <math.h>

#include "llm/deepspeed.h"
#include "llm/flags.h"
#include "llm/relaxed_json.h"
#include "test/check.h"
#include "test/config_line.h"

static char directory[256], file_path[300], notes_text[8192];

static int make_directory(void **state) {
    (void)state;
    snprintf(directory, sizeof directory, "%s", check_make_dir());
    snprintf(file_path, sizeof file_path, "%s/ds.json", directory);
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    check_remove_dir(directory);
    return 0;
}

// Options of a command line and a file; what the reader says is in notes_text.
static Status read_json(Config *config, const char *line, const char *json) {
    FILE *file = fopen(file_path, "w");
    fputs(json, file);
    fclose(file);
    TRY(parse_line(config, line));
    config->config_file = file_path;
    memset(notes_text, 0, sizeof notes_text);
    FILE *notes = fmemopen(notes_text, sizeof notes_text, "w");
    Status status = deepspeed_read(config, notes);
    fclose(notes);
    return status;
}

static Status resolve_json(Config *config, const char *line, const char *json, int ranks) {
    TRY(read_json(config, line, json));
    return config_resolve(config, ranks, 0);
}

// ---- the dialect ----

static void comments_and_commas(void **state) {
    (void)state;
    Config c;
    assert_ok(read_json(&c, "",
                        "# a file\n{ // of DeepSpeed\n \"train_batch_size\": 8, /* two\nlines, } */\n"
                        " \"steps_per_print\": 5, # }\n \"optimizer\": {\"type\": \"Adam\", \"params\": "
                        "{\"betas\": [0.8, 0.9, ], \"lr\": 1e-4,\n},}, // end\n}\n# fin"));
    assert_int_equal(c.global_batch, 8);
    assert_int_equal(c.log_every, 5);
    assert_true(c.beta1 == 0.8 && c.beta2 == 0.9 && c.lr == 1e-4);

    const struct {
        const char *json, *message;
    } bad[] = {
        {"{\n\"steps_per_print\": 1,\n\"steps_per_print\": 2}", "the key \"steps_per_print\" is there twice"},
        {"{\"fp16\": {\"enabled\": true, \"enabled\": true}}", "\"enabled\" is there twice"},
        {"{\n\n\"steps_per_print\": }", "line 3: not JSON at \"}\""},
        {"{\n\"steps_per_print\": 1 /* ", "line 2: the comment does not end"},
        {"{,}", "line 1: not JSON"},
        {"{\"steps_per_print\": 1,,}", "not JSON"},
        {"{} {}", "not JSON"},
        {"[]", "is not a JSON object"},
        {"", "not JSON"},
        {"{\"steps_per_print\": 1", "not JSON"},
        {"{\"\xff\": 1}", "is not a text in UTF-8"},
        {"{\"steps_per_print\": \"//", "not JSON"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(read_json(&c, "", bad[i].json), bad[i].message);
    // Strings are left alone
    char text[] = "{\"a # b\": \"// , } /* \\\" ,]\", \"c\": [1, 2 , ] }";
    cJSON *json;
    assert_ok(relaxed_json_parse(text, strlen(text), "x", &json));
    assert_string_equal(cJSON_GetObjectItem(json, "a # b")->valuestring, "// , } /* \" ,]");
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "c")), 2);
    cJSON_Delete(json);
    assert_ok(parse_line(&c, "--config /no/such"));
    assert_fails(deepspeed_read(&c, NULL), "cannot open --config /no/such");
    assert_ok(parse_line(&c, "--config /dev/zero"));
    assert_fails(deepspeed_read(&c, NULL), "a regular file");
}

// ---- the table ----

static void rows_are_sound(void **state) {
    (void)state;
    for (int i = 0; i < n_deepspeed_keys; i++) {
        const DsKey *key = &deepspeed_keys[i];
        for (int j = 0; j < i; j++)
            assert_string_not_equal(deepspeed_keys[j].path, key->path);
        assert_true(key->value == DS_BLOCK || key->flag || (key->note && *key->note));
        if (key->flag)
            assert_non_null(flag_find(key->flag));
        const char *dot = strrchr(key->path, '.');  // the block around it has a row, before it
        bool found = dot == NULL;
        for (int j = 0; j < i && !found; j++)
            found = deepspeed_keys[j].value == DS_BLOCK &&
                    strlen(deepspeed_keys[j].path) == (size_t)(dot - key->path) &&
                    strncmp(deepspeed_keys[j].path, key->path, (size_t)(dot - key->path)) == 0;
        assert_true(found);
    }
}

// {"a": {"b": value}} for the path a.b
static char *nested(const char *path, const char *value, char *json) {
    int depth = 0;
    char *at = json + sprintf(json, "{\"");
    for (; *path; path++) {
        if (*path == '.')
            at += sprintf(at, "\": {\""), depth++;
        else
            *at++ = *path;
    }
    at += sprintf(at, "\": %s}", value);
    while (depth-- > 0)
        *at++ = '}';
    *at = '\0';
    return json;
}

static void every_row_does_what_it_says(void **state) {
    (void)state;
    Config c;
    char json[1024];
    for (int i = 0; i < n_deepspeed_keys; i++) {
        const DsKey *key = &deepspeed_keys[i];
        const char *asks = key->value == DS_FREE ? "{\"enabled\": true}" : "\"other\"";
        if (key->effect == DS_REFUSED) {
            assert_int_equal(read_json(&c, "", nested(key->path, asks, json)), BAD_USAGE);
            if (!strstr(status_message(), key->path) || !strstr(status_message(), key->note)) {
                print_error("%s: %s\n", key->path, status_message());
                fail_test();
            }
            status_clear();
        }
        if (key->effect == DS_NO_EFFECT && strncmp(key->path, "optimizer", 9) != 0) {
            assert_ok(read_json(&c, "", nested(key->path, asks, json)));
            assert_non_null(strstr(notes_text, key->path));
        }
        if (key->effect == DS_HONOURED || strncmp(key->path, "optimizer", 9) == 0 ||
            strncmp(key->path, "scheduler", 9) == 0)
            continue;
        // What asks for nothing is neither refused nor mentioned
        char harmless[64];
        const char *values[] = {"null", "\"auto\"", harmless};
        snprintf(harmless, sizeof harmless, "%.*s", (int)strcspn(key->harmless ? key->harmless : "", "|"),
                 key->harmless ? key->harmless : "");
        for (int v = 0; v < (*harmless ? 3 : 2); v++) {
            assert_ok(read_json(&c, "", nested(key->path, values[v], json)));
            assert_string_equal(notes_text, "");
        }
    }
    char help[65536] = "";
    FILE *file = fmemopen(help, sizeof help, "w");
    deepspeed_print_help(file);
    fclose(file);
    for (int i = 0; i < n_deepspeed_keys; i++)
        assert_true(deepspeed_keys[i].value == DS_BLOCK || strstr(help, deepspeed_keys[i].path));
    assert_non_null(strstr(help, "  autotuning.tuner_type "));
}

static void unknown_keys(void **state) {
    (void)state;
    Config c;
    const char *const cases[][2] = {
        {"{\"train_batchsize\": 1}", "unknown key \"train_batchsize\" (did you mean \"train_batch_size\"?)"},
        {"{\"zero_optimization\": {\"stge\": 1}}",
         "unknown key \"zero_optimization.stge\" (did you mean \"zero_optimization.stage\"?)"},
        {"{\"zero_optimization\": {\"offload_optimizer\": {\"devise\": 1}}}",
         "(did you mean \"zero_optimization.offload_optimizer.device\"?)"},
        {"{\"hysteresis\": 2}", "unknown key \"hysteresis\" (did you mean \"fp16.hysteresis\"?)"},
        {"{\"autotuning\": {\"tuner_typ\": 2}}", "(did you mean \"autotuning.tuner_type\"?)"},
        {"{\"something_else_entirely\": 2}", "unknown key \"something_else_entirely\"; --config-help"},
        {"{\"\": 2}", "unknown key \"\""},
        {"{\"fp16.enabled\": true}", "unknown key"},
        {"{\"fp16\": true}", "\"fp16\" is true; it takes an object"},
        {"{\"train_batch_size\": \"8\"}", "\"train_batch_size\" is \"8\"; it takes a number"},
        {"{\"train_batch_size\": 0}", "\"train_batch_size\": --global-batch 0 is out of range"},
        {"{\"train_batch_size\": 1e999}", "it takes a number"},
        {"{\"zero_optimization\": {\"stage\": 4}}", "\"zero_optimization.stage\": --zero 4 is out of range"},
        {"{\"zero_optimization\": {\"overlap_comm\": 1}}", "it takes true or false"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(read_json(&c, "", cases[i][0]), cases[i][1]);
}

// ---- what keys say ----

static void simple_keys(void **state) {
    (void)state;
    Config c;
    assert_ok(read_json(
        &c, "",
        "{\"gradient_clipping\": 0.5, \"steps_per_print\": 20, \"zero_optimization\": {\"stage\": 3, "
        "\"overlap_comm\": false, \"mics_shard_size\": 4, \"reduce_bucket_size\": 5e8}, \"wall_clock_breakdown\": "
        "true}"));
    assert_true(c.grad_clip == 0.5 && c.log_every == 20 && c.zero_stage == 3 && !c.overlap && c.shard_group == 4);
    assert_non_null(strstr(notes_text, "no effect here: zero_optimization.reduce_bucket_size, wall_clock_breakdown"));
    assert_ok(read_json(&c, "--grad-clip 2 --zero 1",
                        "{\"gradient_clipping\": \"auto\", \"zero_optimization\": {\"stage\": 1}}"));
    assert_true(c.grad_clip == 2 && c.zero_stage == 1);
    assert_fails(read_json(&c, "--grad-clip 2", "{\"gradient_clipping\": 1}"),
                 "--grad-clip says 2, but \"gradient_clipping\" of ");
    assert_fails(read_json(&c, "--zero 1", "{\"zero_optimization\": {\"stage\": 2}}"),
                 " says 2: leave one of the two out");
}

static void batch(void **state) {
    (void)state;
    const struct {
        const char *line, *json;
        int ranks, micro, accum, global;
    } good[] = {
        {"", "{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4}", 2, 4, 4, 32},
        {"", "{\"train_batch_size\": 32, \"gradient_accumulation_steps\": 2}", 4, 4, 2, 32},
        {"", "{\"train_micro_batch_size_per_gpu\": 3, \"gradient_accumulation_steps\": 5}", 2, 3, 5, 30},
        {"", "{\"train_batch_size\": 32}", 2, 16, 1, 32},  // no accumulation, as DeepSpeed
        {"", "{\"train_micro_batch_size_per_gpu\": 6}", 3, 6, 1, 18},
        {"--micro-batch 4", "{\"train_batch_size\": 32}", 2, 4, 4, 32},
        {"--micro-batch 4", "{\"gradient_accumulation_steps\": 3}", 2, 4, 3, 24},
        {"",
         "{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": \"auto\", "
         "\"gradient_accumulation_steps\": \"auto\"}",
         2, 4, 4, 32},
        {"--global-batch 12", "{\"train_batch_size\": \"auto\"}", 2, 3, 2, 12},
    };
    Config c;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_ok(resolve_json(&c, good[i].line, good[i].json, good[i].ranks));
        assert_int_equal(c.micro_batch, good[i].micro);
        assert_int_equal(c.grad_accum, good[i].accum);
        assert_int_equal(c.global_batch, good[i].global);
    }
    assert_fails(resolve_json(&c, "", "{\"gradient_accumulation_steps\": 3}", 1), "alone does not say the batch");
    assert_fails(
        resolve_json(&c, "--grad-accum 2", "{\"train_batch_size\": 33, \"train_micro_batch_size_per_gpu\": 4}", 4),
        "ds.json) = micro-batch 4 (\"train_micro_batch_size_per_gpu\" of ");
    assert_fails(
        resolve_json(&c, "--grad-accum 2", "{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 8}", 4),
        "* grad-accum 2 (--grad-accum) * ranks 4 (this run), but 64 is not 32");
}

static void dtypes(void **state) {
    (void)state;
    Config c;
    assert_ok(read_json(&c, "",
                        "{\"bf16\": {\"enabled\": true}, \"data_types\": {\"grad_accum_dtype\": \"bf16\"}, "
                        "\"communication_data_type\": \"bf16\"}"));
    assert_true(c.dtype == DTYPE_BF16 && c.grad_dtype == STATE_PARAM && c.reduce_dtype == STATE_PARAM);
    assert_ok(read_json(&c, "", "{\"bf16\": {\"enabled\": false}, \"fp16\": {\"enabled\": false, \"hysteresis\": 3}}"));
    assert_true(c.dtype == DTYPE_FP32 && c.loss_scale_hysteresis == 2 && config_given(&c, "dtype"));
    assert_ok(read_json(&c, "", "{\"bfloat16\": {\"enabled\": true}}"));
    assert_true(c.dtype == DTYPE_BF16);
    assert_ok(read_json(&c, "", "{\"bfloat16\": {\"enabled\": true}, \"bf16\": {\"enabled\": \"auto\"}}"));
    assert_true(c.dtype == DTYPE_FP32);
    assert_ok(read_json(&c, "--dtype bf16",
                        "{\"bf16\": {\"enabled\": \"auto\"}, \"fp16\": {\"enabled\": false}, "
                        "\"data_types\": {\"grad_accum_dtype\": \"fp32\"}}"));
    assert_true(c.dtype == DTYPE_BF16 && c.grad_dtype == STATE_FP32);
    assert_fails(read_json(&c, "", "{\"bf16\": {\"enabled\": true}, \"fp16\": {\"enabled\": true}}"), "are both true");
    assert_fails(read_json(&c, "--dtype bf16", "{\"fp16\": {\"enabled\": true}}"),
                 "--dtype says bf16, but \"fp16.enabled\" of ");
    assert_fails(read_json(&c, "--dtype bf16", "{\"bf16\": {\"enabled\": false}}"), "\"bf16.enabled\" of ");
    assert_fails(read_json(&c, "", "{\"communication_data_type\": \"fp16\"}"),
                 "it takes \"fp32\" or the dtype of the run, which is fp32");
}

static void loss_scale(void **state) {
    (void)state;
    Config c;
    assert_ok(read_json(
        &c, "",
        "{\"fp16\": {\"enabled\": true, \"loss_scale\": 0, \"initial_scale_power\": 12, \"loss_scale_window\": "
        "500, \"hysteresis\": 4, \"consecutive_hysteresis\": true, \"min_loss_scale\": 0.5}}"));
    assert_true(c.dtype == DTYPE_FP16 && c.loss_scale == 0 && c.loss_scale_init == 4096 && c.loss_scale_window == 500);
    assert_true(c.loss_scale_hysteresis == 4 && c.loss_scale_consecutive && c.loss_scale_min == 0.5);
    assert_ok(config_resolve(&c, 1, 0));
    assert_ok(
        resolve_json(&c, "", "{\"fp16\": {\"enabled\": true, \"loss_scale\": 128, \"loss_scale_window\": 7}}", 1));
    assert_true(c.loss_scale == 128 && c.loss_scale_window == 1000);  // a fixed scale has no window
    assert_fails(read_json(&c, "--loss-scale 8", "{\"fp16\": {\"enabled\": true, \"loss_scale\": 0}}"),
                 "--loss-scale says 8, but \"fp16.loss_scale\" of ");
    assert_fails(read_json(&c, "", "{\"fp16\": {\"enabled\": true, \"initial_scale_power\": 99}}"), "from 0 to 60");
    assert_fails(read_json(&c, "", "{\"fp16\": {\"enabled\": true, \"loss_scale_window\": 0}}"),
                 "\"fp16.loss_scale_window\": --loss-scale-window 0 is out of range");
    assert_fails(read_json(&c, "--loss-scale-window 9", "{\"fp16\": {\"enabled\": true, \"loss_scale_window\": 10}}"),
                 "--loss-scale-window says 9");
}

static void optimizers(void **state) {
    (void)state;
    Config c;
    // What is left out has DeepSpeed's default
    assert_ok(read_json(&c, "", "{\"optimizer\": {\"type\": \"AdamW\"}}"));
    assert_true(c.optimizer == OPTIMIZER_ADAMW && c.lr == 1e-3 && c.beta1 == 0.9 && c.beta2 == 0.999 && c.eps == 1e-8);
    assert_true(c.weight_decay == 0);
    assert_ok(read_json(&c, "--beta2 0.98 --lr 3e-4",
                        "{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": \"auto\"}}}"));
    assert_true(c.optimizer == OPTIMIZER_ADAMW && c.beta2 == 0.98 &&
                c.lr == 3e-4);  // adam_w_mode is on by default there
    assert_ok(read_json(&c, "",
                        "{\"optimizer\": {\"type\": \"adam\", \"params\": {\"adam_w_mode\": false, \"lr\": 0.002, "
                        "\"weight_decay\": 3e-7, \"betas\": [0.8, 0.99], \"eps\": 1e-6, \"torch_adam\": true}}}"));
    assert_true(c.optimizer == OPTIMIZER_ADAM && c.lr == 0.002 && c.weight_decay == 3e-7 && c.beta1 == 0.8 &&
                c.eps == 1e-6);
    assert_non_null(strstr(notes_text, "optimizer.params.torch_adam"));
    assert_ok(
        resolve_json(&c, "", "{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.1, \"momentum\": 0.5}}}", 1));
    assert_true(c.optimizer == OPTIMIZER_SGD && c.lr == 0.1 && c.momentum == 0.5 && c.weight_decay == 0);
    assert_ok(read_json(&c, "", "{\"optimizer\": {\"type\": \"SGD\"}}"));
    assert_true(c.momentum == 0);
    assert_fails(read_json(&c, "", "{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"eps\": 1}}}"),
                 "\"optimizer.params.eps\" does not go with SGD");
    assert_fails(read_json(&c, "", "{\"optimizer\": {\"type\": \"Lamb\"}}"), "\"Lamb\"; it takes Adam, AdamW or SGD");
    assert_fails(read_json(&c, "", "{\"optimizer\": {\"params\": {\"lr\": 1}}}"), "\"optimizer.type\" is missing");
    assert_fails(read_json(&c, "", "{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"betas\": [0.9]}}}"),
                 "two numbers");
    assert_fails(read_json(&c, "", "{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"betas\": [0.9, 1]}}}"),
                 "below 1");
    assert_fails(read_json(&c, "", "{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"max_grad_norm\": 1.0}}}"),
                 "write gradient_clipping");
    assert_fails(read_json(&c, "--lr 1e-3", "{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 6e-4}}}"),
                 "--lr says 0.001, but \"optimizer.params.lr\" of ");
}

static void schedulers(void **state) {
    (void)state;
    Config c;
    assert_ok(resolve_json(&c, "--steps 500",
                           "{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 1e-5, "
                           "\"warmup_max_lr\": 2e-3, \"warmup_num_steps\": 600, \"warmup_type\": \"linear\"}}}",
                           1));
    assert_true(c.schedule == SCHEDULE_WARMUP_LR && c.warmup == 600 && c.warmup_min_lr == 1e-5 && c.lr == 2e-3);
    assert_true(c.warmup_type == WARMUP_LINEAR && c.steps == 500);
    assert_ok(
        resolve_json(&c, "",
                     "{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 1e-4}}, \"scheduler\": {\"type\": "
                     "\"WarmupDecayLR\", \"params\": {\"warmup_max_lr\": 2e-3, \"total_num_steps\": 5e3}}}",
                     1));
    assert_true(c.schedule == SCHEDULE_WARMUP_DECAY_LR && c.steps == 5000 && c.warmup == 1000 && c.lr == 2e-3);
    assert_true(c.warmup_type == WARMUP_LOG && c.warmup_min_lr == 0);
    assert_non_null(strstr(notes_text, "\"optimizer.params.lr\" gives way to"));
    assert_ok(
        resolve_json(&c, "--steps 900",
                     "{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 1e-3}}, \"scheduler\": {\"type\": "
                     "\"WarmupCosineLR\", \"params\": {\"total_num_steps\": \"auto\", \"warmup_num_steps\": 10, "
                     "\"warmup_min_ratio\": 0.25}}}",
                     1));
    assert_true(c.schedule == SCHEDULE_WARMUP_COSINE_LR && c.steps == 900 && c.warmup == 10 && c.lr == 1e-3);
    assert_true(c.warmup_min_lr == 0.25 * 1e-3 && c.min_lr == 1e-4 * 1e-3);
    assert_ok(read_json(&c, "--lr 3e-4 --warmup 5", "{\"scheduler\": {\"type\": \"WarmupLR\"}}"));
    assert_true(c.lr == 3e-4 && c.warmup == 5);
    assert_fails(resolve_json(&c, "--steps 500", "{\"scheduler\": {\"type\": \"WarmupDecayLR\"}}", 1),
                 "ds.json 1000 is longer than the run of 500 steps");
    const char *const bad[][3] = {
        {"", "{\"scheduler\": {\"type\": \"OneCycle\"}}", "it takes WarmupLR, WarmupDecayLR or WarmupCosineLR"},
        {"", "{\"scheduler\": {\"params\": {\"warmup_num_steps\": 4}}}", "\"scheduler.type\" is \"\""},
        {"", "{\"scheduler\": {\"type\": \"WarmupDecayLR\"}}",
         "needs \"scheduler.params.total_num_steps\", or --steps"},
        {"", "{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"cos_min_ratio\": 0}}}",
         "does not go with WarmupLR"},
        {"", "{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 0}}}", "at least 1 step"},
        {"", "{\"scheduler\": {\"type\": \"auto\"}}", "\"scheduler.type\" is \"cosine\""},
        {"--schedule cosine", "{\"scheduler\": {\"type\": \"WarmupLR\"}}",
         "--schedule says cosine, but \"scheduler.type\""},
        {"--steps 7", "{\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 9}}}",
         "--steps says 7"},
        {"--steps 99",
         "{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 1e-4}}, \"scheduler\": {\"type\": "
         "\"WarmupDecayLR\"}}",
         "goes to 0.001, not to \"optimizer.params.lr\", which is 0.0001: write it"},
        {"", "{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_type\": \"exp\"}}}",
         "--warmup-type takes log|linear"},
        {"", "{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": [1, 2]}}}", "it takes a number"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(read_json(&c, bad[i][0], bad[i][1]), bad[i][2]);
}

static void offload(void **state) {
    (void)state;
    Config c;
    assert_ok(
        resolve_json(&c, "", "{\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"none\"}}}", 2));
    assert_ok(resolve_json(&c, "--recompute full",
                           "{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\", "
                           "\"nvme_path\": \"/tmp/x\", \"pin_memory\": true, \"buffer_count\": 5}, \"offload_param\": "
                           "{\"device\": \"cpu\", \"nvme_path\": \"/tmp/y\"}}, \"activation_checkpointing\": "
                           "{\"cpu_checkpointing\": true}}",
                           2));
    assert_true(c.offload_optimizer == OFFLOAD_NVME && c.offload_params == OFFLOAD_CPU && c.offload_activations);
    assert_string_equal(c.nvme_path, "/tmp/x");
    assert_ok(
        resolve_json(&c, "", "{\"zero_optimization\": {\"stage\": 2, \"offload_param\": {\"device\": \"cpu\"}}}", 2));
    assert_true(c.offload_params == OFFLOAD_NONE && strstr(notes_text, "has no effect below stage 3"));
    assert_ok(resolve_json(&c, "--recompute full",
                           "{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\", "
                           "\"nvme_path\": \"/tmp/x\", \"pin_memory\": true, \"buffer_count\": 5}}}",
                           2));
    assert_non_null(strstr(notes_text, "zero_optimization.offload_optimizer.buffer_count"));
    const char *const bad[][3] = {
        {"", "{\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}}}",
         "needs --offload-optimizer"},
        {"", "{\"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": {\"device\": \"disk\"}}}",
         "\"zero_optimization.offload_optimizer.device\": --offload-optimizer takes none|cpu|nvme"},
        {"", "{\"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": {\"device\": \"nvme\"}}}",
         "needs --nvme-path"},
        {"", "{\"zero_optimization\": {\"cpu_offload\": true}}", "an old name: write offload_optimizer"},
        {"", "{\"activation_checkpointing\": {\"cpu_checkpointing\": true}}", "needs --recompute full"},
        {"--offload-optimizer none",
         "{\"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": {\"device\": \"cpu\"}}}",
         "--offload-optimizer says none"},
        {"",
         "{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"a\"}, "
         "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"b\"}}}",
         "\"zero_optimization.offload_optimizer.nvme_path\" of "},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(resolve_json(&c, bad[i][0], bad[i][1], 2), bad[i][2]);
}

// A file that transformers' Trainer would use as it is: everything "auto".
static void all_auto(void **state) {
    (void)state;
    Config c, plain;
    assert_ok(resolve_json(
        &c, "--micro-batch 2 --grad-accum 3 --lr 1e-4 --dtype bf16 --steps 5000 --warmup 10 --zero 3",
        "{\"fp16\": {\"enabled\": \"auto\", \"loss_scale\": 0, \"loss_scale_window\": 1000, \"initial_scale_power\": "
        "16, "
        "\"hysteresis\": 2, \"min_loss_scale\": 1}, \"bf16\": {\"enabled\": \"auto\"}, \"optimizer\": {\"type\": "
        "\"AdamW\", "
        "\"params\": {\"lr\": \"auto\", \"betas\": \"auto\", \"eps\": \"auto\", \"weight_decay\": \"auto\"}}, "
        "\"scheduler\": "
        "{\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": \"auto\", \"warmup_max_lr\": \"auto\", "
        "\"warmup_num_steps\": "
        "\"auto\"}}, \"zero_optimization\": {\"stage\": 3, \"overlap_comm\": true, \"contiguous_gradients\": true, "
        "\"sub_group_size\": 1e9, \"reduce_bucket_size\": \"auto\", \"stage3_prefetch_bucket_size\": \"auto\", "
        "\"stage3_param_persistence_threshold\": \"auto\", \"stage3_max_live_parameters\": 1e9, "
        "\"stage3_gather_16bit_weights_on_model_save\": true}, \"gradient_accumulation_steps\": \"auto\", "
        "\"gradient_clipping\": \"auto\", \"steps_per_print\": 2000, \"train_batch_size\": \"auto\", "
        "\"train_micro_batch_size_per_gpu\": \"auto\", \"wall_clock_breakdown\": false}",
        2));
    assert_ok(resolve_line(&plain,
                           "--micro-batch 2 --grad-accum 3 --lr 1e-4 --dtype bf16 --steps 5000 --warmup 10 --zero 3 "
                           "--optimizer adamw --schedule WarmupLR --overlap on --log-every 2000",
                           2, 0));
    cJSON *a = config_to_json(&c), *b = config_to_json(&plain);
    assert_true(cJSON_Compare(a, b, true));
    cJSON_Delete(a);
    cJSON_Delete(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comments_and_commas),
        cmocka_unit_test(rows_are_sound),
        cmocka_unit_test(every_row_does_what_it_says),
        cmocka_unit_test(unknown_keys),
        cmocka_unit_test(simple_keys),
        cmocka_unit_test(batch),
        cmocka_unit_test(dtypes),
        cmocka_unit_test(loss_scale),
        cmocka_unit_test(optimizers),
        cmocka_unit_test(schedulers),
        cmocka_unit_test(offload),
        cmocka_unit_test(all_auto),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
