// Options: parsing and its messages, the batch equation, JSON, help, comparison with a saved run.
#include <cjson/cJSON.h>

#include "llm/config.h"
#include "llm/flags.h"
#include "llm/nearest.h"
#include "test/check.h"
#include "test/config_line.h"

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
    assert_ok(
        parse_line(&c,
                   "--layers 3 --lr=1e-3 --steps 20K --device-memory 1.5Gi --tie off --overlap=off --optimizer sgd "
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
    assert_ok(parse_line(&c, "--params 6.7G --flops 200T --bandwidth 1e10"));
    assert_true(c.plan_params == 6.7e9 && c.plan_flops == 200e12 && c.plan_bandwidth == 1e10);
    assert_fails(parse_line(&c, "--lr 1K"), "--lr takes a number");  // no size
    assert_ok(parse_line(&c, "--steps 5 --steps 7"));
    assert_int_equal(c.steps, 7);
    assert_ok(parse_line(&c, "--prompt=--"));
    assert_string_equal(c.prompt, "--");
}

static void sizes(void **state) {
    (void)state;
    const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"--device-memory 1", 1},        {"--device-memory 80G", 80000000000}, {"--device-memory 2Ki", 2048},
        {"--device-memory 3M", 3000000}, {"--device-memory 7Mi", 7340032},     {"--device-memory 1T", 1000000000000},
        {"--device-memory 0.5Ki", 512},  {"--device-memory 1Ti", 1ull << 40},  {"--device-memory 1.25K", 1250}};
    const char *bad[] = {"1.5", "G", "1KB", "1 K", "-", ".5G", "0x10", "1e9", "1.2.3K", "nan", "1Kii"};
    Config c;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_ok(parse_line(&c, good[i].text));
        assert_int_equal(c.device_memory, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        config_defaults(&c);
        assert_fails(flag_parse(flag_find("device-memory"), bad[i], &c), "takes a whole number");
    }
    assert_fails(parse_line(&c, "--device-memory 18446744073709551616"), "at most 999999999999999");  // 2^64
    assert_fails(parse_line(&c, "--device-memory 99999999999999999999999999999999999999999"),
                 "at most 999999999999999");
    assert_fails(parse_line(&c, "--device-memory 1000T"), "at most 999999999999999");
    assert_fails(parse_line(&c, "--layers 4294967297"), "must be at least 1 and at most 9998");  // 2^32 + 1
    assert_fails(parse_line(&c, "--device-memory 1.00000000000000000000000000000000000000K"), "out of range");
}

static void messages(void **state) {
    (void)state;
    Config c;
    assert_int_equal(parse_line(&c, "--leyers 3"), BAD_USAGE);
    status_clear();
    assert_fails(parse_line(&c, "--leyers 3"), "unknown option --leyers (did you mean \"--layers\"?)");
    assert_fails(parse_line(&c, "--micro 3"), "did you mean \"--micro-batch\"?");
    assert_fails(parse_line(&c, "--lr-min 3"), "unknown option --lr-min");
    assert_fails(parse_line(&c, "--zreo=1"), "did you mean \"--zero\"?");
    assert_fails(parse_line(&c, "--completely-else 3"), "unknown option --completely-else; --help");
    assert_fails(parse_line(&c, "--arch gpt2"), "unknown option --arch");  // derived, not an option
    assert_fails(parse_line(&c, "--offload-optimizer gpu"), "--offload-optimizer takes none|cpu|nvme, not \"gpu\"");
    assert_fails(parse_line(&c, "--dtype bf61"), "--dtype takes fp32|bf16|fp16, not \"bf61\" (did you mean \"bf16\"?)");
    assert_fails(parse_line(&c, "--dtype bf"), "--dtype takes fp32|bf16|fp16, not \"bf\"");
    assert_fails(parse_line(&c, "--schedule cosin"), "did you mean \"cosine\"?");
    assert_fails(parse_line(&c, "--tie yes"), "--tie takes on|off, not \"yes\"");
    assert_fails(parse_line(&c, "--plan=on"), "--plan takes no value, found \"on\"");
    assert_fails(parse_line(&c, "--lr"), "--lr needs a value (RATE)");
    assert_fails(parse_line(&c, "--out --steps 5"), "--out needs a value (DIR), found the option --steps");
    assert_fails(parse_line(&c, "--out="), "--out needs a value, found an empty one");
    assert_fails(parse_line(&c, "--train a.h5 b.h5"), "unexpected argument \"b.h5\"");
    assert_fails(parse_line(&c, "-h"), "unexpected argument \"-h\"");
    assert_fails(parse_line(&c, "--zero 4"), "--zero 4 is out of range: it must be at least 0 and at most 3");
    assert_fails(parse_line(&c, "--steps 0"), "--steps 0 is out of range: it must be at least 1");
    assert_fails(parse_line(&c, "--steps -5"), "out of range");
    assert_fails(parse_line(&c, "--steps ten"), "--steps takes a whole number, not \"ten\"");
    assert_fails(parse_line(&c, "--beta2 1"), "at least 0 and below 1");
    assert_fails(parse_line(&c, "--eps 0"), "above 0 and at most 1");
    assert_fails(parse_line(&c, "--lr nan"), "--lr takes a number, not \"nan\"");
    assert_fails(parse_line(&c, "--lr 1e999"), "out of range");
    assert_fails(parse_line(&c, "--lr -1"), "out of range");
    assert_fails(parse_line(&c, "--lr 1e-3x"), "takes a number");
    assert_fails(parse_line(&c, "--top-p 0"), "above 0 and at most 1");
}

