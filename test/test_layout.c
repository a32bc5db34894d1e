// Every element has one owner, whatever the number of ranks; the order of elements does not depend on it.
#include "test/check.h"
#include "test/toy_units.h"

static void make(Layout *layout, int n_ranks, int group, int rank) {
    UnitSpec units[TOY_UNITS];
    toy_units(units, 1);
    assert_ok(layout_from_units(units, TOY_UNITS, false, n_ranks, group, rank, layout));
}

static void every_element_has_one_owner(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 12, 13, 31, 64, 97, 256, 1021, 1024};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int n = sizes[k];
        for (int u = 0; u < TOY_UNITS; u++) {
            int64_t next = 0;  // shards in rank order are the unit, without holes
            for (int rank = 0; rank < n; rank++) {
                Layout layout;
                make(&layout, n, 0, rank);
                const UnitLayout *unit = &layout.units[u];
                assert_int_equal(layout.shard, rank);
                assert_int_equal(unit->shard_len % TENSOR_ALIGN, 0);
                assert_int_equal(layout.shard * unit->shard_len, next);
                next += unit->shard_len;
                if (rank == n - 1) {
                    assert_int_equal(next, unit->full_len);
                    assert_true(unit->full_len >= unit->spec.len);
                    assert_true(unit->full_len - unit->spec.len <
                                (int64_t)TENSOR_ALIGN * n);  // no more padding than needed
                }
                layout_free(&layout);
            }
        }
    }
}

static void offsets_and_totals(void **state) {
    (void)state;
    for (int n = 1; n <= 40; n++) {
        Layout layout;
        make(&layout, n, 0, n - 1);
        int64_t full = 0, shard = 0, largest = 0;
        for (int u = 0; u < TOY_UNITS; u++) {
            assert_int_equal(layout.units[u].full_offset, full);
            assert_int_equal(layout.units[u].shard_offset, shard);
            full += layout.units[u].full_len;
            shard += layout.units[u].shard_len;
            if (u > 0 && u < TOY_UNITS - 1 && layout.units[u].full_len > largest)
                largest = layout.units[u].full_len;
        }
        assert_int_equal(layout.full_len, full);
        assert_int_equal(layout.shard_len, shard);
        assert_int_equal(layout.full_len, layout.shard_len * n);
        assert_int_equal(layout.max_block_len, largest);
        assert_int_equal(layout.ends_len, layout.units[0].full_len);
        assert_int_equal(layout.n_params, 42 * 11 + 2 * (11 + 33 * 11 + 64) + 1);
        layout_free(&layout);
    }
}

static void tied_head_needs_both_ends(void **state) {
    (void)state;
    UnitSpec units[TOY_UNITS];
    toy_units(units, 1);
    Layout layout;
    assert_ok(layout_from_units(units, TOY_UNITS, true, 2, 0, 0, &layout));
    assert_int_equal(layout.ends_len, layout.units[0].full_len + layout.units[TOY_UNITS - 1].full_len);
    layout_free(&layout);
}

static void groups(void **state) {
    (void)state;
    for (int rank = 0; rank < 12; rank++) {
        Layout layout, plain;
        make(&layout, 12, 4, rank);
        make(&plain, 12, 0, rank);
        assert_int_equal(layout.shard, rank % 4);
        for (int u = 0; u < TOY_UNITS; u++) {  // a shard is three whole cuts of those that 12 ranks make
            assert_int_equal(layout.units[u].full_len, plain.units[u].full_len);
            assert_int_equal(layout.units[u].shard_len, 3 * plain.units[u].shard_len);
            assert_int_equal(layout.units[u].cut_len, plain.units[u].shard_len);
        }
        layout_free(&layout);
        layout_free(&plain);
    }
}

static void refusals(void **state) {
    (void)state;
    UnitSpec units[TOY_UNITS];
    toy_units(units, 1);
    Layout layout;
    assert_fails(layout_from_units(units, TOY_UNITS, false, 8, 3, 0, &layout), "--shard-group 3 does not divide");
    assert_fails(layout_from_units(units, TOY_UNITS, false, 8, 16, 0, &layout), "does not divide");
    assert_fails(layout_from_units(units, TOY_UNITS, false, 8, -2, 0, &layout), "does not divide");
    assert_fails(layout_from_units(units, TOY_UNITS, false, 8, 0, 8, &layout), "rank 8 of 8");
    assert_fails(layout_from_units(units, TOY_UNITS, false, 0, 0, 0, &layout), "of 0 ranks");
    assert_fails(layout_from_units(units, 1, false, 1, 0, 0, &layout), "1 units");
}

