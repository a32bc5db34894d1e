// Predicted memory: the textbook's known answers, exact bytes of a layout worked out by hand, and what the planner
// advises.
#include "test/check.h"
#include "test/config_line.h"
#include "zero/plan_advice.h"
#include "zero/plan_cluster.h"

static PlanInput params_only(double psi, int n_ranks, Dtype dtype, Dtype grad_dtype, Optimizer optimizer) {
    return (PlanInput){.n_params = (int64_t)psi,
                       .n_ranks = n_ranks,
                       .group = n_ranks,
                       .dtype = dtype,
                       .grad_dtype = grad_dtype,
                       .optimizer = optimizer};
}

static void textbook(void **state) {
    (void)state;
    const struct {
        PlanInput input;
        double gb[PLAN_STAGES];
    } cases[] = {
        // Rajbhandari et al. 2020: 16Ψ, 4Ψ + 12Ψ/N, 2Ψ + 14Ψ/N, 16Ψ/N
        {params_only(7e9, 8, DTYPE_BF16, DTYPE_BF16, OPTIMIZER_ADAMW), {112, 38.5, 26.25, 14}},
        {params_only(7.5e9, 64, DTYPE_FP16, DTYPE_FP16, OPTIMIZER_ADAM),
         {120, 31.40625, 16.640625, 1.875}},  // its figure 1
        {params_only(7e9, 8, DTYPE_BF16, DTYPE_FP32, OPTIMIZER_ADAMW),
         {126, 52.5, 28, 15.75}},  // 18Ψ, 6Ψ + 12Ψ/N, 2Ψ + 16Ψ/N
        {params_only(7e9, 8, DTYPE_FP32, DTYPE_FP32, OPTIMIZER_ADAMW), {112, 63, 38.5, 14}},  // 8Ψ + 8Ψ/N, 4Ψ + 12Ψ/N
        {params_only(7e9, 8, DTYPE_BF16, DTYPE_BF16, OPTIMIZER_SGD), {84, 35, 22.75, 10.5}},  // 12Ψ: no second moment
        {params_only(7e9, 1, DTYPE_BF16, DTYPE_BF16, OPTIMIZER_ADAMW), {112, 112, 112, 112}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Plan plan;
        plan_compute(&cases[i].input, &plan);
        for (int stage = 0; stage < PLAN_STAGES; stage++) {
            assert_true(plan.textbook[stage] == cases[i].gb[stage] * 1e9);
            assert_true((double)plan.total[stage] == cases[i].gb[stage] * 1e9);  // divisible: exact equals textbook
        }
    }
}

// Three ranks, three blocks: unit lengths are multiples of 64 · 3.
static const Layout three_ranks = {.n_units = 5,
                                   .n_ranks = 3,
                                   .group = 3,
                                   .n_params = 5000,
                                   .full_len = 192 * 27,
                                   .shard_len = 64 * 27,
                                   .max_block_len = 192 * 5,
                                   .ends_len = 192 * 10};
static const PlanChoice as_given = {NULL, 0, {[MEM_ACTIVATIONS] = 1000, [MEM_WORKSPACE] = 200, [MEM_DATA] = 30}};

static void exact_bytes(void **state) {
    (void)state;
    const size_t full = 5184, shard = 1728, slots = 2 * 960 + 1920;
    const struct {
        Dtype dtype, grad_dtype;
        Optimizer optimizer;
        size_t expected[PLAN_STAGES][4];  // parameters, gradients, optimizer, slots
    } cases[] = {
        {DTYPE_BF16,
         DTYPE_BF16,
         OPTIMIZER_ADAMW,
         {{full * 2, full * 2, full * 12, slots * 4},
          {full * 2, full * 2, shard * 12, slots * 4},
          {full * 2, shard * 2, shard * 12, slots * 4},
          {shard * 2, shard * 2, shard * 12, slots * (2 + 4)}}},
        {DTYPE_FP16,
         DTYPE_FP32,
         OPTIMIZER_SGD,
         {{full * 2, full * 4, full * 8, 0},
          {full * 2, full * 4, shard * 8, 0},
          {full * 2, shard * 4, shard * 8, slots * 4},
          {shard * 2, shard * 4, shard * 8, slots * (2 + 4)}}},
        {DTYPE_FP32,
         DTYPE_FP32,
         OPTIMIZER_ADAM,
         {{full * 4, full * 4, full * 8, 0},
          {full * 4, full * 4, shard * 8, 0},
          {full * 4, shard * 4, shard * 8, slots * 4},
          {shard * 4, shard * 4, shard * 8, slots * (4 + 4)}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        PlanInput in = {.layout = &three_ranks,
                        .n_params = 5000,
                        .n_ranks = 3,
                        .group = 3,
                        .dtype = cases[i].dtype,
                        .grad_dtype = cases[i].grad_dtype,
                        .optimizer = cases[i].optimizer,
                        .staging_bytes = 7,
                        .choices = &as_given,
                        .n_choices = 1};
        Plan plan;
        plan_compute(&in, &plan);
        for (int stage = 0; stage < PLAN_STAGES; stage++) {
            const size_t *bytes = plan.bytes[stage], *expected = cases[i].expected[stage];
            assert_int_equal(bytes[MEM_PARAMETERS], expected[0]);
            assert_int_equal(bytes[MEM_GRADIENTS], expected[1]);
            assert_int_equal(bytes[MEM_OPTIMIZER], expected[2]);
            assert_int_equal(bytes[MEM_SLOTS], expected[3]);
            assert_int_equal(bytes[MEM_ACTIVATIONS], 1000);
            assert_int_equal(bytes[MEM_WORKSPACE], 200);
            assert_int_equal(bytes[MEM_STAGING], 7);
            assert_int_equal(bytes[MEM_DATA], 30);
            assert_int_equal(plan.total[stage], expected[0] + expected[1] + expected[2] + expected[3] + 1237);
        }
    }
}

static void one_block_has_one_slot(void **state) {
    (void)state;
    Layout layout = {.n_units = 3,
                     .n_ranks = 1,
                     .group = 1,
                     .n_params = 600,
                     .full_len = 640,
                     .shard_len = 640,
                     .max_block_len = 320,
                     .ends_len = 192};
    PlanInput in = {.layout = &layout,
                    .n_params = 600,
                    .n_ranks = 1,
                    .group = 1,
                    .dtype = DTYPE_BF16,
                    .grad_dtype = DTYPE_FP32,
                    .choices = &as_given,
                    .n_choices = 1};
    Plan plan;
    plan_compute(&in, &plan);
    assert_int_equal(plan.bytes[3][MEM_SLOTS], (320 + 192) * (2 + 4));
    assert_int_equal(plan.bytes[1][MEM_SLOTS], 0);
}

static void input_from_config(void **state) {
    (void)state;
    Config config;
    config_defaults(&config);
    config.dtype = DTYPE_BF16;
    config.zero_stage = 2;
    config.plan_params = 7e9;
    config.device_memory = 80000000000;
    PlanInput in = plan_input(&config, NULL, 8);
    assert_true(in.n_params == 7000000000 && in.group == 8 && in.grad_dtype == DTYPE_FP32 && in.stage == 2);
    config.grad_dtype = STATE_PARAM;
    config.shard_group = 4;
    in = plan_input(&config, &three_ranks, 8);
    assert_true(in.n_params == 5000 && in.group == 4 && in.n_ranks == 8 && in.grad_dtype == DTYPE_BF16);
    Plan plan;
    plan_compute(&in, &plan);
    assert_true(plan.textbook[3] == 16.0 * 5000 / 4);
}

static char *print_plan(const PlanInput *in) {
    Plan plan;
    char *text;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    plan_compute(in, &plan);
    plan_print(in, &plan, file);
    fclose(file);
    return text;
}

static void assert_prints(const PlanInput *in, const char *const *parts) {
    char *text = print_plan(in);
    for (; *parts; parts++) {
        if (!strstr(text, *parts)) {
            print_error("the plan lacks \"%s\":\n%s\n", *parts, text);
            fail_test();
        }
    }
    free(text);
}

static void printed_table(void **state) {
    (void)state;
    PlanInput in = params_only(7e9, 8, DTYPE_BF16, DTYPE_BF16, OPTIMIZER_ADAMW);
    in.device_memory = 30000000000;
    assert_prints(&in, (const char *const[]){"N = 8", "Ψ = 7,000,000,000 parameters in bf16, gradients in bf16, AdamW",
                                             "112.00 GB", "38.50 GB", "26.25 GB", "14.00 GB", "16Ψ ", "4Ψ + 12Ψ/N",
                                             "2Ψ + 14Ψ/N", "16Ψ/N", "82.00 GB short", "plan with --model",
                                             "cheapest change that fits: --zero 2 (26.25 GB)", NULL});
    in.group = 4;
    assert_prints(&in, (const char *const[]){"sharded over S = 4", "4Ψ + 12Ψ/S", NULL});
    in = params_only(7e9, 8, DTYPE_FP32, DTYPE_FP32, OPTIMIZER_SGD);
    assert_prints(&in, (const char *const[]){"12Ψ", "8Ψ + 4Ψ/N", "4Ψ + 8Ψ/N", "12Ψ/N", "SGD", NULL});
    in = (PlanInput){
        .layout = &three_ranks, .n_params = 5000, .n_ranks = 3, .group = 3, .choices = &as_given, .n_choices = 1};
    assert_prints(&in, (const char *const[]){"slots", "activations", "workspace", "data", "total", "1000 B", NULL});
}

static void advice_is_the_cheapest_change(void **state) {
    (void)state;
    const PlanChoice choices[] = {
        {NULL, 0, {[MEM_ACTIVATIONS] = 100000}},
        {"--recompute selective", 0.05, {[MEM_ACTIVATIONS] = 60000}},
        {"--recompute full", 0.33, {[MEM_ACTIVATIONS] = 10000}},
    };
    PlanInput in = {.layout = &three_ranks,
                    .n_params = 5000,
                    .n_ranks = 3,
                    .group = 3,
                    .dtype = DTYPE_BF16,
                    .grad_dtype = DTYPE_BF16,
                    .choices = choices,
                    .n_choices = 3};
    Plan plan;
    plan_compute(&in, &plan);
    // Totals under choices[0]: 198304, 156832, 149920, 150688 (stage 3 gathers into slots).
    assert_ok(plan_check(&in, &plan));  // no limit
    in.device_memory = plan.total[0];
    assert_ok(plan_check(&in, &plan));
    in.device_memory = plan.total[0] - 1;
    assert_fails(plan_check(&in, &plan), "the cheapest change that fits: --zero 1 (156832 B)");
    in.device_memory = plan.total[1] - 1;
    assert_fails(plan_check(&in, &plan), "the cheapest change that fits: --zero 2");
    in.device_memory = plan.total[2] - 1;
    assert_fails(plan_check(&in, &plan), "the cheapest change that fits: --zero 1 --recompute selective");
    in.device_memory = plan.total[1] - 80000;
    assert_fails(plan_check(&in, &plan), "the cheapest change that fits: --zero 1 --recompute full");
    in.device_memory = 1000;
    assert_fails(plan_check(&in, &plan), "the least is 59920 B with --zero 2 --recompute full: take more ranks");
    in.stage = 2;
    in.n_choices = 1;
    assert_fails(plan_check(&in, &plan), "nothing here needs less");
}

static void predicted_beside_measured(void **state) {
    (void)state;
    size_t predicted[MEM_CATEGORIES] = {[MEM_PARAMETERS] = 1234567, [MEM_DATA] = 100}, measured[MEM_CATEGORIES];
    memcpy(measured, predicted, sizeof measured);
    char *text;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    assert_true(plan_print_measured(predicted, measured, file));
    fflush(file);
    assert_non_null(strstr(text, "1,234,667         1,234,667\n"));
    measured[MEM_DATA] = 1100;
    measured[MEM_PARAMETERS] -= 1000;  // equal totals do not hide unequal rows
    assert_false(plan_print_measured(predicted, measured, file));
    fclose(file);
    assert_non_null(strstr(text, "1,233,567  -1,000\n"));
    assert_non_null(strstr(text, "1,100  +1,000\n"));
    free(text);
}

// ---- clusters ----

// The sentence for the stages of an input with nothing but its states and choices[0].
static int recommend(const PlanInput *in, char sentence[512]) {
    Plan plan;
    plan_compute(in, &plan);
    PlanCase cases[PLAN_STAGES];
    for (int s = 0; s < PLAN_STAGES; s++)
        cases[s] = (PlanCase){s, 1, 1, true, plan.total[s], 0};
    return plan_recommend(cases, PLAN_STAGES, in->device_memory, sentence, 512);
}

static void assert_says(const char *sentence, const char *part) {
    if (!strstr(sentence, part))
        print_error("\"%s\" is not in \"%s\"\n", part, sentence);
    assert_non_null(strstr(sentence, part));
}

static void thirteen_billion_on_8_times_80_gb(void **state) {
    (void)state;
    char sentence[512];
    PlanInput in = params_only(13e9, 8, DTYPE_BF16, DTYPE_BF16, OPTIMIZER_ADAMW);
    in.device_memory = 80000000000;
    assert_int_equal(recommend(&in, sentence), 2);  // states alone: 48.75 of 64 GB
    assert_says(sentence, "--zero 2, the lowest stage that leaves 20% of 80.00 GB free: it needs 48.75 GB, and --zero 1 71.50 GB.");
    PlanChoice choice = {.bytes = {[MEM_ACTIVATIONS] = 15000000000, [MEM_SLOTS] = 250000000}};
    in.choices = &choice;
    in.n_choices = 1;
    assert_int_equal(recommend(&in, sentence), 2);  // 15.25 GB of activations and slots just leave the margin
    choice.bytes[MEM_SLOTS]++;
    assert_int_equal(recommend(&in, sentence), 3);
}

static void sixty_five_billion_on_32_times_40_gb(void **state) {
    (void)state;
    char sentence[512];
    PlanInput in = params_only(65e9, 32, DTYPE_BF16, DTYPE_BF16, OPTIMIZER_ADAMW);
    in.device_memory = 40000000000;
    assert_int_equal(recommend(&in, sentence), 3);  // fits, but without the margin
    assert_says(sentence, "more ranks, because no stage leaves 20% of 40.00 GB free; --zero 3 fits without that margin, with 32.50 GB");
    assert_int_equal(plan_smallest_ranks(&in, 3), 33);  // 16 · 65 / 32 = 32.5
    for (int stage = 0; stage < 3; stage++)
        assert_int_equal(plan_smallest_ranks(&in, stage), 0);  // 2 · 65 GB are whole in each
    in.device_memory = 20000000000;
    assert_int_equal(recommend(&in, sentence), -1);
    assert_says(sentence, "Nothing fits in 20.00 GB: the least is --zero 3 with 32.50 GB.");
}

static void fewest_ranks(void **state) {
    (void)state;
    PlanInput in = params_only(7e9, 1, DTYPE_BF16, DTYPE_BF16, OPTIMIZER_ADAMW);
    in.device_memory = 80000000000;
    const int adam[] = {0, 3, 2, 2};  // 84/(64-28), 98/(64-14), 112/64
    for (int stage = 0; stage < PLAN_STAGES; stage++)
        assert_int_equal(plan_smallest_ranks(&in, stage), adam[stage]);
    in.optimizer = OPTIMIZER_SGD;  // 4 + 4 instead of 12 bytes: 56/36, 70/50, 84/64
    const int sgd[] = {0, 2, 2, 2};
    for (int stage = 0; stage < PLAN_STAGES; stage++)
        assert_int_equal(plan_smallest_ranks(&in, stage), sgd[stage]);
    const PlanChoice choice = {.bytes = {[MEM_ACTIVATIONS] = 30000000000}};  // what every rank has, however many there are
    in.choices = &choice;
    in.n_choices = 1;
    const int with_activations[] = {0, 10, 4, 3};  // 56/6, 70/20, 84/34
    for (int stage = 0; stage < PLAN_STAGES; stage++)
        assert_int_equal(plan_smallest_ranks(&in, stage), with_activations[stage]);
    in = params_only(1e9, 1, DTYPE_BF16, DTYPE_BF16, OPTIMIZER_ADAMW);
    in.device_memory = 20000000000;
    for (int stage = 0; stage < PLAN_STAGES; stage++)
        assert_int_equal(plan_smallest_ranks(&in, stage), 1);  // 16 of 16 GB: to the byte
}

static void a_slow_network_is_worth_accumulating(void **state) {
    (void)state;
    char sentence[512];
    PlanCase cases[] = {{0, 4, 1, true, 95, 1.0}, {1, 4, 1, true, 90, 1.0},  {2, 4, 1, true, 85, 1.0},
                        {3, 4, 1, true, 70, 2.0}, {1, 2, 2, false, 75, 1.5}, {2, 1, 4, false, 60, 3.0}};
    assert_int_equal(plan_recommend(cases, 6, 100, sentence, sizeof sentence), 4);
    assert_says(sentence, "--zero 1 --micro-batch 2 --grad-accum 2, because a step takes 1.50 s on this network, where --zero 3");
    cases[4].step_s = 1.9;  // not enough faster
    assert_int_equal(plan_recommend(cases, 6, 100, sentence, sizeof sentence), 3);
    cases[3].total = 81;  // as given, nothing leaves the margin
    assert_int_equal(plan_recommend(cases, 6, 100, sentence, sizeof sentence), 4);
    assert_says(sentence, "no stage leaves 20% of 100 B free with the micro-batch as given; this needs 75 B");
}

// What --plan prints for a command line.
static char *print_cluster(const char *line, ClusterSpeed speed) {
    Config c;
    Device *device;
    char *text;
    size_t bytes;
    assert_ok(parse_line(&c, line));
    assert_ok(config_resolve(&c, c.ranks, 0));
    assert_ok(device_open(&(DeviceOptions){.kind = DEVICE_CPU, .threads = 1}, &device));
    FILE *file = open_memstream(&text, &bytes);
    assert_ok(plan_cluster(&c, device, speed, file));
    fclose(file);
    device_close(device);
    return text;
}

static void cluster_of_a_model(void **state) {
    (void)state;
    char *text = print_cluster("--plan --model gpt2-124m --ranks 8 --device-memory 8G --micro-batch 4 --dtype bf16 --grad-dtype "
                               "param --reduce-dtype param --seq-len 256", (ClusterSpeed){1e12, 1.25e9});
    static const char *const parts[] = {"a rank computes at 1 TFLOP/s", "it sends 10 Gbit/s", "tokens/s", "largest --micro-batch",
                                        "Recommended: --zero 0, the lowest stage that leaves 20% of 8.00 GB free"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_says(text, parts[i]);
    assert_null(strstr(text, "cheapest change"));  // no stage was asked for
    free(text);
    text = print_cluster("--plan --model gpt2-124m --device-memory 2G --micro-batch 4 --dtype bf16 --grad-dtype param --seq-len 256",
                         (ClusterSpeed){0});
    assert_says(text, "Fewest ranks that leave 20% of 2.00 GB free (gpt2-124m, micro-batch 4 of 256 tokens)");
    assert_says(text, "too large");
    free(text);
}

// The largest micro-batch fits, and one more sequence does not: what --plan prints is what a run would be told.
static void largest_micro_batch_is_the_largest(void **state) {
    (void)state;
    char *text = print_cluster("--plan --model gpt2-tiny --ranks 2 --device-memory 200M --dtype bf16", (ClusterSpeed){0});
    const char *row = strstr(text, "largest --micro-batch");
    assert_non_null(row);
    int largest[PLAN_STAGES];
    assert_int_equal(sscanf(row, "largest --micro-batch %d %d %d %d", &largest[0], &largest[1], &largest[2], &largest[3]), 4);
    free(text);
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        for (int more = 0; more < 2; more++) {
            char line[160];
            snprintf(line, sizeof line, "--plan --model gpt2-tiny --ranks 2 --device-memory 200M --dtype bf16 --zero %d --micro-batch %d",
                     stage, largest[stage] + more);
            text = print_cluster(line, (ClusterSpeed){0});
            assert_int_equal(strstr(text, "and --device-memory is 200.00 MB") != NULL, more);
            free(text);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(textbook),
        cmocka_unit_test(exact_bytes),
        cmocka_unit_test(one_block_has_one_slot),
        cmocka_unit_test(input_from_config),
        cmocka_unit_test(printed_table),
        cmocka_unit_test(advice_is_the_cheapest_change),
        cmocka_unit_test(predicted_beside_measured),
        cmocka_unit_test(thirteen_billion_on_8_times_80_gb),
        cmocka_unit_test(sixty_five_billion_on_32_times_40_gb),
        cmocka_unit_test(fewest_ranks),
        cmocka_unit_test(a_slow_network_is_worth_accumulating),
        cmocka_unit_test(cluster_of_a_model),
        cmocka_unit_test(largest_micro_batch_is_the_largest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
