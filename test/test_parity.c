// The models against PyTorch: loss, every gradient and ten AdamW steps of the small models in test/fixtures, in fp32, bf16
// and fp16, and what must not change a bit: recompute, the size of the head's chunks, being in evaluation.
//
// An error is |a-b|/|b| over a tensor. fp32: 1e-5 for the loss, 1e-4 for gradients, 1e-3 for the sum of ten updates. bf16 and
// fp16: 1.5 times PyTorch's own error in that dtype, which the fixture holds.
//
// Key biases are left out of half-precision errors and of updates: softmax does not see a number added to all scores of a
// query, so the true gradient of a key bias is zero (with RoPE nearly zero, in the dimensions that hardly turn), what a
// run computes for it is rounding noise, and Adam turns noise of any size into full steps.
#include <math.h>

#include "test/fixture.h"

static const char *const case_names[] = {"gpt2_one_head", "gpt2_odd",   "gpt2_long_untied",
                                         "llama_gqa",     "llama_tied", "llama_wide_heads"};
enum { N_CASES = sizeof case_names / sizeof *case_names, MAX_UNITS = 8 };

// A model with its parameters, gradients and optimizer state, in plain arrays a unit: what zero/ does in a run.
typedef struct Rig {
    Device *device;
    Stream *stream;
    const Ops *ops;
    Model *model;
    ModelOptions options;
    int n_units;
    UnitSpec units[MAX_UNITS];
    void *params[MAX_UNITS];                                                          // in the compute dtype
    float *grads[MAX_UNITS], *master[MAX_UNITS], *m[MAX_UNITS], *v[MAX_UNITS];        // fp32; master is params in fp32
    double *loss_sum;
    float *staging;                                                                   // host, the largest unit
} Rig;

static void *rig_alloc(Rig *r, MemoryCategory category, size_t bytes) {
    void *memory;
    assert_ok(device_alloc(r->device, category, "parity", bytes, &memory));
    return memory;
}

static void rig_open(Rig *r, ModelOptions options) {
    *r = (Rig){.options = options, .n_units = model_n_units(&options.config)};
    assert_in_range(r->n_units, 3, MAX_UNITS);
    assert_ok(device_open(&(DeviceOptions){.kind = DEVICE_CPU, .threads = 2}, &r->device));
    r->ops = device_ops(r->device);
    assert_ok(stream_create(r->device, STREAM_COMPUTE, "compute", &r->stream));
    assert_ok(model_open(r->device, r->stream, &options, &r->model));
    int64_t longest = 0;
    for (int u = 0; u < r->n_units; u++) {
        model_unit(&options.config, u, &r->units[u]);
        int64_t len = r->units[u].len;
        longest = len > longest ? len : longest;
        r->params[u] = rig_alloc(r, MEM_PARAMETERS, (size_t)len * dtype_bytes(options.dtype));
        r->grads[u] = rig_alloc(r, MEM_GRADIENTS, (size_t)len * 4);
        r->master[u] = options.dtype == DTYPE_FP32 ? r->params[u] : rig_alloc(r, MEM_OPTIMIZER, (size_t)len * 4);
        r->m[u] = rig_alloc(r, MEM_OPTIMIZER, (size_t)len * 4);
        r->v[u] = rig_alloc(r, MEM_OPTIMIZER, (size_t)len * 4);
    }
    assert_ok(device_host_alloc(r->device, "parity loss", sizeof *r->loss_sum, (void **)&r->loss_sum));
    assert_ok(device_host_alloc(r->device, "parity staging", (size_t)longest * 4, (void **)&r->staging));
    device_seal(r->device, true);  // from here on a model may not allocate
}

static void rig_close(Rig *r) {
    device_seal(r->device, false);
    for (int u = 0; u < r->n_units; u++) {
        device_free(r->device, r->params[u]);
        device_free(r->device, r->grads[u]);
        if (r->master[u] != r->params[u])
            device_free(r->device, r->master[u]);
        device_free(r->device, r->m[u]);
        device_free(r->device, r->v[u]);
    }
    device_host_free(r->device, r->loss_sum);
    device_host_free(r->device, r->staging);
    model_close(r->model);
    stream_destroy(r->stream);
    device_close(r->device);
}

