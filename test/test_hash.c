// The same string for the same bits whatever the cuts; another string for any change. XXH64 against its published
// values.
#include "test/check.h"
#include "test/toy_units.h"
#include "zero/hash.h"

static Layout layout;
static float *values;  // of unit 1

static Hash128 hash_cut(int n_cuts, Hash128 *per_tensor) {
    UnitSpec units[TOY_UNITS];
    toy_units(units, 1);
    Layout cut;
    assert_ok(layout_from_units(units, TOY_UNITS, false, n_cuts, 0, 0, &cut));
    const UnitLayout *unit = &cut.units[1];
    Hash128 hash = 0;
    for (int r = n_cuts - 1; r >= 0; r--) {  // backwards: order does not matter
        int64_t begin = r * unit->shard_len;
        float *shard = calloc((size_t)unit->shard_len, sizeof *shard);
        for (int64_t i = 0; i < unit->shard_len; i++)
            shard[i] = begin + i < unit->spec.len ? values[begin + i] : (float)(r + 1);  // padding must not count
        hash_unit(unit, "master", begin, unit->shard_len, shard, &hash, per_tensor);
        free(shard);
    }
    layout_free(&cut);
    return hash;
}

static int setup(void **state) {
    (void)state;
    UnitSpec units[TOY_UNITS];
    toy_units(units, 1);
    if (layout_from_units(units, TOY_UNITS, false, 1, 0, 0, &layout) != OK)
        return -1;
    values = calloc((size_t)layout.units[1].full_len, sizeof *values);
    for (int64_t i = 0; i < layout.units[1].full_len; i++)
        values[i] = (float)(i % 7) * 0.25f - 1.0f;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    free(values);
    layout_free(&layout);
    return 0;
}

static void does_not_depend_on_cuts(void **state) {
    (void)state;
    Hash128 whole_tensors[MAX_TENSORS] = {0}, whole = hash_cut(1, whole_tensors), sum = 0;
    for (int t = 0; t < MAX_TENSORS; t++)
        sum += whole_tensors[t];
    assert_true(sum == whole);
    for (int n = 2; n < 20; n++) {
        Hash128 tensors[MAX_TENSORS] = {0};
        assert_true(hash_cut(n, tensors) == whole);
        assert_memory_equal(tensors, whole_tensors, sizeof tensors);
    }
}

static void every_bit_counts(void **state) {
    (void)state;
    const UnitSpec *unit = &layout.units[1].spec;
    Hash128 whole = hash_cut(1, NULL);
    for (int64_t i = 0; i < unit->len; i++) {
        float saved = values[i];
        bool in_tensor = false;
        for (int t = 0; t < unit->n_tensors; t++)
            in_tensor |= i >= unit->tensors[t].offset && i < unit->tensors[t].offset + unit->tensors[t].len;
        values[i] = fp32_from_bits(fp32_bits(saved) ^ 1u << i % 32);
        assert_int_equal(hash_cut(1, NULL) != whole, in_tensor);  // gaps do not count
        values[i] = saved;
    }
    // Two values that change places, and -0 for 0.
    float saved = values[64];
    values[64] = values[65];
    values[65] = saved;
    assert_true(hash_cut(1, NULL) != whole);
    values[65] = values[64];
    values[64] = saved;
    values[64] = 0.0f;
    Hash128 zero = hash_cut(1, NULL);
    values[64] = -0.0f;
    assert_true(hash_cut(1, NULL) != zero);
    values[64] = saved;
}

static void names_and_kinds_count(void **state) {
    (void)state;
    UnitLayout unit = layout.units[1];
    Hash128 master = 0, m = 0, renamed = 0;
    hash_unit(&unit, "master", 0, unit.full_len, values, &master, NULL);
    hash_unit(&unit, "m", 0, unit.full_len, values, &m, NULL);
    unit.spec.tensors[1].name[0] = 'g';
    hash_unit(&unit, "master", 0, unit.full_len, values, &renamed, NULL);
    assert_true(master != m && master != renamed && m != renamed);
}