typedef struct Seen {
    const UnitSpec *unit;
    int64_t begin;  // of the visited range
    int *counts;    // a unit element each
    int64_t last;   // end of the previous visit, in the unit
} Seen;

static void see(void *context, const TensorSpec *tensor, int64_t in_tensor, int64_t in_range, int64_t count) {
    Seen *seen = context;
    assert_true(tensor >= seen->unit->tensors && tensor < seen->unit->tensors + seen->unit->n_tensors);
    assert_true(count > 0 && in_tensor >= 0 && in_tensor + count <= tensor->len);
    assert_int_equal(seen->begin + in_range, tensor->offset + in_tensor);
    assert_true(seen->begin + in_range >= seen->last);  // in order
    seen->last = seen->begin + in_range + count;
    for (int64_t i = 0; i < count; i++)
        seen->counts[tensor->offset + in_tensor + i]++;
}

static void visits_cover_tensors_once(void **state) {
    (void)state;
    for (int n = 1; n <= 17; n++) {
        for (int u = 0; u < TOY_UNITS; u++) {
            Layout layout;
            make(&layout, n, 0, 0);
            const UnitLayout *unit = &layout.units[u];
            int *counts = calloc((size_t)unit->full_len, sizeof *counts);
            for (int r = 0; r < n; r++) {
                Seen seen = {&unit->spec, r * unit->shard_len, counts, 0};
                layout_visit(unit, seen.begin, unit->shard_len, see, &seen);
            }
            for (int t = 0; t < unit->spec.n_tensors; t++)
                for (int64_t i = 0; i < unit->spec.tensors[t].len; i++)
                    counts[unit->spec.tensors[t].offset + i]--;
            for (int64_t i = 0; i < unit->full_len; i++)
                assert_int_equal(counts[i], 0);
            free(counts);
            layout_free(&layout);
        }
    }
}

static void visits_of_any_range(void **state) {
    (void)state;
    Layout layout;
    make(&layout, 1, 0, 0);
    const UnitLayout *unit = &layout.units[1];
    int *counts = calloc((size_t)unit->full_len, sizeof *counts);
    for (int64_t begin = 0; begin < unit->full_len; begin += 7) {
        for (int64_t len = 0; begin + len <= unit->full_len; len += 13) {
            memset(counts, 0, (size_t)unit->full_len * sizeof *counts);
            Seen seen = {&unit->spec, begin, counts, 0};
            layout_visit(unit, begin, len, see, &seen);
            for (int64_t i = 0; i < unit->full_len; i++)
                assert_true(counts[i] == 0 || (i >= begin && i < begin + len));
        }
    }
    free(counts);
    layout_free(&layout);
}

static void layout_of_a_model(void **state) {
    (void)state;
    ModelConfig config = {.arch = ARCH_GPT2,
                          .layers = 2,
                          .heads = 2,
                          .kv_heads = 2,
                          .channels = 32,
                          .head_dim = 16,
                          .ffn = 128,
                          .vocab_size = 101,
                          .max_seq_len = 16,
                          .tied = true};
    Layout layout;
    assert_ok(layout_make(&config, 3, 0, 1, &layout));
    assert_int_equal(layout.n_units, 4);
    assert_int_equal(layout.n_params, model_n_params(&config));
    assert_true(layout.tied);
    layout_free(&layout);
    assert_fails(layout_make(&config, 3, 2, 1, &layout), "does not divide");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_has_one_owner),
        cmocka_unit_test(offsets_and_totals),
        cmocka_unit_test(tied_head_needs_both_ends),
        cmocka_unit_test(groups),
        cmocka_unit_test(refusals),
        cmocka_unit_test(visits_cover_tensors_once),
        cmocka_unit_test(visits_of_any_range),
        cmocka_unit_test(layout_of_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