// Units' fp32 arrays → one array in the fixture's order of tensors. Gaps between tensors must be zero.
static void rig_read(Rig *r, const Fixture *f, float *const arrays[], float *flat) {
    for (int u = 0; u < r->n_units; u++) {
        const UnitSpec *unit = &r->units[u];
        stream_copy(r->stream, r->staging, arrays[u], (size_t)unit->len * 4);
        assert_ok(stream_sync(r->stream));
        int64_t end = 0;
        for (int i = 0; i < unit->n_tensors; i++) {
            const TensorSpec *t = &unit->tensors[i];
            for (; end < t->offset; end++)
                assert_true(r->staging[end] == 0);
            memcpy(flat + f->starts[fixture_find(f, t)], r->staging + t->offset, (size_t)t->len * 4);
            end = t->offset + t->len;
        }
        for (; end < unit->len; end++)
            assert_true(r->staging[end] == 0);
    }
}

// The other way; `flat` NULL fills every tensor with NaN.
static void rig_write(Rig *r, const Fixture *f, float *const arrays[], const float *flat) {
    int n_tensors = 0;
    for (int u = 0; u < r->n_units; u++) {
        const UnitSpec *unit = &r->units[u];
        memset(r->staging, 0, (size_t)unit->len * 4);
        for (int i = 0; i < unit->n_tensors; i++, n_tensors++) {
            const TensorSpec *t = &unit->tensors[i];
            const float *from = flat ? flat + f->starts[fixture_find(f, t)] : NULL;
            for (int64_t k = 0; k < t->len; k++)
                r->staging[t->offset + k] = from ? from[k] : NAN;
        }
        stream_copy(r->stream, arrays[u], r->staging, (size_t)unit->len * 4);
        assert_ok(stream_sync(r->stream));
    }
    assert_int_equal(n_tensors, f->n_tensors);  // every tensor of the fixture has a place in the model
}

static void rig_load(Rig *r, const Fixture *f, const float *weights) {
    rig_write(r, f, r->master, weights);
    rig_write(r, f, r->grads, NULL);  // a first micro-batch that does not overwrite shows up as NaN
    for (int u = 0; u < r->n_units; u++) {
        if (r->params[u] != r->master[u])
            r->ops->convert(r->stream, r->params[u], r->options.dtype, r->master[u], DTYPE_FP32, r->units[u].len);
        stream_zero(r->stream, r->m[u], (size_t)r->units[u].len * 4);
        stream_zero(r->stream, r->v[u], (size_t)r->units[u].len * 4);
    }
}

static UnitParams rig_params(const Rig *r, int u) {
    bool tied = r->options.config.tied && u == r->n_units - 1;
    return (UnitParams){.unit = r->params[u], .tied = tied ? r->params[0] : NULL};
}

static UnitGrads rig_grads(const Rig *r, int u, bool accumulate) {
    bool tied = r->options.config.tied && u == r->n_units - 1;
    return (UnitGrads){.unit = r->grads[u], .tied = tied ? r->grads[0] : NULL, .accumulate = accumulate};
}

// One micro-batch. Returns the sum of the rows' losses; `train` also forms gradients.
static double rig_micro_batch(Rig *r, const int32_t *tokens, const int32_t *targets, double scale, bool train, bool accumulate) {
    int last = r->n_units - 1;
    model_set_batch(r->model, tokens, targets);
    for (int u = 0; u < last; u++)
        model_forward(r->model, u, rig_params(r, u));
    UnitGrads head = rig_grads(r, last, accumulate);
    model_loss(r->model, rig_params(r, last), train ? &head : NULL, (float)scale, r->loss_sum);
    for (int u = last - 1; train && u >= 0; u--)
        model_backward(r->model, u, rig_params(r, u), rig_grads(r, u, accumulate));
    assert_ok(stream_sync(r->stream));
    return *r->loss_sum;
}

// Step number `t` (from 1) of AdamW on the gradients that rig_micro_batch left.
static void rig_adamw(Rig *r, const Fixture *f, int t, double eps, double loss_scale, float *scratch) {
    double squares = 0;
    rig_read(r, f, r->grads, scratch);
    for (int64_t i = 0; i < f->starts[f->n_tensors]; i++)
        squares += (scratch[i] / loss_scale) * (scratch[i] / loss_scale);
    double factor = f->grad_clip > 0 ? fmin(1, f->grad_clip / (sqrt(squares) + 1e-6)) : 1;
    for (int u = 0; u < r->n_units; u++) {
        AdamwArgs a = {.len = r->units[u].len, .master = r->master[u], .param_dtype = r->options.dtype, .grad = r->grads[u],
                       .grad_dtype = DTYPE_FP32, .m = r->m[u], .v = r->v[u], .grad_divisor = (float)loss_scale,
                       .grad_factor = (float)factor, .lr = (float)f->lr, .beta1 = (float)f->beta1, .beta2 = (float)f->beta2,
                       .eps = (float)eps, .weight_decay = (float)f->weight_decay,
                       .bias_correction1 = (float)(1 - pow(f->beta1, t)), .bias_correction2 = (float)(1 - pow(f->beta2, t)),
                       .kind = OPT_ADAMW, .n_ranges = r->units[u].n_tensors};
        a.param = r->params[u] == r->master[u] ? NULL : r->params[u];
        for (int i = 0; i < a.n_ranges; i++) {  // a tensor's range takes the gap after it along
            a.range_end[i] = i + 1 < a.n_ranges ? r->units[u].tensors[i + 1].offset : a.len;
            a.range_decay[i] = r->units[u].tensors[i].decay;
        }
        r->ops->adamw(r->stream, &a);
    }
    assert_ok(stream_sync(r->stream));
}

