// Bytes and seconds of a step against sums worked out by hand; what ranks really send is test_traffic.py's.
#include <math.h>

#include "test/check.h"
#include "zero/traffic.h"

static void assert_near(double a, double b, double tolerance) {
    if (!(fabs(a - b) <= tolerance))
        print_error("%g is not within %g of %g\n", a, tolerance, b);
    assert_true(fabs(a - b) <= tolerance);
}

static ModelConfig model(int layers, bool tied) {
    ModelConfig config;
    assert_ok(model_config_preset(&config, "gpt2-tiny"));
    config.layers = layers;
    config.tied = tied;
    return config;
}

static Layout layout(const ModelConfig *config, int n_ranks, int group) {
    Layout l;
    assert_ok(layout_make(config, n_ranks, group, 0, &l));
    return l;
}

static TrafficInput input(const Layout *l, int stage, int grad_accum) {
    return (TrafficInput){.layout = l,
                          .shape = {l->n_ranks, l->group, l->group},
                          .zero = {stage, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, true},
                          .grad_accum = grad_accum,
                          .overlap = true};
}

static Traffic predict(const TrafficInput *in) {
    Traffic t;
    assert_ok(traffic_predict(in, &t));
    return t;
}

// How often each unit is gathered in a step of stage 3: blocks before and after the loss, but not those that a slot still
// holds; a slot that units 0 and L+1 share holds only one of them.
static void gathers_of_stage_3(void **state) {
    (void)state;
    enum { L = 5 };
    const struct {
        bool tied;
        int grad_accum, first, blocks_1_2, blocks_3_to_l_2, blocks_last_2, last;
    } cases[] = {
        {true, 1, 1, 2, 2, 1, 1},  // the last two blocks stay from forward to backward
        {true, 3, 1, 4, 6, 3, 1},  // and blocks 1 and 2 from one micro-batch to the next
        {false, 1, 1, 2, 2, 1, 1},
        {false, 3, 3, 4, 6, 3, 3},  // unit L+1 took unit 0's place
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ModelConfig config = model(L, cases[i].tied);
        Layout l = layout(&config, 3, 3);
        int64_t lens = cases[i].first * l.units[0].shard_len + cases[i].last * l.units[L + 1].shard_len +
                       (2 * cases[i].blocks_1_2 + (L - 4) * cases[i].blocks_3_to_l_2 + 2 * cases[i].blocks_last_2) *
                           l.units[1].shard_len;
        TrafficInput in = input(&l, 3, cases[i].grad_accum);
        Traffic t = predict(&in);
        assert_int_equal(t.bytes[COMM_ALL_GATHER], 2 * 2 * lens);  // to two others, of two bytes
        assert_int_equal(t.bytes[COMM_REDUCE_SCATTER], cases[i].grad_accum * 2 * 2 * l.shard_len);
        assert_int_equal(t.total_bytes, t.bytes[COMM_ALL_GATHER] + t.bytes[COMM_REDUCE_SCATTER]);
        layout_free(&l);
    }
}

static void stages_0_to_2(void **state) {
    (void)state;
    ModelConfig config = model(4, true);
    Layout l = layout(&config, 4, 4);
    for (int stage = 0; stage < 3; stage++) {
        for (int accum = 1; accum <= 3; accum += 2) {
            TrafficInput in = input(&l, stage, accum);
            Traffic t = predict(&in);
            assert_int_equal(t.bytes[COMM_ALL_GATHER], 3 * 2 * l.shard_len);
            assert_int_equal(t.bytes[COMM_REDUCE_SCATTER], (stage == 2 ? accum : 1) * 3 * 2 * l.shard_len);
            assert_int_equal(t.bytes[COMM_ALL_REDUCE], 0);
        }
    }
    TrafficInput in = input(&l, 0, 1);  // stage 0 gathers gradients, in the dtype that it keeps them in
    in.zero.grad_dtype = in.zero.reduce_dtype = DTYPE_FP32;
    Traffic t = predict(&in);
    assert_int_equal(t.bytes[COMM_ALL_GATHER], 3 * 4 * l.shard_len);
    assert_int_equal(t.bytes[COMM_REDUCE_SCATTER], 3 * 4 * l.shard_len);
    assert_true(traffic_textbook(&in) == 2.0 * 4 * (double)l.n_params * 3 / 4);
    layout_free(&l);
}

