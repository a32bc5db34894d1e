// The loader: the right rows in the right order, exact resume, padding at the end, errors handed over, a quick end.
#include "test/check.h"

#include <time.h>

#include "data/shards.h"
#include "test/write_shard.h"

enum { T = 16, B = 3, N = 50 };  // N windows, in two shards

static char *directory;
static Shards *shards;

static int set_up(void **state) {
    (void)state;
    directory = check_make_dir();
    char path[512];
    uint16_t data[N * T + 2];
    for (int i = 0; i < N * T + 2; i++)
        data[i] = (uint16_t)i;
    snprintf(path, sizeof path, "%s/a.h5", directory);  // windows 0…29 begin at token T·w
    write_shard((ShardSpec){.path = path, .n = 30 * T + 1, .data = data});
    snprintf(path, sizeof path, "%s/b.h5", directory);  // windows 30…49 too
    write_shard((ShardSpec){.path = path, .n = 20 * T + 1, .data = data + 30 * T});
    return shards_open(directory, T, &shards) == OK && shards_n_windows(shards) == N ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    shards_close(shards);
    check_remove_dir(directory);
    return 0;
}

static void expect_row(const int32_t *tokens, const int32_t *targets, int row, int64_t window) {
    for (int t = 0; t < T; t++) {
        assert_int_equal(tokens[row * T + t], window < 0 ? 0 : window * T + t);
        assert_int_equal(targets[row * T + t], window < 0 ? -1 : window * T + t + 1);
    }
}

// Over several epochs and from any start: batch k of a rank holds the samples that the formula says.
static void test_order_and_resume(void **state) {
    (void)state;
    for (int64_t start = 0; start < 3 * N; start += 7) {
        LoaderOptions options = {.shards = shards,
                                 .seed = 11,
                                 .shuffle = true,
                                 .batch = B,
                                 .first_sample = start,
                                 .stride = 2 * B,
                                 .depth = 1 + (int)(start % 3)};
        Loader *loader;
        assert_ok(loader_open(&options, &loader));
        for (int64_t k = 0; k < 20; k++) {
            const int32_t *tokens, *targets;
            int64_t n_valid;
            double wait;
            assert_ok(loader_next(loader, &tokens, &targets, &n_valid, &wait));
            assert_int_equal(n_valid, B * T);
            assert_true(wait >= 0);
            for (int r = 0; r < B; r++)
                expect_row(tokens, targets, r, sample_window(11, N, start + k * 2 * B + r));
        }
        loader_close(loader);
    }
}

// A batch stays as it was until the call after next.
static void test_lifetime(void **state) {
    (void)state;
    LoaderOptions options = {.shards = shards, .batch = B, .stride = B, .depth = 1};
    Loader *loader;
    assert_ok(loader_open(&options, &loader));
    const int32_t *tokens[2], *targets[2];
    for (int64_t k = 0; k < 200; k++) {
        int64_t n_valid;
        double wait;
        assert_ok(loader_next(loader, &tokens[k % 2], &targets[k % 2], &n_valid, &wait));
        if (k % 50 == 0)
            usleep(2000);  // time for the thread to run as far ahead as it may
        for (int64_t j = k > 0 ? k - 1 : 0; j <= k; j++)
            for (int r = 0; r < B; r++)
                expect_row(tokens[j % 2], targets[j % 2], r, (j * B + r) % N);
    }
    loader_close(loader);
}

// Validation: windows in order, the rest of the last batch is padding, then batches without a target.
static void test_end(void **state) {
    (void)state;
    const int64_t limits[] = {N, 1, 2, 3, 4, 31, 1000};
    for (int k = 0; k < 7; k++) {
        int64_t end = limits[k] < N ? limits[k] : N;  // never more than there is
        LoaderOptions options = {.shards = shards, .batch = B, .stride = B, .n_samples = limits[k], .depth = 2};
        Loader *loader;
        assert_ok(loader_open(&options, &loader));
        for (int64_t at = 0; at < end + 3 * B; at += B) {
            const int32_t *tokens, *targets;
            int64_t n_valid, rows = end - at < 0 ? 0 : end - at < B ? end - at : B;
            double wait;
            assert_ok(loader_next(loader, &tokens, &targets, &n_valid, &wait));
            assert_int_equal(n_valid, rows * T);
            for (int r = 0; r < B; r++)
                expect_row(tokens, targets, r, r < rows ? at + r : -1);
        }
        loader_close(loader);
    }
}

// The batches before a bad token are good; then every call fails with the same message, in the caller's thread.
static void test_error_is_handed_over(void **state) {
    (void)state;
    shards_set_vocab(shards, 10 * T + 5);
    LoaderOptions options = {.shards = shards, .batch = 1, .stride = 1, .depth = 4};
    Loader *loader;
    assert_ok(loader_open(&options, &loader));
    const int32_t *tokens, *targets;
    int64_t n_valid;
    double wait;
    for (int k = 0; k < 10; k++) {
        assert_ok(loader_next(loader, &tokens, &targets, &n_valid, &wait));
        expect_row(tokens, targets, 0, k);
    }
    for (int k = 0; k < 2; k++) {
        assert_fails(loader_next(loader, &tokens, &targets, &n_valid, &wait), "token 165 at index 165");
        assert_fails(loader_next(loader, &tokens, &targets, &n_valid, &wait), "a.h5");
    }
    loader_close(loader);
    shards_set_vocab(shards, 0);
}

static void test_shards_too_short(void **state) {
    (void)state;
    Shards *long_windows;
    assert_ok(shards_open(directory, 30 * T + 1, &long_windows));
    assert_int_equal(shards_n_windows(long_windows), 0);
    LoaderOptions options = {.shards = long_windows, .batch = 1, .stride = 1, .depth = 1};
    Loader *loader;
    assert_fails(loader_open(&options, &loader), "T+1 = 482 tokens");
    shards_close(long_windows);
    options.shards = shards;
    options.batch = 0;
    assert_fails(loader_open(&options, &loader), "at least 1");
}

// Closing does not wait for batches that nobody will use, however large they are.
static void test_quick_close(void **state) {
    (void)state;
    LoaderOptions options = {.shards = shards, .shuffle = true, .batch = 2000000, .stride = 1, .depth = 1};
    struct timespec a, b;
    Loader *loader;
    assert_ok(loader_open(&options, &loader));
    usleep(1000);
    clock_gettime(CLOCK_MONOTONIC, &a);
    loader_close(loader);
    clock_gettime(CLOCK_MONOTONIC, &b);
    assert_true((double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec) < 0.25);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_resume),
        cmocka_unit_test(test_lifetime),
        cmocka_unit_test(test_end),
        cmocka_unit_test(test_error_is_handed_over),
        cmocka_unit_test(test_shards_too_short),
        cmocka_unit_test(test_quick_close),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
