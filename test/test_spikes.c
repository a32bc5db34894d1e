// Spikes: which values stand out, what enters the window, and that only its content decides.
#include <math.h>

#include "test/check.h"
#include "zero/spikes.h"

static char reason[256];

static bool look(SpikeWindow *window, double zscore, double value) {
    reason[0] = '\0';
    return spikes_look(window, "loss", zscore, value, reason, sizeof reason);
}

// n values that alternate between 3 - 1/8 and 3 + 1/8: mean 3, deviation 1/8 · sqrt(n / (n - 1)) for even n.
static SpikeWindow alternating(int n) {
    SpikeWindow window = {0};
    for (int i = 0; i < n; i++)
        look(&window, 6, i % 2 ? 3.125 : 2.875);
    return window;
}

static void few_values_decide_nothing(void **state) {
    (void)state;
    SpikeWindow window = alternating(SPIKE_MIN - 1);
    assert_false(look(&window, 6, 1000));
    window = alternating(SPIKE_MIN);
    assert_true(look(&window, 6, 1000));
}

static void the_bound(void **state) {
    (void)state;
    SpikeWindow window = alternating(SPIKE_WINDOW), same = window;
    double deviation = 0.125 * sqrt(128.0 / 127);
    assert_false(look(&window, 6, 3 + 5.999 * deviation));
    window = same;
    assert_true(look(&window, 6, 3 + 6.001 * deviation));
    assert_string_equal(reason, "loss 3.753 is 6 standard deviations (0.125) above the mean 3 of the last 128");
    window = same;
    assert_false(look(&window, 6, -1000));  // low is no spike
    window = same;
    assert_false(look(&window, 0, 1000));  // switched off
    assert_string_equal(reason, "");
    assert_true(window.values[SPIKE_WINDOW - 1] == 1000);
}

static void a_spike_enters_as_the_bound(void **state) {
    (void)state;
    SpikeWindow window = alternating(SPIKE_WINDOW);
    assert_true(look(&window, 6, 1e30));
    double entered = window.values[SPIKE_WINDOW - 1];
    assert_true(fabs(entered - (3 + 6 * 0.125 * sqrt(128.0 / 127))) < 1e-12);
    assert_true(look(&window, 6, 1e30));  // and does not hide the next one
    assert_int_equal(window.n, SPIKE_WINDOW);
}

static void what_is_not_finite_is_not_noted(void **state) {
    (void)state;
    SpikeWindow window = alternating(SPIKE_WINDOW), same = window;
    assert_false(look(&window, 6, NAN));
    assert_false(look(&window, 6, INFINITY));
    assert_memory_equal(&window, &same, sizeof window);
}

static void a_new_level_is_followed(void **state) {
    (void)state;
    SpikeWindow window = alternating(SPIKE_WINDOW);
    int skipped = 0;
    while (look(&window, 6, 5))  // 16 deviations above
        skipped++;
    print_message("a level 16 deviations up is followed after %d steps\n", skipped);
    assert_in_range(skipped, 1, 30);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_values_decide_nothing),      cmocka_unit_test(the_bound),
        cmocka_unit_test(a_spike_enters_as_the_bound),    cmocka_unit_test(what_is_not_finite_is_not_noted),
        cmocka_unit_test(a_new_level_is_followed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