static void two_levels_and_hybrid(void **state) {
    (void)state;
    ModelConfig config = model(3, true);
    Layout l = layout(&config, 8, 8);
    TrafficInput in = input(&l, 2, 1);
    in.shape.reduce_group = 4;  // two hosts: inside 3 peers × 2 cuts in bf16, across 1 partial sum in fp32
    assert_int_equal(predict(&in).bytes[COMM_REDUCE_SCATTER], (3 * 2 * 2 + 4) * l.shard_len);
    layout_free(&l);

    l = layout(&config, 8, 4);
    in = input(&l, 2, 1);
    Traffic t = predict(&in);
    assert_int_equal(t.bytes[COMM_REDUCE_SCATTER], 3 * 2 * l.shard_len);
    assert_int_equal(t.bytes[COMM_ALL_REDUCE], 4 * l.shard_len);
    assert_int_equal(t.bytes[COMM_ALL_GATHER], 3 * 2 * l.shard_len);
    layout_free(&l);

    l = layout(&config, 1, 1);
    for (int stage = 0; stage < 4; stage++) {
        in = input(&l, stage, 2);
        assert_int_equal(predict(&in).total_bytes, 0);
    }
    layout_free(&l);
}

// Many blocks, little padding: the exact formula comes near the textbook's 2Ψ, 2Ψ, 2Ψ, 3Ψ · (N-1)/N, from below in stage 3.
static void textbook(void **state) {
    (void)state;
    ModelConfig config = model(48, true);
    Layout l = layout(&config, 4, 4);
    double psi = 2 * (double)l.n_params * 3 / 4;
    for (int stage = 0; stage < 4; stage++) {
        TrafficInput in = input(&l, stage, 1);
        assert_true(traffic_textbook(&in) == (stage == 3 ? 3 : 2) * psi);
        double ratio = (double)predict(&in).total_bytes / traffic_textbook(&in);
        assert_true(stage < 3 ? ratio >= 1 && ratio < 1.001 : ratio < 1 && ratio > 0.97);
        in.grad_accum = 8;
        assert_true(traffic_textbook(&in) == (stage == 3 ? 24 : stage == 2 ? 9 : 2) * psi);
    }
    layout_free(&l);
}

// Compute and communication as long as each other, then one of them much longer.
static void seconds(void **state) {
    (void)state;
    ModelConfig config = model(48, true);
    config.vocab_size = 64;
    Layout l = layout(&config, 2, 2);
    double block_bytes = 2.0 * (double)l.units[1].shard_len;
    for (int stage = 0; stage < 4; stage++) {
        TrafficInput in = input(&l, stage, 1);
        in.block_forward_s = 1;
        in.block_backward_s = 2;
        Traffic t = predict(&in);  // no limit to the link
        assert_near(t.compute_s, 3 * 48, 1e-9);
        assert_near(t.step_s, 3 * 48, 1e-9);
        assert_true(t.comm_s == 0);

        in.bytes_per_s = block_bytes;  // a block's gather takes a second, like its forward: all but the ends is hidden
        t = predict(&in);
        assert_near(t.comm_s, (stage == 3 ? 3 : 2) * 48, 4);
        assert_true(t.step_s >= 3 * 48 && t.step_s < 3 * 48 * 1.04);

        in.bytes_per_s = block_bytes / 10;  // the link decides
        t = predict(&in);
        assert_true(t.step_s >= t.comm_s && t.step_s < t.comm_s + 3 * 48);

        in.overlap = false;
        t = predict(&in);
        assert_near(t.step_s, t.compute_s + t.comm_s, 1e-6);
    }
    layout_free(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gathers_of_stage_3),    cmocka_unit_test(stages_0_to_2), cmocka_unit_test(textbook),
        cmocka_unit_test(two_levels_and_hybrid), cmocka_unit_test(seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