// Neighbouring indices and values give unrelated hashes: each of the 128 bits is set about half of the time.
static void bits_are_balanced(void **state) {
    (void)state;
    UnitSpec units[2] = {0};
    toy_add(&units[0], "w", 1, 0, INIT_ZERO);
    toy_add(&units[1], "w", 1 << 14, 0, INIT_ZERO);
    Layout one;
    assert_ok(layout_from_units(units, 2, false, 1, 0, 0, &one));
    int set[128] = {0};
    for (int64_t i = 0; i < 1 << 14; i++) {
        Hash128 hash = 0;
        float zero = 0.0f;
        hash_unit(&one.units[1], "m", i, 1, &zero, &hash, NULL);
        for (int bit = 0; bit < 128; bit++)
            set[bit] += (int)(hash >> bit & 1);
    }
    for (int bit = 0; bit < 128; bit++)
        assert_in_range(set[bit], (1 << 13) - 384, (1 << 13) + 384);  // six standard deviations
    layout_free(&one);
}

// Above the size at which threads share the sum, too; and the value of today is the value of tomorrow.
static void golden(void **state) {
    (void)state;
    UnitSpec units[2] = {0};
    toy_add(&units[0], "w", 300, 500, INIT_ZERO);
    toy_add(&units[1], "b", 1, 0, INIT_ZERO);
    Layout one;
    assert_ok(layout_from_units(units, 2, false, 1, 0, 0, &one));
    int64_t len = one.units[0].full_len;
    float *x = calloc((size_t)len, sizeof *x);
    for (int64_t i = 0; i < len; i++)
        x[i] = (float)i;
    Hash128 at_once = 0, in_pieces = 0;
    hash_unit(&one.units[0], "v", 0, len, x, &at_once, NULL);
    for (int64_t begin = 0; begin < len; begin += 1000)
        hash_unit(&one.units[0], "v", begin, begin + 1000 < len ? 1000 : len - begin, x + begin, &in_pieces, NULL);
    assert_true(at_once == in_pieces);
    char text[HASH_TEXT_BYTES];
    hash_text(at_once, text);
    assert_string_equal(text, "cb32bee4628a473117f6d869d261bae6");
    hash_text((Hash128)1 << 64 | 0xab, text);
    assert_string_equal(text, "000000000000000100000000000000ab");
    free(x);
    layout_free(&one);
}

static void xxh64(void **state) {
    (void)state;
    assert_true(hash_bytes("", 0, 0) == 0xef46db3751d8e999u);
    assert_true(hash_bytes("a", 1, 0) == 0xd24ec4f1a98c6e5bu);
    assert_true(hash_bytes("abc", 3, 0) == 0x44bc2cf5ad770999u);
    const char *text = "The quick brown fox jumps over the lazy dog";
    assert_true(hash_bytes(text, strlen(text), 0) == 0x0b242d361fda71bcu);
    assert_true(hash_bytes(text, strlen(text), 1) != hash_bytes(text, strlen(text), 0));
    // Any flipped bit of blocks of every length up to three stripes.
    unsigned char block[100];
    for (int i = 0; i < 100; i++)
        block[i] = (unsigned char)(i * 37);
    for (size_t bytes = 1; bytes <= sizeof block; bytes++) {
        uint64_t hash = hash_bytes(block, bytes, 5);
        for (size_t bit = 0; bit < 8 * bytes; bit++) {
            block[bit / 8] ^= (unsigned char)(1 << bit % 8);
            assert_true(hash_bytes(block, bytes, 5) != hash);
            block[bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(does_not_depend_on_cuts),
        cmocka_unit_test(every_bit_counts),
        cmocka_unit_test(names_and_kinds_count),
        cmocka_unit_test(bits_are_balanced),
        cmocka_unit_test(golden),
        cmocka_unit_test(xxh64),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
