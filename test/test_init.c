// Initial values: normal in their moments and tails, the same for every cut, and the same bits tomorrow.
#include <math.h>

#include "test/check.h"
#include "test/toy_units.h"

static UnitSpec big_unit(void) {
    UnitSpec unit = {0};
    toy_add(&unit, "h.0.ln_1.weight", 768, 0, INIT_ONE);
    toy_add(&unit, "h.0.ln_1.bias", 100, 0, INIT_ZERO);
    toy_add(&unit, "h.0.attn.qkv.weight", 1001, 999, INIT_NORMAL);
    toy_add(&unit, "h.0.attn.proj.weight", 777, 31, INIT_NORMAL);
    return unit;
}

static float *whole(const UnitSpec *unit, uint64_t seed) {
    float *values = malloc((size_t)unit->len * sizeof *values);
    model_init(unit, seed, 0, unit->len, values);
    return values;
}

static void constants_and_gaps(void **state) {
    (void)state;
    UnitSpec unit = big_unit();
    float *values = whole(&unit, 1);
    for (int64_t i = 0; i < 768; i++)
        assert_true(values[i] == 1.0f);
    for (int64_t i = 768; i < unit.tensors[2].offset; i++)
        assert_true(fp32_bits(values[i]) == 0);
    for (int64_t i = unit.tensors[2].offset + unit.tensors[2].len; i < unit.tensors[3].offset; i++)
        assert_true(fp32_bits(values[i]) == 0);
    free(values);
}

static void moments_and_tails(void **state) {
    (void)state;
    UnitSpec unit = big_unit();
    float *values = whole(&unit, 42);
    const TensorSpec *tensor = &unit.tensors[2];
    double n = (double)tensor->len, sum[5] = {0}, neighbours = 0;
    double beyond[5] = {0};  // |z| > 1 … 5
    for (int64_t i = 0; i < tensor->len; i++) {
        double z = (double)values[tensor->offset + i] / (double)tensor->init_std;
        for (int k = 1; k <= 4; k++)
            sum[k] += pow(z, k);
        if (i > 0)
            neighbours += z * (double)values[tensor->offset + i - 1] / (double)tensor->init_std;
        for (int k = 0; k < 5; k++)
            beyond[k] += fabs(z) > k + 1;
    }
    double error = 5.0 / sqrt(n);  // five standard errors of the mean
    assert_true(fabs(sum[1] / n) < error);
    assert_true(fabs(sum[2] / n - 1.0) < error * sqrt(2.0));
    assert_true(fabs(sum[3] / n) < error * sqrt(15.0));
    assert_true(fabs(sum[4] / n - 3.0) < error * sqrt(96.0));
    assert_true(fabs(neighbours / n) < error);
    for (int k = 0; k < 5; k++) {
        double expected = erfc((k + 1) / sqrt(2.0)) * n;
        assert_true(fabs(beyond[k] - expected) < 5.0 * sqrt(expected) + 3.0);
    }
    free(values);
}

// The largest distance between the distribution of the values and the normal one (Kolmogorov–Smirnov).
static int compare_floats(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void distribution(void **state) {
    (void)state;
    UnitSpec unit = big_unit();
    float *values = whole(&unit, 7);
    const TensorSpec *tensor = &unit.tensors[2];
    float *x = values + tensor->offset;
    qsort(x, (size_t)tensor->len, sizeof *x, compare_floats);
    double n = (double)tensor->len, distance = 0;
    for (int64_t i = 0; i < tensor->len; i++) {
        double expected = 0.5 * erfc(-(double)x[i] / (double)tensor->init_std / sqrt(2.0));
        distance = fmax(distance, fabs(expected - (double)(i + 1) / n));
    }
    assert_true(distance < 1.95 / sqrt(n));  // p = 0.001
    free(values);
}

static void any_cut_is_the_whole(void **state) {
    (void)state;
    UnitSpec unit = big_unit();
    float *values = whole(&unit, 3), *cut = malloc((size_t)(unit.len + 64) * sizeof *cut);
    static const int64_t pieces[] = {1, 63, 64, 255, 257, 12345, 333333, 1 << 30};
    for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++) {
        int64_t begin = pieces[k] == 1 ? unit.tensors[3].offset - 300 : 0,
                end = pieces[k] == 1 ? unit.tensors[3].offset + 999 : unit.len;
        for (; begin < end; begin += pieces[k]) {
            int64_t len = begin + pieces[k] < unit.len ? pieces[k] : unit.len - begin;
            model_init(&unit, 3, begin, len, cut);
            assert_memory_equal(cut, values + begin, (size_t)len * sizeof *cut);
        }
    }
    // A shard may reach into the padding, or hold nothing else.
    model_init(&unit, 3, unit.len - 64, 128, cut);
    assert_memory_equal(cut, values + unit.len - 64, 64 * sizeof *cut);
    for (int i = 64; i < 128; i++)
        assert_true(fp32_bits(cut[i]) == 0);
    free(values);
    free(cut);
}

static void seeds_and_names_differ(void **state) {
    (void)state;
    UnitSpec unit = big_unit();
    float *a = whole(&unit, 1), *b = whole(&unit, 2);
    int64_t offset = unit.tensors[2].offset, equal = 0;
    for (int64_t i = 0; i < 20000; i++)
        equal += (a[offset + i] == b[offset + i]) + (a[offset + i] == a[unit.tensors[3].offset + i]);
    assert_in_range(equal, 0, 2);
    free(a);
    free(b);
}

// Bits that every machine, compiler and version of this program must give. They were formed by a few lines of Python
// with the log, cos and sin of its math library, which agree with ours after rounding to fp32 in all 10,000 elements.
static void golden(void **state) {
    (void)state;
    UnitSpec unit = {0};
    toy_add(&unit, "wte", 1000, 10, INIT_NORMAL);
    float *values = whole(&unit, 1337);
    static const uint32_t expected[8] = {0x3ca4c2f2u, 0xbb0db1bau, 0xbc78f2b4u, 0xbba86cf9u,
                                         0xbc7a7e21u, 0x3d182eb7u, 0xbc668b88u, 0x3d19cb29u};
    uint32_t found[8], sum = 0;
    for (int i = 0; i < 8; i++)
        found[i] = fp32_bits(values[i * 1111]);
    for (int64_t i = 0; i < unit.len; i++)
        sum = sum * 31 + fp32_bits(values[i]);
    for (int i = 0; i < 8; i++) {
        if (found[i] != expected[i])
            print_error("element %d: 0x%08xu\n", i * 1111, found[i]);
        assert_int_equal(found[i], expected[i]);
    }
    assert_int_equal(sum, 0x69433c81u);
    free(values);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constants_and_gaps),     cmocka_unit_test(moments_and_tails),
        cmocka_unit_test(distribution),           cmocka_unit_test(any_cut_is_the_whole),
        cmocka_unit_test(seeds_and_names_differ), cmocka_unit_test(golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