static ModelOptions options_of(const Fixture *f, Dtype dtype) {
    return (ModelOptions){.config = f->config, .dtype = dtype, .batch = f->batch, .seq_len = f->seq_len, .training = true};
}

// |a-b|/|b| of tensor i.
static double tensor_error(const Fixture *f, int i, const float *a, const float *b, bool without_key_bias) {
    int64_t skip = -1, skip_end = -1, head_dim = f->config.head_dim;
    size_t name_len = strlen(f->names[i]);
    if (without_key_bias && name_len > 8 && strcmp(f->names[i] + name_len - 8, "qkv.bias") == 0) {
        skip = f->config.heads * head_dim;
        skip_end = skip + f->config.kv_heads * head_dim;
    }
    double difference = 0, square = 0;
    for (int64_t k = 0; k < f->starts[i + 1] - f->starts[i]; k++) {
        if (k >= skip && k < skip_end)
            continue;
        double x = a[f->starts[i] + k], y = b[f->starts[i] + k];
        difference += (x - y) * (x - y);
        square += y * y;
    }
    return sqrt(difference / square);  // NaN where `a` has one, and then no comparison below holds
}

// Every tensor's error is at most bars[i], or `bar` where bars is NULL. Prints how near the nearest one comes.
static void check_tensors(const Fixture *f, const char *what, const float *a, const float *b, bool without_key_bias,
                          const double *bars, double bar) {
    double nearest = -1;
    int nearest_tensor = 0, n_bad = 0;
    for (int i = 0; i < f->n_tensors; i++) {
        double allowed = bars ? 1.5 * bars[i] : bar, error = tensor_error(f, i, a, b, without_key_bias);
        if (!(error <= allowed)) {
            print_error("%s of %s: error %.3g, allowed %.3g\n", what, f->names[i], error, allowed);
            n_bad++;
        }
        if (error / allowed > nearest) {
            nearest = error / allowed;
            nearest_tensor = i;
        }
    }
    print_message("    %s: at most %.2f of what is allowed (%s)\n", what, nearest, f->names[nearest_tensor]);
    assert_int_equal(n_bad, 0);
}

static void check_loss(double loss, const Fixture *f, double allowed) {
    double error = fabs(loss - f->loss) / f->loss;
    print_message("    loss: %.2f of what is allowed\n", error / allowed);
    if (!(error <= allowed)) {
        print_error("loss %.8f, PyTorch %.8f: error %.3g, allowed %.3g\n", loss, f->loss, error, allowed);
        fail_test();
    }
}

static const FixtureErrors *errors_of(const Fixture *f, Dtype dtype) {
    return dtype == DTYPE_BF16 ? &f->bf16 : dtype == DTYPE_FP16 ? &f->fp16 : NULL;
}

// ---- against PyTorch ----

static void loss_and_gradients(const Fixture *f, Dtype dtype) {
    const FixtureErrors *torch = errors_of(f, dtype);
    int64_t len = f->starts[f->n_tensors];
    double rows = (double)f->batch * f->seq_len, loss_scale = torch ? torch->loss_scale : 1;
    float *gradients = malloc((size_t)len * 4);
    Rig r;
    rig_open(&r, options_of(f, dtype));
    rig_load(&r, f, f->weights);
    double loss = rig_micro_batch(&r, f->tokens, f->targets, loss_scale / rows, true, false) / rows;
    rig_read(&r, f, r.grads, gradients);
    for (int64_t i = 0; i < len; i++)
        gradients[i] /= (float)loss_scale;
    check_loss(loss, f, torch ? 1.5 * torch->loss : 1e-5);
    check_tensors(f, "gradient", gradients, f->gradients, torch != NULL, torch ? torch->gradients : NULL, 1e-4);
    rig_close(&r);
    free(gradients);
}

