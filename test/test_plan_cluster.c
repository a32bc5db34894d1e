// --plan for clusters: which stage, how many ranks, the largest micro-batch; the textbook's known answers.
#include "test/check.h"
#include "test/config_line.h"
#include "zero/plan_advice.h"
#include "zero/plan_cluster.h"

// In bf16 with gradients in bf16 and AdamW: 16 bytes a parameter.
static PlanInput params_only(double psi, int n_ranks) {
    return (PlanInput){.n_params = (int64_t)psi,
                       .n_ranks = n_ranks,
                       .group = n_ranks,
                       .dtype = DTYPE_BF16,
                       .grad_dtype = DTYPE_BF16,
                       .optimizer = OPTIMIZER_ADAMW};
}

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
    PlanInput in = params_only(13e9, 8);
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
    PlanInput in = params_only(65e9, 32);
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
    PlanInput in = params_only(7e9, 1);
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
    in = params_only(1e9, 1);
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
                               "param --reduce-dtype param --seq-len 256", (ClusterSpeed){.flops = 1e12, .bytes_per_s = 1.25e9});
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
        cmocka_unit_test(thirteen_billion_on_8_times_80_gb),
        cmocka_unit_test(sixty_five_billion_on_32_times_40_gb),
        cmocka_unit_test(fewest_ranks),
        cmocka_unit_test(a_slow_network_is_worth_accumulating),
        cmocka_unit_test(cluster_of_a_model),
        cmocka_unit_test(largest_micro_batch_is_the_largest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