static void ignored_options_are_refused(void **state) {
    (void)state;
    Config c;
    assert_fails(resolve_line(&c, "--momentum 0.5", 1, 0),
                 "--momentum has no effect here: it goes with --optimizer sgd");
    assert_fails(resolve_line(&c, "--optimizer sgd --beta1 0.5", 1, 0), "--optimizer adamw or adam");
    assert_fails(resolve_line(&c, "--wsd-decay 0.5", 1, 0), "--schedule wsd");
    assert_fails(resolve_line(&c, "--schedule constant --min-lr 0", 1, 0), "--min-lr");
    assert_fails(resolve_line(&c, "--ranks 8", 1, 0), "--plan");
    assert_fails(resolve_line(&c, "--plan --params 7e9 --model llama2-7b", 1, 0), "--model");
    assert_fails(resolve_line(&c, "--plan --params 7e9 --flops 1T", 1, 0), "--flops has no effect here");
    assert_fails(resolve_line(&c, "--keep 3", 1, 0), "--out");
    assert_fails(resolve_line(&c, "--nvme-path /tmp", 1, 0), "--offload-optimizer or --offload-params nvme");
    assert_fails(resolve_line(&c, "--offload-optimizer nvme", 1, 0), "needs --nvme-path");
    assert_fails(resolve_line(&c, "--offload-optimizer cpu", 2, 0), "--zero 0 on 2 ranks would keep and update 2 copies");
    assert_fails(resolve_line(&c, "--offload-params cpu --zero 3", 2, 0), "needs --offload-optimizer cpu or nvme");
    assert_fails(resolve_line(&c, "--offload-optimizer cpu --offload-params cpu --zero 2", 2, 0), "needs --zero 3");
    assert_fails(resolve_line(&c, "--offload-activations --recompute selective", 1, 0), "needs --recompute full");
    assert_ok(resolve_line(&c, "--offload-optimizer cpu", 1, 0));
    assert_ok(resolve_line(&c, "--offload-optimizer cpu --offload-params nvme --nvme-path x --zero 3", 2, 0));
    assert_ok(resolve_line(&c, "--plan --offload-optimizer nvme --ranks 8", 8, 0));
    assert_fails(resolve_line(&c, "--warmup-min-lr 0", 1, 0), "--schedule WarmupLR");
    assert_fails(resolve_line(&c, "--schedule WarmupDecayLR --min-lr 0", 1, 0), "decays to it");
    assert_fails(resolve_line(&c, "--loss-scale-window 9", 1, 0), "--dtype fp16 without --loss-scale");
    assert_fails(resolve_line(&c, "--dtype fp16 --loss-scale 8 --loss-scale-min 2", 1, 0), "--dtype fp16 without");
    assert_fails(resolve_line(&c, "--dtype fp16 --loss-scale-min 2 --loss-scale-init 1", 1, 0), "is below --loss-scale-min");
    assert_fails(resolve_line(&c, "--tf32 on --dtype bf16 --device cuda", 1, 0), "--dtype fp32 on a GPU");
    assert_fails(resolve_line(&c, "--tf32 on --device cpu", 1, 0), "--dtype fp32 on a GPU");
    assert_ok(resolve_line(&c, "--optimizer sgd --momentum 0.5 --schedule wsd --wsd-decay 0.2 --out x --keep 1", 1, 0));
    assert_ok(resolve_line(&c, "--plan --params 7e9 --ranks 8", 8, 0));
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
        assert_ok(resolve_line(&c, good[i].line, good[i].ranks, 0));
        assert_ok(config_resolve(&c, good[i].ranks, 0));  // twice gives the same
        assert_int_equal(c.micro_batch, good[i].micro);
        assert_int_equal(c.grad_accum, good[i].accum);
        assert_int_equal(c.global_batch, good[i].global);
    }
    Config c;
    assert_fails(resolve_line(&c, "--micro-batch 4 --grad-accum 3 --global-batch 64", 2, 0),
                 "global-batch 64 (--global-batch) = micro-batch 4 (--micro-batch) * grad-accum 3 (--grad-accum) * "
                 "ranks 2 (this "
                 "run), but 24 is not 64");
    assert_fails(resolve_line(&c, "--micro-batch 5 --global-batch 64", 2, 0),
                 "grad-accum ? (not given) * ranks 2 (this run), but 10 does not divide 64");
    assert_fails(resolve_line(&c, "--global-batch 7", 2, 0), "but 2 does not divide 7");
    assert_fails(resolve_line(&c, "--global-batch 2 --micro-batch 4", 1, 0), "but 4 does not divide 2");
    assert_fails(resolve_line(&c, "--plan --ranks 3 --global-batch 7", 3, 0), "ranks 3 (--ranks)");
    assert_fails(resolve_line(&c, "--micro-batch 1M --grad-accum 1M", 2, 0), "is beyond 2147483647 sequences");
    assert_fails(resolve_line(&c, "--micro-batch 1M --seq-len 4096", 1, 0), "is beyond 2147483647 tokens");
    assert_fails(resolve_line(&c, "--shard-group 3", 4, 0), "--shard-group 3 does not divide the 4 ranks");
}

