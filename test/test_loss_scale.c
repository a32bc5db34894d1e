// The fp16 loss scaler against states that DeepSpeed's DynamicLossScaler goes through for the same script of overflows.
//
// The tables were made by running that class's documented rules by hand; `reference` below states them once more, from
// the documentation and independently of llm/loss_scale.c, and is compared on a long random script.
#include "llm/loss_scale.h"
#include "test/check.h"

typedef struct Expected {
    bool overflow;  // of this update
    double scale;   // after it
    int hysteresis_left;
    int64_t last_overflow;
} Expected;

static void run(LossScale *s, const Expected *table, int n) {
    for (int i = 0; i < n; i++) {
        loss_scale_update(s, table[i].overflow);
        if (s->scale != table[i].scale || s->hysteresis_left != table[i].hysteresis_left ||
            s->last_overflow != table[i].last_overflow || s->iteration != i + 1) {
            print_error(
                "update %d: scale %g, hysteresis %d, last overflow %lld, iteration %lld; expected %g, %d, %lld, %d\n",
                i, s->scale, s->hysteresis_left, (long long)s->last_overflow, (long long)s->iteration, table[i].scale,
                table[i].hysteresis_left, (long long)table[i].last_overflow, i + 1);
            fail_test();
        }
    }
}

static void scripted_overflows(void **state) {
    (void)state;
    LossScale s = loss_scale_make(true, 0);
    s.window = 4;
    const Expected table[] = {
        {false, 65536, 2, -1},  // 0 - (-1) = 1
        {false, 65536, 2, -1},  {false, 65536, 2, -1},
        {false, 131072, 2, -1},  // 3 - (-1) = 4: the first growth, at update number `window`
        {true, 131072, 1, 4},    // the first overflow is forgiven
        {true, 65536, 1, 5},     // the second halves the scale
        {true, 32768, 1, 6},     // and so does every further one
        {false, 32768, 1, 6},    // a good step does not give patience back (consecutive_hysteresis is off)
        {true, 16384, 1, 8},    {false, 16384, 1, 8},
        {false, 16384, 1, 8},   {false, 16384, 1, 8},
        {false, 32768, 2, 8},                          // 12 - 8 = 4: grows, and patience is back
        {false, 32768, 2, 8},   {true, 32768, 1, 14},  // forgiven again; the window begins anew
        {false, 32768, 1, 14},  {false, 32768, 1, 14},
        {false, 32768, 1, 14},  {false, 65536, 2, 14},  // 18 - 14 = 4
        {false, 65536, 2, 14},  {false, 65536, 2, 14},
        {false, 65536, 2, 14},  {false, 131072, 2, 14},  // and every `window` updates from then on
    };
    run(&s, table, sizeof table / sizeof *table);
}

static void defaults_and_first_growth(void **state) {
    (void)state;
    LossScale s = loss_scale_make(true, 0);
    assert_true(s.scale == 65536 && s.window == 1000 && s.hysteresis == 2 && s.factor == 2 && s.minimum == 1);
    for (int i = 0; i < 999; i++) {
        loss_scale_update(&s, false);
        assert_true(s.scale == 65536);
    }
    loss_scale_update(&s, false);  // iteration 999: 999 - (-1) = 1000
    assert_true(s.scale == 131072);
    loss_scale_update(&s, true);  // iteration 1000, forgiven
    for (int i = 1001; i < 2000; i++)
        loss_scale_update(&s, false);
    assert_true(s.scale == 131072);
    loss_scale_update(&s, false);  // iteration 2000: 1000 after the overflow
    assert_true(s.scale == 262144 && s.hysteresis_left == 2);
}

static void minimum(void **state) {
    (void)state;
    LossScale s = loss_scale_make(true, 4);
    s.window = 3;
    assert_true(loss_scale_update(&s, true));  // forgiven
    assert_true(loss_scale_update(&s, true));
    assert_true(s.scale == 2);
    assert_true(loss_scale_update(&s, true));
    assert_true(s.scale == 1);
    assert_false(loss_scale_update(&s, true));  // cannot shrink further
    assert_true(s.scale == 1 && s.last_overflow == 3 && s.iteration == 4);
    for (int i = 0; i < 3; i++)
        assert_true(loss_scale_update(&s, false));
    assert_true(s.scale == 2);  // and still recovers, a window after the last overflow
    LossScale odd = loss_scale_make(true, 1.5);
    loss_scale_update(&odd, true);
    assert_true(loss_scale_update(&odd, true));
    assert_true(odd.scale == 1);  // never below the minimum
}

