// What must not change a model's numbers. Not a bit: recompute, the size of the head's chunks, being in evaluation. Not
// by more than the order of a sum: micro-batches instead of one batch, rows without a valid target.
#include "test/rig.h"

static void same_bits(const Fixture *f, Dtype dtype) {
    int rows = f->batch * f->seq_len;
    int64_t len = f->starts[f->n_tensors];
    const struct {
        Recompute recompute;
        int64_t head_chunk;
    } variants[] = {{RECOMPUTE_NONE, 0},
                    {RECOMPUTE_SELECTIVE, 0},
                    {RECOMPUTE_FULL, 0},
                    {RECOMPUTE_NONE, 1},
                    {RECOMPUTE_SELECTIVE, 5},
                    {RECOMPUTE_FULL, 16},
                    {RECOMPUTE_NONE, rows / 2 + 1},
                    {RECOMPUTE_NONE, rows - 1},
                    {RECOMPUTE_NONE, rows + 3}};
    float *first = malloc((size_t)len * 4), *gradients = malloc((size_t)len * 4);
    double first_loss = 0;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        ModelOptions options = rig_options(f, dtype);
        options.recompute = variants[i].recompute;
        options.head_chunk = variants[i].head_chunk;
        Rig r;
        rig_open(&r, options);
        rig_load(&r, f, f->weights);
        double loss = rig_micro_batch(&r, f->tokens, f->targets, 1.0 / rows, true, false);
        rig_read(&r, f, r.grads, i ? gradients : first);
        first_loss = i ? first_loss : loss;
        bool same = loss == first_loss && (i == 0 || memcmp(gradients, first, (size_t)len * 4) == 0);
        if (!same) {
            for (int t = 0; t < f->n_tensors; t++)
                if (memcmp(gradients + f->starts[t], first + f->starts[t],
                           (size_t)(f->starts[t + 1] - f->starts[t]) * 4))
                    print_error("gradient of %s differs by %.3g\n", f->names[t],
                                rig_error(f, t, gradients, first, false));
            print_error("recompute %d, head chunk %lld: not the bits of recompute none with the default chunk\n",
                        (int)variants[i].recompute, (long long)variants[i].head_chunk);
            print_error("loss %.17g, was %.17g\n", loss, first_loss);
            fail_test();
        }
        if (i == 0)  // without gradients, as in evaluation
            assert_true(rig_micro_batch(&r, f->tokens, f->targets, 1, false, false) == first_loss);
        rig_close(&r);
    }
    ModelOptions forward_only = rig_options(f, dtype);
    forward_only.training = false;
    Rig r;
    rig_open(&r, forward_only);
    rig_load(&r, f, f->weights);
    assert_true(rig_micro_batch(&r, f->tokens, f->targets, 1, false, false) == first_loss);
    rig_close(&r);
    free(first);
    free(gradients);
}

// Gradients of both batches: as two micro-batches, and as one of twice the size. Then twice the same one, and one whose
// second half has no valid targets.
static void accumulation(const Fixture *f, Dtype dtype) {
    // The rows' arithmetic is the same; sums over rows are taken in another order, which may turn a rounding or two.
    double tolerance = dtype == DTYPE_FP32 ? 1e-5 : dtype == DTYPE_BF16 ? 0x1p-9 : 0x1p-12;
    int64_t len = f->starts[f->n_tensors], rows = (int64_t)f->batch * f->seq_len;
    float *two = malloc((size_t)len * 4), *other = malloc((size_t)len * 4);
    Rig r, wide;
    rig_open(&r, rig_options(f, dtype));
    rig_load(&r, f, f->weights);
    double loss = rig_micro_batch(&r, f->tokens, f->targets, 0.5 / (double)rows, true, false);
    double both = loss + rig_micro_batch(&r, f->tokens + rows, f->targets + rows, 0.5 / (double)rows, true, true);
    rig_read(&r, f, r.grads, two);

    ModelOptions options = rig_options(f, dtype);
    options.batch *= 2;
    rig_open(&wide, options);
    rig_load(&wide, f, f->weights);
    assert_true(fabs(rig_micro_batch(&wide, f->tokens, f->targets, 0.5 / (double)rows, true, false) / both - 1) <
                tolerance);
    rig_read(&wide, f, wide.grads, other);
    rig_check_tensors(f, "two micro-batches", other, two, true, NULL, tolerance);

    rig_micro_batch(&r, f->tokens, f->targets, 1 / (double)rows, true, false);
    rig_read(&r, f, r.grads, other);
    rig_micro_batch(&r, f->tokens, f->targets, 1 / (double)rows, true, true);
    rig_read(&r, f, r.grads, two);
    for (int64_t i = 0; i < len; i++)
        two[i] /= 2;
    rig_check_tensors(f, "the same micro-batch twice", two, other, true, NULL, 1e-6);

    int32_t *targets = malloc(2 * (size_t)rows * sizeof *targets);
    memcpy(targets, f->targets, (size_t)rows * sizeof *targets);
    for (int64_t i = rows; i < 2 * rows; i++)
        targets[i] = -1;
    assert_true(fabs(rig_micro_batch(&wide, f->tokens, targets, 1 / (double)rows, true, false) / loss - 1) < tolerance);
    rig_read(&wide, f, wide.grads, two);
    rig_check_tensors(f, "half of the targets not valid", two, other, true, NULL, tolerance);
    free(targets);
    rig_close(&wide);
    rig_close(&r);
    free(two);
    free(other);
}

int main(void) {
    return rig_run_tests((RigKind[]){{"same bits", same_bits}, {"accumulation", accumulation}});
}