static void schedule_defaults(void **state) {
    (void)state;
    Config c;
    assert_ok(resolve_line(&c, "--lr 1e-3 --steps 200", 1, 0));
    assert_true(c.warmup == 10 && c.min_lr == 1e-4);
    assert_ok(resolve_line(&c, "--steps 1M", 1, 0));
    assert_int_equal(c.warmup, 2000);
    assert_ok(resolve_line(&c, "--warmup 0 --min-lr 0", 1, 0));
    assert_true(c.warmup == 0 && c.min_lr == 0);
    assert_fails(resolve_line(&c, "--warmup 11 --steps 10", 1, 0), "--warmup 11 is longer than the run of 10 steps");
    assert_fails(resolve_line(&c, "--stop-at 11 --steps 10", 1, 0), "--stop-at 11 is beyond");
    assert_fails(resolve_line(&c, "--lr 1e-3 --min-lr 2e-3", 1, 0), "--min-lr 0.002 is above --lr 0.001");
}

// ---- JSON, help, text ----

static void json_round_trip_and_comparison(void **state) {
    (void)state;
    Config a, b;
    char differences[1024];
    assert_ok(resolve_line(&a, "--model llama-1b --lr 3e-4 --seed 999999999999999", 2, 0));
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
    assert_ok(resolve_line(&b,
                           "--model llama-1b --lr 3e-4 --seed 999999999999999 --micro-batch 1 --grad-accum 2 --zero 3 "
                           "--recompute full --train x --out y --stop-at 5",
                           4, 0));
    assert_int_equal(config_compare(&b, saved, differences, sizeof differences), 0);

    assert_ok(resolve_line(&b,
                           "--model llama-1b --lr 1e-3 --min-lr 3e-5 --seed 999999999999998 --dtype bf16 --tie off "
                           "--global-batch 16",
                           2, 0));
    assert_int_equal(config_compare(&b, saved, differences, sizeof differences), 5);
    assert_string_equal(differences,
                        "tie: saved on, now off\n"
                        "seed: saved 999999999999999, now 999999999999998\n"
                        "global-batch: saved 8, now 16\n"
                        "lr: saved 0.0003, now 0.001\n"
                        "dtype: saved fp32, now bf16\n");
    cJSON *older = cJSON_Duplicate(saved, true);  // of a program that did not know the switch, or the seed
    cJSON_DeleteItemFromObject(cJSON_GetObjectItem(older, "precision"), "tf32");
    assert_int_equal(config_compare(&a, older, differences, sizeof differences), 0);
    cJSON_DeleteItemFromObject(cJSON_GetObjectItem(older, "data"), "seed");
    assert_int_equal(config_compare(&a, older, differences, sizeof differences), 1);
    cJSON_Delete(older);
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
    } cases[] = {{0, "0 B"},
                 {1023, "1023 B"},
                 {1024, "1 KiB"},
                 {1536, "1.50 KiB"},
                 {8589934592.0, "8 GiB"},
                 {80e9, "74.5 GiB"},
                 {123456789, "118 MiB"},
                 {1023.9 * 1048576, "1024 MiB"},
                 {0x1p63, "8192 PiB"}};
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
        cmocka_unit_test(batch_equation),
        cmocka_unit_test(schedule_defaults),
        cmocka_unit_test(json_round_trip_and_comparison),
        cmocka_unit_test(help_shows_every_option),
        cmocka_unit_test(byte_counts_as_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