static void ten_steps(const Fixture *f, Dtype dtype, bool smooth) {
    const FixtureErrors *torch = errors_of(f, dtype);
    int64_t len = f->starts[f->n_tensors], rows = (int64_t)f->batch * f->seq_len;
    double loss_scale = torch ? torch->loss_scale : 1;
    float *flat = malloc((size_t)len * 4);
    Rig r;
    rig_open(&r, options_of(f, dtype));
    rig_load(&r, f, f->weights);
    for (int step = 0; step < f->steps; step++) {
        int64_t batch = step % 2 * rows;
        rig_micro_batch(&r, f->tokens + batch, f->targets + batch, loss_scale / (double)rows, true, false);
        rig_adamw(&r, f, step + 1, smooth ? f->eps_smooth : f->eps, loss_scale, flat);
    }
    rig_read(&r, f, r.master, flat);
    for (int64_t i = 0; i < len; i++)
        flat[i] -= f->weights[i];
    check_tensors(f, smooth ? "update (smooth)" : "update", flat, smooth ? f->updates_smooth : f->updates, true,
                  torch ? torch->updates_smooth : NULL, 1e-3);
    rig_close(&r);
    free(flat);
}

static void parity(const Fixture *f, Dtype dtype) {
    loss_and_gradients(f, dtype);
    ten_steps(f, dtype, true);
    if (dtype == DTYPE_FP32)  // in half precision Adam's usual eps makes this a lottery: dev/make_fixtures.py says why
        ten_steps(f, dtype, false);
}

// ---- what changes no bit ----

static void same_bits(const Fixture *f, Dtype dtype) {
    int rows = f->batch * f->seq_len;
    int64_t len = f->starts[f->n_tensors];
    const struct {
        Recompute recompute;
        int64_t head_chunk;
    } variants[] = {{RECOMPUTE_NONE, 0},        {RECOMPUTE_SELECTIVE, 0}, {RECOMPUTE_FULL, 0},           {RECOMPUTE_NONE, 1},
                    {RECOMPUTE_SELECTIVE, 5},   {RECOMPUTE_FULL, 16},     {RECOMPUTE_NONE, rows / 2 + 1}, {RECOMPUTE_NONE, rows - 1},
                    {RECOMPUTE_NONE, rows + 3}};
    float *first = malloc((size_t)len * 4), *gradients = malloc((size_t)len * 4);
    double first_loss = 0;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        ModelOptions options = options_of(f, dtype);
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
                if (memcmp(gradients + f->starts[t], first + f->starts[t], (size_t)(f->starts[t + 1] - f->starts[t]) * 4))
                    print_error("gradient of %s differs by %.3g\n", f->names[t], tensor_error(f, t, gradients, first, false));
            print_error("recompute %d, head chunk %lld: not the bits of recompute none and the default chunk (loss %.17g, was %.17g)\n",
                        (int)variants[i].recompute, (long long)variants[i].head_chunk, loss, first_loss);
            fail_test();
        }
        if (i == 0)  // without gradients, as in evaluation
            assert_true(rig_micro_batch(&r, f->tokens, f->targets, 1, false, false) == first_loss);
        rig_close(&r);
    }
    ModelOptions forward_only = options_of(f, dtype);
    forward_only.training = false;
    Rig r;
    rig_open(&r, forward_only);
    rig_load(&r, f, f->weights);
    assert_true(rig_micro_batch(&r, f->tokens, f->targets, 1, false, false) == first_loss);
    rig_close(&r);
    free(first);
    free(gradients);
}

// ---- micro-batches ----

