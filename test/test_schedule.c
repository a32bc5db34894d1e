// The learning rate at the first updates, the end of warm-up, the middle and the last update, worked out by hand.
#include <math.h>

#include "llm/schedule.h"
#include "test/check.h"

static void assert_lr(const Schedule *s, int64_t update, double expected) {
    double found = schedule_lr(s, update);
    if (fabs(found - expected) > 1e-15) {
        print_error("update %lld: lr %.17g, expected %.17g\n", (long long)update, found, expected);
        fail_test();
    }
}

typedef struct Golden {
    ScheduleKind kind;
    int64_t update;
    double lr;
} Golden;

// lr 1e-3, floor 1e-4, 10 updates of warm-up in 111 updates: the decay spans updates 10 … 110, its middle is update 60.
// wsd_decay 0.2: the last ceil(22.2) = 23 updates, 88 … 110.
static const Golden table[] = {
    {SCHEDULE_COSINE, 0, 1e-4},
    {SCHEDULE_COSINE, 1, 2e-4},
    {SCHEDULE_COSINE, 9, 1e-3},                                          // the end of warm-up
    {SCHEDULE_COSINE, 10, 1e-3},                                         // p = 0
    {SCHEDULE_COSINE, 35, 1e-4 + 9e-4 * (1 + 0.70710678118654752) / 2},  // p = 1/4
    {SCHEDULE_COSINE, 60, 5.5e-4},
    {SCHEDULE_COSINE, 110, 1e-4},
    {SCHEDULE_COSINE, 111, 1e-4},  // past the end: stays at the floor
    {SCHEDULE_LINEAR, 0, 1e-4},
    {SCHEDULE_LINEAR, 1, 2e-4},
    {SCHEDULE_LINEAR, 9, 1e-3},
    {SCHEDULE_LINEAR, 10, 1e-3},
    {SCHEDULE_LINEAR, 35, 7.75e-4},
    {SCHEDULE_LINEAR, 60, 5.5e-4},
    {SCHEDULE_LINEAR, 110, 1e-4},
    {SCHEDULE_CONSTANT, 0, 1e-4},  // warm-up applies to a constant rate too
    {SCHEDULE_CONSTANT, 9, 1e-3},
    {SCHEDULE_CONSTANT, 60, 1e-3},
    {SCHEDULE_CONSTANT, 110, 1e-3},
    {SCHEDULE_WSD, 0, 1e-4},
    {SCHEDULE_WSD, 1, 2e-4},
    {SCHEDULE_WSD, 9, 1e-3},
    {SCHEDULE_WSD, 60, 1e-3},
    {SCHEDULE_WSD, 87, 1e-3},
    {SCHEDULE_WSD, 88, 1e-3 - 9e-4 / 23},
    {SCHEDULE_WSD, 98, 1e-3 - 9e-4 * 11 / 23},
    {SCHEDULE_WSD, 110, 1e-4},
};

static void golden_table(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        Schedule s = {table[i].kind, 1e-3, 1e-4, 0.2, 10, 111};
        assert_lr(&s, table[i].update, table[i].lr);
    }
}

static void last_update_is_exactly_at_the_floor(void **state) {
    (void)state;
    const double rates[] = {6e-4, 3e-4, 1e-3, 0.1, 2.5e-5};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        for (int64_t warmup = 0; warmup < 30; warmup += 7) {
            Schedule s = {SCHEDULE_COSINE, rates[i], rates[i] / 10, 0.1, warmup, 101};
            assert_true(schedule_lr(&s, 100) == s.min_lr);
            s.kind = SCHEDULE_LINEAR;
            assert_true(schedule_lr(&s, 100) == s.min_lr);
            s.kind = SCHEDULE_WSD;
            assert_true(schedule_lr(&s, 100) == s.min_lr);
        }
    }
}

static void short_runs(void **state) {
    (void)state;
    for (int kind = SCHEDULE_COSINE; kind <= SCHEDULE_WSD; kind++) {
        Schedule all_warmup = {(ScheduleKind)kind, 1.0, 0.1, 0.1, 4, 4};
        assert_lr(&all_warmup, 0, 0.25);
        assert_lr(&all_warmup, 3, 1.0);
        Schedule two = {(ScheduleKind)kind, 1.0, 0.1, 0.1, 0, 2};
        assert_lr(&two, 0, 1.0);
        assert_lr(&two, 1, kind == SCHEDULE_CONSTANT ? 1.0 : 0.1);
    }
    // wsd whose decay is longer than what warm-up leaves: it begins right after the warm-up.
    Schedule wsd = {SCHEDULE_WSD, 1.0, 0.0, 1.0, 5, 10};
    assert_lr(&wsd, 4, 1.0);
    assert_lr(&wsd, 5, 0.8);
    assert_lr(&wsd, 9, 0.0);
    // wsd without a decay stays at lr.
    Schedule flat = {SCHEDULE_WSD, 1.0, 0.0, 0.0, 0, 10};
    assert_lr(&flat, 8, 1.0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_table),
        cmocka_unit_test(last_update_is_exactly_at_the_floor),
        cmocka_unit_test(short_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
