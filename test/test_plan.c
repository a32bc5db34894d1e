// Predicted memory: the textbook's known answers, exact bytes of a layout worked out by hand, and what the planner
// advises.
#include "test/check.h"
#include "zero/plan.h"

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
static UnitLayout three_units[] = {{.full_len = 192 * 10, .shard_len = 64 * 10},
                                   {.full_len = 192 * 5, .shard_len = 64 * 5},
                                   {.full_len = 192 * 5, .shard_len = 64 * 5},
                                   {.full_len = 192 * 5, .shard_len = 64 * 5},
                                   {.full_len = 192 * 2, .shard_len = 64 * 2}};
static const Layout three_ranks = {.n_units = 5,
                                   .units = three_units,
                                   .n_ranks = 3,
                                   .group = 3,
                                   .n_params = 5000,
                                   .full_len = 192 * 27,
                                   .shard_len = 64 * 27,
                                   .max_block_len = 192 * 5,
                                   .ends_len = 192 * 10};
static const PlanChoice as_given = {.bytes = {[MEM_ACTIVATIONS] = 1000, [MEM_WORKSPACE] = 200, [MEM_DATA] = 30}};

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
            const size_t *bytes = plan.bytes[stage].device, *expected = cases[i].expected[stage];
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
    assert_int_equal(plan.bytes[3].device[MEM_SLOTS], (320 + 192) * (2 + 4));
    assert_int_equal(plan.bytes[1].device[MEM_SLOTS], 0);
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
    assert_prints(&in, (const char *const[]){"slots", "activations", "workspace", "data", "total", "1000 B",
                                             "saves: streamed while the step waits (--checkpoint-async off)", NULL});
    in.async = CHOICE_AUTO;
    in.snapshot_bytes = 4321;
    in.device_is_host = true;
    assert_prints(&in, (const char *const[]){"host: snapshot of a save", "4321 B", "saves: asynchronous", NULL});
}