// Gradients of both batches: as two micro-batches, and as one of twice the size. Then twice the same one, and one whose second half
// has no valid targets.
static void accumulation(const Fixture *f, Dtype dtype) {
    // The rows' arithmetic is the same; sums over rows are taken in another order, which may turn a rounding or two.
    double tolerance = dtype == DTYPE_FP32 ? 1e-5 : dtype == DTYPE_BF16 ? 0x1p-9 : 0x1p-12;
    int64_t len = f->starts[f->n_tensors], rows = (int64_t)f->batch * f->seq_len;
    float *two = malloc((size_t)len * 4), *other = malloc((size_t)len * 4);
    Rig r, wide;
    rig_open(&r, options_of(f, dtype));
    rig_load(&r, f, f->weights);
    double loss = rig_micro_batch(&r, f->tokens, f->targets, 0.5 / (double)rows, true, false);
    double both = loss + rig_micro_batch(&r, f->tokens + rows, f->targets + rows, 0.5 / (double)rows, true, true);
    rig_read(&r, f, r.grads, two);

    ModelOptions options = options_of(f, dtype);
    options.batch *= 2;
    rig_open(&wide, options);
    rig_load(&wide, f, f->weights);
    assert_true(fabs(rig_micro_batch(&wide, f->tokens, f->targets, 0.5 / (double)rows, true, false) / both - 1) < tolerance);
    rig_read(&wide, f, wide.grads, other);
    check_tensors(f, "two micro-batches", other, two, true, NULL, tolerance);

    rig_micro_batch(&r, f->tokens, f->targets, 1 / (double)rows, true, false);
    rig_read(&r, f, r.grads, other);
    rig_micro_batch(&r, f->tokens, f->targets, 1 / (double)rows, true, true);
    rig_read(&r, f, r.grads, two);
    for (int64_t i = 0; i < len; i++)
        two[i] /= 2;
    check_tensors(f, "the same micro-batch twice", two, other, true, NULL, 1e-6);

    int32_t *targets = malloc(2 * (size_t)rows * sizeof *targets);
    memcpy(targets, f->targets, (size_t)rows * sizeof *targets);
    for (int64_t i = rows; i < 2 * rows; i++)
        targets[i] = -1;
    assert_true(fabs(rig_micro_batch(&wide, f->tokens, targets, 1 / (double)rows, true, false) / loss - 1) < tolerance);
    rig_read(&wide, f, wide.grads, two);
    check_tensors(f, "half of the targets not valid", two, other, true, NULL, tolerance);
    free(targets);
    rig_close(&wide);
    rig_close(&r);
    free(two);
    free(other);
}

// ---- one token at a time ----

// The logits that sampling sees, token by token from the KV cache, give PyTorch's loss.
static void decoding(const Fixture *f, Dtype dtype) {
    int64_t vocab = f->config.vocab_size;
    ModelOptions options = options_of(f, dtype);
    options.training = false;
    options.sampling = true;
    Rig r;
    rig_open(&r, options);
    rig_load(&r, f, f->weights);
    float *logits;
    device_seal(r.device, false);
    assert_ok(device_host_alloc(r.device, "parity logits", (size_t)vocab * 4, (void **)&logits));
    device_seal(r.device, true);
    double loss = 0;
    for (int row = 0; row < f->batch * f->seq_len; row++) {
        for (int u = 0; u < r.n_units - 1; u++)
            model_decode(r.model, u, rig_params(&r, u), f->tokens[row], row % f->seq_len);
        model_decode_logits(r.model, rig_params(&r, r.n_units - 1), logits);
        assert_ok(stream_sync(r.stream));
        double sum = 0;
        for (int64_t i = 0; i < vocab; i++)
            sum += exp((double)logits[i]);
        loss += log(sum) - (double)logits[f->targets[row]];
    }
    const FixtureErrors *torch = errors_of(f, dtype);
    check_loss(loss / (f->batch * f->seq_len), f, torch ? 1.5 * torch->loss : 1e-5);
    device_host_free(r.device, logits);
    rig_close(&r);
}

// ---- every case in every dtype ----

typedef struct Check {
    const char *fixture;
    void (*check)(const Fixture *f, Dtype dtype);
    Dtype dtype;
    char name[64];
} Check;

static void run_check(void **state) {
    const Check *c = *state;
    Fixture f = fixture_open(c->fixture);
    c->check(&f, c->dtype);
    fixture_close(&f);
}

int main(void) {
    static const struct {
        const char *name;
        void (*check)(const Fixture *f, Dtype dtype);
    } kinds[] = {{"parity", parity}, {"same_bits", same_bits}, {"accumulation", accumulation}, {"decoding", decoding}};
    enum { N_KINDS = sizeof kinds / sizeof *kinds, N_DTYPES = 3 };
    static Check checks[N_KINDS * N_DTYPES * N_CASES];
    static struct CMUnitTest tests[N_KINDS * N_DTYPES * N_CASES];
    int n = 0;
    for (int k = 0; k < N_KINDS; k++)
        for (int i = 0; i < N_CASES; i++)
            for (int d = 0; d < N_DTYPES; d++, n++) {
                checks[n] = (Check){.fixture = case_names[i], .check = kinds[k].check, .dtype = (Dtype)d};
                snprintf(checks[n].name, sizeof checks[n].name, "%s %s %s", kinds[k].name, case_names[i], dtype_name((Dtype)d));
                tests[n] = (struct CMUnitTest){.name = checks[n].name, .test_func = run_check, .initial_state = &checks[n]};
            }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