static void fixed_scale(void **state) {
    (void)state;
    LossScale s = loss_scale_make(false, 128);
    for (int i = 0; i < 3000; i++)
        assert_true(loss_scale_update(&s, i % 3 == 0));
    assert_true(s.scale == 128);
    assert_true(loss_scale_make(false, 0).scale == 1);
}

static void consecutive_hysteresis(void **state) {
    (void)state;
    LossScale s = loss_scale_make(true, 0);
    s.window = 4;
    s.hysteresis = s.hysteresis_left = 3;
    s.consecutive = true;
    const Expected table[] = {
        {true, 65536, 2, 0},   // forgiven
        {true, 65536, 1, 1},   // and again
        {false, 65536, 3, 1},  // a good step gives all patience back
        {true, 65536, 2, 3},  {true, 65536, 1, 4},  {true, 32768, 1, 5},  {true, 16384, 1, 6},
        {false, 16384, 3, 6}, {false, 16384, 3, 6}, {false, 16384, 3, 6}, {false, 32768, 3, 6},  // 10 - 6 = 4
    };
    run(&s, table, sizeof table / sizeof *table);
}

static void resume(void **state) {
    (void)state;
    LossScale saved = loss_scale_make(true, 0), asked = loss_scale_make(true, 16);
    loss_scale_update(&saved, true);
    asked.window = 5;
    asked.hysteresis = 4;
    asked.minimum = 0.5;
    asked.consecutive = true;
    LossScale next = loss_scale_resume(saved, asked);
    assert_true(next.scale == 65536 && next.iteration == 1 && next.last_overflow == 0 && next.hysteresis_left == 1);
    assert_true(next.window == 5 && next.hysteresis == 4 && next.minimum == 0.5 && next.consecutive);
    next = loss_scale_resume(saved, loss_scale_make(false, 128));  // another kind of run begins anew
    assert_true(!next.dynamic && next.scale == 128);
    next = loss_scale_resume(loss_scale_make(false, 1), asked);
    assert_true(next.dynamic && next.scale == 16);
}

// update_scale of the class, rule by rule, in its own variables.
typedef struct Reference {
    double cur_scale;
    long cur_iter, last_overflow_iter, cur_hysteresis;
} Reference;

static void reference(Reference *r, bool overflow, long delayed_shift, long scale_window, bool consecutive_hysteresis) {
    if (overflow) {
        if (delayed_shift == 1 || r->cur_hysteresis == 1)
            r->cur_scale = r->cur_scale / 2 < 1 ? 1 : r->cur_scale / 2;
        else
            r->cur_hysteresis -= 1;
        r->last_overflow_iter = r->cur_iter;
    } else {
        if (consecutive_hysteresis)
            r->cur_hysteresis = delayed_shift;
        long since = r->cur_iter - r->last_overflow_iter;
        if (since % scale_window == 0) {
            if (!consecutive_hysteresis)
                r->cur_hysteresis = delayed_shift;
            r->cur_scale *= 2;
        }
    }
    r->cur_iter += 1;
}

static void random_scripts(void **state) {
    (void)state;
    uint64_t random = 1;
    for (int k = 0; k < 6; k++) {
        int hysteresis = 1 + k % 3;
        LossScale s = loss_scale_make(true, 0);
        s.window = 7;
        s.hysteresis = s.hysteresis_left = hysteresis;
        s.consecutive = k >= 3;
        Reference r = {65536, 0, -1, s.hysteresis};
        for (int i = 0; i < 5000; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            bool overflow = (random >> 60) < 2;  // one in eight: the scale wanders up and down to its minimum
            loss_scale_update(&s, overflow);
            reference(&r, overflow, s.hysteresis, 7, s.consecutive);
            assert_true(s.scale == r.cur_scale && s.iteration == r.cur_iter &&
                        s.last_overflow == r.last_overflow_iter && s.hysteresis_left == r.cur_hysteresis);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scripted_overflows), cmocka_unit_test(defaults_and_first_growth), cmocka_unit_test(minimum),
        cmocka_unit_test(fixed_scale),        cmocka_unit_test(consecutive_hysteresis),    cmocka_unit_test(resume),
        cmocka_unit_test(random_scripts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