static void advice_is_the_cheapest_change(void **state) {
    (void)state;
    const PlanChoice choices[] = {
        {.bytes = {[MEM_ACTIVATIONS] = 100000}},
        {"--recompute selective", 0.05, {[MEM_ACTIVATIONS] = 60000}, 0},
        {"--recompute full", 0.33, {[MEM_ACTIVATIONS] = 10000}, 0},
    };
    PlanInput in = {.layout = &three_ranks,
                    .n_params = 5000,
                    .n_ranks = 3,
                    .group = 3,
                    .dtype = DTYPE_BF16,
                    .grad_dtype = DTYPE_BF16,
                    .offload = {.nvme_buffer = 1 << 16},
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
    in.device_memory = 56000;  // without offload the least is 59920 B, with --zero 2 --recompute full
    assert_fails(plan_check(&in, &plan), "the cheapest change that fits: --zero 1 --recompute full --offload-optimizer cpu");
    in.device_memory = 1000;
    assert_fails(plan_check(&in, &plan), " with --zero 3 --recompute full --offload-optimizer cpu --offload-params cpu: take more");
    in.offload = (OffloadOptions){.optimizer = OFFLOAD_CPU, .state_kinds = 3};  // what is asked for stays
    in.stage = 2;
    in.n_choices = 1;
    assert_fails(plan_check(&in, &plan), "nothing here needs less");
}

// Gradients' shards, master weights and moments leave the device; stage 0 of many ranks keeps them.
static void offloaded_bytes(void **state) {
    (void)state;
    const size_t full = 192 * 27, shard = 64 * 27, longest = 64 * 10;
    PlanInput in = {.layout = &three_ranks, .n_params = 5000, .n_ranks = 3, .group = 3, .dtype = DTYPE_BF16,
                    .grad_dtype = DTYPE_FP32, .choices = &as_given, .n_choices = 1,
                    .offload = {.optimizer = OFFLOAD_CPU, .params = OFFLOAD_CPU, .state_kinds = 3, .nvme_buffer = 1 << 16}};
    Plan plan;
    plan_compute(&in, &plan);
    assert_int_equal(plan.bytes[0].device[MEM_OPTIMIZER], full * 12);
    assert_int_equal(plan.bytes[0].host[MEM_OPTIMIZER], 0);
    for (int stage = 1; stage < PLAN_STAGES; stage++) {
        const PlanBytes *b = &plan.bytes[stage];
        assert_int_equal(b->device[MEM_OPTIMIZER], 0);
        assert_int_equal(b->device[MEM_GRADIENTS], stage == 1 ? full * 4 : 0);
        assert_int_equal(b->device[MEM_PARAMETERS], stage == 3 ? 0 : full * 2);
        assert_int_equal(b->device[MEM_STAGING], (stage >= 2 ? 2 * longest * 4 : 0) + (stage == 3 ? 2 * longest * 2 : 0));
        assert_int_equal(b->host[MEM_OPTIMIZER], shard * 12);
        assert_int_equal(b->host[MEM_GRADIENTS], shard * 4);
        assert_int_equal(b->host[MEM_PARAMETERS], stage == 3 ? shard * 2 : 0);
        assert_int_equal(b->nvme, 0);
    }
    in.offload.optimizer = in.offload.params = OFFLOAD_NVME;
    plan_compute(&in, &plan);
    assert_int_equal(plan.bytes[3].host[MEM_OPTIMIZER], 0);
    assert_int_equal(plan.bytes[3].nvme, 5 * 3 * 2048 * 4 + 5 * 4096);  // each unit is one padded record, and one block
    in.layout = NULL;  // model states alone
    in.n_choices = 0;
    in.n_params = 6000;
    plan_compute(&in, &plan);
    assert_int_equal(plan.total[3], 0);
    assert_int_equal(plan.bytes[3].nvme, 2000 * 14);
}

static void how_to_save(void **state) {
    (void)state;
    PlanInput in = {.layout = &three_ranks,
                    .n_params = 5000,
                    .n_ranks = 3,
                    .group = 3,
                    .choices = &as_given,
                    .n_choices = 1,
                    .async = CHOICE_AUTO,
                    .snapshot_bytes = 1000,
                    .device_is_host = true};
    Plan plan;
    char text[256];
    plan_compute(&in, &plan);
    assert_true(plan.async[0] && plan.snapshot[0] == 1000);  // no memory is known
    size_t total = plan.total[1];
    in.stage = 1;
    in.device_memory = (total + 1000) * 5 / 4 + 1;  // a fifth stays free
    plan_compute(&in, &plan);
    assert_true(plan.async[1] && !plan.async[0] && plan.snapshot[0] == 0);
    plan_describe_saves(&in, &plan, 1, text, sizeof text);
    assert_string_equal(text, "asynchronous: a step waits for a copy of 1000 B to host memory (--checkpoint-async auto)");
    plan_describe_saves(&in, &plan, 0, text, sizeof text);
    assert_non_null(strstr(text, "streamed while the step waits: a copy of 1000 B would leave less than 20%"));
    in.device_memory -= 5;
    plan_compute(&in, &plan);
    assert_false(plan.async[1]);
    in.device_is_host = false;  // what the device has does not matter
    in.host_memory = 1250;
    plan_compute(&in, &plan);
    assert_true(plan.async[0] && plan.async[1]);
    in.host_memory = 1249;
    plan_compute(&in, &plan);
    assert_false(plan.async[1]);
    in.async = CHOICE_ON;  // asked for: only what cannot be is refused
    plan_compute(&in, &plan);
    assert_true(plan.async[1]);
    assert_ok(plan_check(&in, &plan));
    in.host_memory = 999;
    assert_fails(plan_check(&in, &plan), "needs 1000 B of host memory, of which this rank has 999 B");
    in.async = CHOICE_OFF;
    plan_compute(&in, &plan);
    assert_true(!plan.async[1] && plan.snapshot[1] == 0);
    assert_ok(plan_check(&in, &plan));
    plan_describe_saves(&in, &plan, 1, text, sizeof text);
    assert_string_equal(text, "streamed while the step waits (--checkpoint-async off)");
}

static void predicted_beside_measured(void **state) {
    (void)state;
    PlanBytes predicted = {.device = {[MEM_PARAMETERS] = 1234567, [MEM_DATA] = 100}, .snapshot = 5000};
    PlanBytes measured = predicted;
    char *text;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    assert_true(plan_print_measured(&predicted, &measured, file));
    fflush(file);
    assert_non_null(strstr(text, "1,234,667         1,234,667\n"));
    measured.device[MEM_DATA] = 1100;
    measured.device[MEM_PARAMETERS] -= 1000;  // equal totals do not hide unequal rows
    assert_false(plan_print_measured(&predicted, &measured, file));
    measured = predicted;
    measured.snapshot += 1;
    assert_false(plan_print_measured(&predicted, &measured, file));
    fclose(file);
    assert_non_null(strstr(text, "1,233,567  -1,000\n"));
    assert_non_null(strstr(text, "host: snapshot of a save"));
    assert_non_null(strstr(text, "5,001  +1\n"));
    assert_non_null(strstr(text, "1,100  +1,000\n"));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(textbook),
        cmocka_unit_test(exact_bytes),
        cmocka_unit_test(one_block_has_one_slot),
        cmocka_unit_test(input_from_config),
        cmocka_unit_test(printed_table),
        cmocka_unit_test(advice_is_the_cheapest_change),
        cmocka_unit_test(offloaded_bytes),
        cmocka_unit_test(how_to_save),
        cmocka_unit_test(predicted_beside_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
