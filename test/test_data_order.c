// The order of samples: a permutation for every n, different in every epoch, evenly spread, and the same for ever.
#include "test/check.h"

#include "data/shards.h"

static bool is_permutation(uint64_t seed, int64_t n, int64_t epoch) {
    char *seen = calloc((size_t)n, 1);
    bool good = true;
    for (int64_t j = 0; j < n && good; j++) {
        int64_t w = sample_window(seed, n, epoch * n + j);
        good = w >= 0 && w < n && !seen[w];
        if (good)
            seen[w] = 1;
    }
    free(seen);
    return good;
}

static void test_bijective(void **state) {
    (void)state;
    for (int64_t n = 1; n <= 300; n++)
        for (int64_t epoch = 0; epoch < 3; epoch++)
            assert_true(is_permutation(42, n, epoch));
    const int64_t sizes[] = {1009, 1023, 1024, 1025, 4095, 4096, 4097, 65535, 65536, 65537, 99991, 262145, 1000000};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        assert_true(is_permutation(k, sizes[k], (int64_t)k));
}

static void test_huge(void **state) {
    (void)state;
    const int64_t sizes[] = {((int64_t)1 << 32) + 1, ((int64_t)1 << 40) - 1, ((int64_t)1 << 61) + 12345};
    for (size_t k = 0; k < 3; k++)
        for (int64_t j = 0; j < 1000; j++) {
            int64_t w = sample_window(7, sizes[k], sizes[k] - 500 + j);  // across an epoch's end
            assert_true(w >= 0 && w < sizes[k]);
        }
}

static void test_epochs_and_seeds_differ(void **state) {
    (void)state;
    int64_t n = 1000, same_epoch = 0, same_seed = 0, in_place = 0;
    for (int64_t j = 0; j < n; j++) {
        same_epoch += sample_window(1, n, j) == sample_window(1, n, n + j);
        same_seed += sample_window(1, n, j) == sample_window(2, n, j);
        in_place += sample_window(1, n, j) == j;
    }
    assert_true(same_epoch < 10 && same_seed < 10 && in_place < 10);  // 1 is expected of each
}

// χ² over `cells` equally likely cells; beyond 5 standard deviations of its distribution is not chance.
static bool is_even(const int64_t *count, int64_t cells, int64_t total) {
    double expected = (double)total / (double)cells, chi2 = 0;
    for (int64_t c = 0; c < cells; c++)
        chi2 += ((double)count[c] - expected) * ((double)count[c] - expected) / expected;
    double freedom = (double)(cells - 1), limit = freedom + 5 * __builtin_sqrt(2 * freedom);
    if (chi2 > limit)
        print_error("chi2 %.1f over %lld cells, limit %.1f\n", chi2, (long long)cells, limit);
    return chi2 <= limit;
}

// Where one place of the order goes over many epochs, and how far apart two neighbours land: both even.
static void test_looks_random(void **state) {
    (void)state;
    const int64_t sizes[] = {2, 3, 5, 7, 10, 16, 17, 31, 64, 100, 257};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int64_t n = sizes[k], epochs = 400 * n;
        int64_t *place = calloc((size_t)n, sizeof *place), *gap = calloc((size_t)n, sizeof *gap);
        for (int64_t e = 0; e < epochs; e++) {
            int64_t a = sample_window(3, n, e * n), b = sample_window(3, n, e * n + 1);
            place[a]++;
            gap[(b - a + n) % n]++;
        }
        bool even = is_even(place, n, epochs) && is_even(gap + 1, n - 1, epochs);
        free(place);
        free(gap);
        if (!even)
            print_error("n = %lld\n", (long long)n);
        assert_true(even);
    }
    int64_t orders[6] = {0};  // all six orders of three windows
    for (int64_t e = 0; e < 6000; e++)
        orders[2 * sample_window(5, 3, 3 * e) + (sample_window(5, 3, 3 * e + 1) > sample_window(5, 3, 3 * e + 2))]++;
    assert_true(is_even(orders, 6, 6000));
    int64_t pairs[256] = {0};  // within one epoch: where consecutive samples lie, in a 16×16 grid
    for (int64_t j = 0; j + 1 < 100000; j++)
        pairs[sample_window(9, 100000, j) / 6250 * 16 + sample_window(9, 100000, j + 1) / 6250]++;
    assert_true(is_even(pairs, 256, 99999));
}

// If this fails, the order changed, and every resumed run would read other samples than it should. Do not update the
// table: put the order back.
static void test_golden(void **state) {
    (void)state;
    static const struct {
        uint64_t seed;
        int64_t n, i, window;
    } golden[] = {
        {0u, 1, 5, 0},
        {0u, 2, 0, 0},
        {0u, 2, 1, 1},
        {1u, 3, 0, 1},
        {1u, 3, 1, 2},
        {1u, 3, 2, 0},
        {42u, 10, 0, 8},
        {42u, 10, 1, 1},
        {42u, 10, 9, 3},
        {42u, 10, 10, 2},
        {42u, 10, 19, 6},
        {1337u, 1000, 0, 622},
        {1337u, 1000, 999, 77},
        {1337u, 1000, 1000, 740},
        {1337u, 65536, 12345, 15678},
        {1337u, 65537, 12345, 46993},
        {18446744073709551615u, 1000003, 0, 372491},
        {18446744073709551615u, 1000003, 2000006, 536549},
        {7u, 4294967297, 4294967296, 3610714944},
        {7u, 1099511627775, 123456789012345, 1065439101340},
    };
    for (size_t k = 0; k < sizeof golden / sizeof *golden; k++)
        assert_int_equal(sample_window(golden[k].seed, golden[k].n, golden[k].i), golden[k].window);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bijective),
        cmocka_unit_test(test_huge),
        cmocka_unit_test(test_epochs_and_seeds_differ),
        cmocka_unit_test(test_looks_random),
        cmocka_unit_test(test_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
