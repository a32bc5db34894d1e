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

static Schedule plain(ScheduleKind kind, double lr, double min_lr, double wsd_decay, int64_t warmup, int64_t steps) {
    return (Schedule){
        .kind = kind, .lr = lr, .min_lr = min_lr, .wsd_decay = wsd_decay, .warmup = warmup, .steps = steps};
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
        Schedule s = plain(table[i].kind, 1e-3, 1e-4, 0.2, 10, 111);
        assert_lr(&s, table[i].update, table[i].lr);
    }
}

static void last_update_is_exactly_at_the_floor(void **state) {
    (void)state;
    const double rates[] = {6e-4, 3e-4, 1e-3, 0.1, 2.5e-5};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        for (int64_t warmup = 0; warmup < 30; warmup += 7) {
            Schedule s = plain(SCHEDULE_COSINE, rates[i], rates[i] / 10, 0.1, warmup, 101);
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
        Schedule all_warmup = plain((ScheduleKind)kind, 1.0, 0.1, 0.1, 4, 4);
        assert_lr(&all_warmup, 0, 0.25);
        assert_lr(&all_warmup, 3, 1.0);
        Schedule two = plain((ScheduleKind)kind, 1.0, 0.1, 0.1, 0, 2);
        assert_lr(&two, 0, 1.0);
        assert_lr(&two, 1, kind == SCHEDULE_CONSTANT ? 1.0 : 0.1);
    }
    // wsd whose decay is longer than what warm-up leaves: it begins right after the warm-up.
    Schedule wsd = plain(SCHEDULE_WSD, 1.0, 0.0, 1.0, 5, 10);
    assert_lr(&wsd, 4, 1.0);
    assert_lr(&wsd, 5, 0.8);
    assert_lr(&wsd, 9, 0.0);
    // wsd without a decay stays at lr.
    Schedule flat = plain(SCHEDULE_WSD, 1.0, 0.0, 0.0, 0, 10);
    assert_lr(&flat, 8, 1.0);
}

// DeepSpeed's classes for lr 1e-3, warm-up of 10 updates from 1e-4, 110 updates, floor 1e-5: get_lr for
// last_batch_iteration = update, worked out by hand.
typedef struct DeepSpeed {
    ScheduleKind kind;
    WarmupType type;
    int64_t update;
    double lr;
} DeepSpeed;

static const DeepSpeed deepspeed_table[] = {
    {SCHEDULE_WARMUP_LR, WARMUP_LOG, 0, 1e-4},                                  // log 1 = 0
    {SCHEDULE_WARMUP_LR, WARMUP_LOG, 1, 1e-4 + 9e-4 * 0.30102999566398119521},  // log 2 / log 10
    {SCHEDULE_WARMUP_LR, WARMUP_LOG, 4, 1e-4 + 9e-4 * 0.69897000433601880479},
    {SCHEDULE_WARMUP_LR, WARMUP_LOG, 9, 1e-3},
    {SCHEDULE_WARMUP_LR, WARMUP_LOG, 10, 1e-3},
    {SCHEDULE_WARMUP_LR, WARMUP_LOG, 100000, 1e-3},
    {SCHEDULE_WARMUP_LR, WARMUP_LINEAR, 0, 1e-4},
    {SCHEDULE_WARMUP_LR, WARMUP_LINEAR, 1, 1.9e-4},
    {SCHEDULE_WARMUP_LR, WARMUP_LINEAR, 9, 9.1e-4},
    {SCHEDULE_WARMUP_LR, WARMUP_LINEAR, 10, 1e-3},
    {SCHEDULE_WARMUP_DECAY_LR, WARMUP_LINEAR, 1, 1.9e-4},
    {SCHEDULE_WARMUP_DECAY_LR, WARMUP_LOG, 9, 1e-3},
    {SCHEDULE_WARMUP_DECAY_LR, WARMUP_LOG, 10, 1e-3},  // (110 - 10) / 100
    {SCHEDULE_WARMUP_DECAY_LR, WARMUP_LOG, 11, 1e-4 + 9e-4 * 0.99},
    {SCHEDULE_WARMUP_DECAY_LR, WARMUP_LOG, 60, 5.5e-4},
    {SCHEDULE_WARMUP_DECAY_LR, WARMUP_LOG, 109, 1e-4 + 9e-4 * 0.01},
    {SCHEDULE_WARMUP_DECAY_LR, WARMUP_LOG, 110, 1e-4},
    {SCHEDULE_WARMUP_DECAY_LR, WARMUP_LOG, 200, 1e-4},
    {SCHEDULE_WARMUP_COSINE_LR, WARMUP_LOG, 0, 1e-4},
    {SCHEDULE_WARMUP_COSINE_LR, WARMUP_LINEAR, 5, 5.5e-4},
    {SCHEDULE_WARMUP_COSINE_LR, WARMUP_LOG, 10, 1e-5 + 9.9e-4 * (1 + 0.99950656036573155700) / 2},  // cos(π/100)
    {SCHEDULE_WARMUP_COSINE_LR, WARMUP_LOG, 34, 1e-5 + 9.9e-4 * (1 + 0.70710678118654752) / 2},  // (34 - 10 + 1) / 100
    {SCHEDULE_WARMUP_COSINE_LR, WARMUP_LOG, 59, 5.05e-4},
    {SCHEDULE_WARMUP_COSINE_LR, WARMUP_LOG, 109, 1e-5},
    {SCHEDULE_WARMUP_COSINE_LR, WARMUP_LOG, 300, 1e-5},  // stays at the floor
};

static void deepspeeds_schedules(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof deepspeed_table / sizeof *deepspeed_table; i++) {
        Schedule s = plain(deepspeed_table[i].kind, 1e-3, 1e-5, 0, 10, 110);
        s.warmup_min_lr = 1e-4;
        s.warmup_type = deepspeed_table[i].type;
        assert_lr(&s, deepspeed_table[i].update, deepspeed_table[i].lr);
    }
    Schedule one = plain(SCHEDULE_WARMUP_LR, 1.0, 0, 0, 1, 10);  // warm-up takes at least 2 updates
    assert_lr(&one, 0, 0.0);
    assert_lr(&one, 1, 1.0);
    one.warmup_type = WARMUP_LINEAR;
    assert_lr(&one, 1, 0.5);
    Schedule all_warmup = plain(SCHEDULE_WARMUP_COSINE_LR, 1.0, 0.1, 0, 10, 10);  // nothing is left to decay in
    assert_lr(&all_warmup, 10, 0.1);
    all_warmup.kind = SCHEDULE_WARMUP_DECAY_LR;
    assert_lr(&all_warmup, 10, 0.0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_table),
        cmocka_unit_test(last_update_is_exactly_at_the_floor),
        cmocka_unit_test(short_runs),
        cmocka_unit_test(deepspeeds_schedules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
