// Which tokens the sampler can pick, how often, and that a pick depends on (seed, index) alone.
#include <math.h>

#include "llm/sampler.h"
#include "test/check.h"

enum { VOCAB = 8, DRAWS = 20000 };

// Probabilities 0.4 0.2 0.15 0.1 0.05 0.05 0.03 0.02, in an order that is not sorted.
static const double probabilities[VOCAB] = {0.05, 0.2, 0.02, 0.4, 0.1, 0.05, 0.15, 0.03};

static void make_logits(float logits[VOCAB], float shift) {
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)log(probabilities[i]) + shift;
}

static void count(SamplerOptions options, const float *logits, int counts[VOCAB]) {
    char scratch[16 * VOCAB];
    memset(counts, 0, VOCAB * sizeof *counts);
    for (uint64_t i = 0; i < DRAWS; i++)
        counts[sampler_pick(&options, i, logits, VOCAB, scratch)]++;
}

// Each count within five standard deviations of DRAWS · expected / Σ expected.
static void assert_distribution(const int counts[VOCAB], const double expected[VOCAB]) {
    double total = 0;
    for (int i = 0; i < VOCAB; i++)
        total += expected[i];
    for (int i = 0; i < VOCAB; i++) {
        double p = expected[i] / total, mean = DRAWS * p, deviation = sqrt(DRAWS * p * (1 - p));
        if (fabs(counts[i] - mean) > 5 * deviation) {
            print_error("token %d: drawn %d times, expected %.0f ± %.0f\n", i, counts[i], mean, deviation);
            fail_test();
        }
    }
}

static void follows_the_distribution(void **state) {
    (void)state;
    float logits[VOCAB];
    int counts[VOCAB];
    make_logits(logits, 50.0f);  // a constant added to the logits changes nothing
    count((SamplerOptions){1.0, 0, 1.0, 42}, logits, counts);
    assert_distribution(counts, probabilities);

    double squared[VOCAB];  // temperature 1/2 squares the probabilities
    for (int i = 0; i < VOCAB; i++)
        squared[i] = probabilities[i] * probabilities[i];
    count((SamplerOptions){0.5, 0, 1.0, 43}, logits, counts);
    assert_distribution(counts, squared);
}

static void top_k_keeps_the_k_most_likely(void **state) {
    (void)state;
    float logits[VOCAB];
    int counts[VOCAB];
    make_logits(logits, 0);
    count((SamplerOptions){1.0, 3, 1.0, 7}, logits, counts);
    assert_distribution(counts, (double[VOCAB]){0, 0.2, 0, 0.4, 0, 0, 0.15, 0});
    count((SamplerOptions){1.0, 1, 1.0, 7}, logits, counts);
    assert_int_equal(counts[3], DRAWS);
    count((SamplerOptions){1.0, 100, 1.0, 7}, logits, counts);  // more than the vocabulary: all of it
    assert_distribution(counts, probabilities);
}

static void top_p_keeps_the_smallest_head(void **state) {
    (void)state;
    float logits[VOCAB];
    int counts[VOCAB];
    make_logits(logits, 0);
    count((SamplerOptions){1.0, 0, 0.7, 9}, logits, counts);  // 0.4 + 0.2 < 0.7 <= 0.4 + 0.2 + 0.15
    assert_distribution(counts, (double[VOCAB]){0, 0.2, 0, 0.4, 0, 0, 0.15, 0});
    count((SamplerOptions){1.0, 0, 0.01, 9}, logits, counts);  // always at least one token
    assert_int_equal(counts[3], DRAWS);
    // After top-k 2 the probabilities are 2/3 and 1/3, so a nucleus of 0.6 is one token.
    count((SamplerOptions){1.0, 2, 0.6, 9}, logits, counts);
    assert_int_equal(counts[3], DRAWS);
}

static void temperature_zero_and_ties(void **state) {
    (void)state;
    char scratch[16 * VOCAB];
    float logits[VOCAB] = {0, 3, 1, 3, 3, -1, 2, 2};
    SamplerOptions greedy = {0.0, 0, 1.0, 1};
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(sampler_pick(&greedy, i, logits, VOCAB, scratch), 1);  // the lowest of equals
    int counts[VOCAB];
    count((SamplerOptions){1.0, 2, 1.0, 3}, logits, counts);  // two of three equals: the lower tokens
    assert_distribution(counts, (double[VOCAB]){0, 1, 0, 1, 0, 0, 0, 0});
    count((SamplerOptions){1e-6, 0, 1.0, 3}, logits, counts);  // almost greedy: the three equals
    assert_distribution(counts, (double[VOCAB]){0, 1, 0, 1, 1, 0, 0, 0});
}

static void depends_on_seed_and_index_alone(void **state) {
    (void)state;
    char scratch[16 * VOCAB];
    float logits[VOCAB] = {0};
    SamplerOptions one = {1.0, 0, 1.0, 1}, two = {1.0, 0, 1.0, 2};
    int equal = 0, repeats = 0;
    for (uint64_t i = 0; i < 8000; i++) {
        int32_t a = sampler_pick(&one, i, logits, VOCAB, scratch);
        assert_int_equal(a, sampler_pick(&one, i, logits, VOCAB, scratch));
        equal += a == sampler_pick(&two, i, logits, VOCAB, scratch);
        repeats += a == sampler_pick(&one, i + 1, logits, VOCAB, scratch);
    }
    // Neighbouring seeds and indices look independent: an eighth of the picks agree (σ ≈ 30).
    assert_in_range(equal, 850, 1150);
    assert_in_range(repeats, 850, 1150);
}

static void broken_logits_do_not_break_it(void **state) {
    (void)state;
    char scratch[16 * VOCAB];
    SamplerOptions options = {1.0, 4, 0.9, 5}, greedy = {0.0, 0, 1.0, 5};
    float nan_first[VOCAB] = {NAN, 0, 1, NAN, 0, 0, 0, 0};
    float infinite[VOCAB] = {0, 0, INFINITY, 0, 0, 0, 0, 0};
    float masked[VOCAB] = {-INFINITY, -INFINITY, -INFINITY, 1, -INFINITY, NAN, -INFINITY, -INFINITY};
    float all_nan[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        all_nan[i] = NAN;
    assert_int_equal(sampler_pick(&greedy, 0, nan_first, VOCAB, scratch), 2);
    for (uint64_t i = 0; i < 200; i++) {
        int32_t token = sampler_pick(&options, i, nan_first, VOCAB, scratch);
        assert_true(token != 0 && token != 3);
        assert_int_equal(sampler_pick(&options, i, infinite, VOCAB, scratch), 2);
        assert_int_equal(sampler_pick(&options, i, masked, VOCAB, scratch), 3);
        token = sampler_pick(&options, i, all_nan, VOCAB, scratch);
        assert_true(token >= 0 && token < VOCAB);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_distribution),        cmocka_unit_test(top_k_keeps_the_k_most_likely),
        cmocka_unit_test(top_p_keeps_the_smallest_head),   cmocka_unit_test(temperature_zero_and_ties),
        cmocka_unit_test(depends_on_seed_and_index_alone), cmocka_unit_test(broken_logits_do_not_break_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
