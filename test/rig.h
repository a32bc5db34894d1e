// rig: a model with its parameters, gradients and optimizer state in plain arrays, filled from a fixture: what zero/
// does in a run, for the tests that ask whether the model is right. A test is a function of a fixture and a dtype;
// rig_run_tests runs it for every fixture in every dtype.
#ifndef TEST_RIG_H
#define TEST_RIG_H

#include <math.h>

#include "test/fixture.h"

enum { RIG_MAX_UNITS = 8 };

typedef struct Rig {
    Device *device;
    Stream *stream;
    const Ops *ops;
    Model *model;
    ModelOptions options;
    int n_units;
    UnitSpec units[RIG_MAX_UNITS];
    void *params[RIG_MAX_UNITS];   // in the compute dtype
    float *grads[RIG_MAX_UNITS];   // this and the rest in fp32
    float *master[RIG_MAX_UNITS];  // fp32 runs: params
    float *m[RIG_MAX_UNITS], *v[RIG_MAX_UNITS];
    double *loss_sum;  // host
    float *staging;    // host, as long as the longest unit
} Rig;

static void *rig_alloc(Rig *r, MemoryCategory category, size_t bytes) {
    void *memory;
    assert_ok(device_alloc(r->device, category, "parity", bytes, &memory));
    return memory;
}

static void rig_open(Rig *r, ModelOptions options) {
    *r = (Rig){.options = options, .n_units = model_n_units(&options.config)};
    assert_in_range(r->n_units, 3, RIG_MAX_UNITS);
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
static double rig_micro_batch(Rig *r, const int32_t *tokens, const int32_t *targets, double scale, bool train,
                              bool accumulate) {
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

static ModelOptions rig_options(const Fixture *f, Dtype dtype) {
    return (ModelOptions){
        .config = f->config, .dtype = dtype, .batch = f->batch, .seq_len = f->seq_len, .training = true};
}

// |a-b|/|b| of tensor i; the key bias, where it is left out, is skipped (test_parity.c says why).
static double rig_error(const Fixture *f, int i, const float *a, const float *b, bool without_key_bias) {
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

// Every tensor's error is at most 1.5·bars[i] + bar; bars may be NULL. Prints how near the nearest one comes.
static void rig_check_tensors(const Fixture *f, const char *what, const float *a, const float *b, bool without_key_bias,
                              const double *bars, double bar) {
    double nearest = -1;
    int nearest_tensor = 0, n_bad = 0;
    for (int i = 0; i < f->n_tensors; i++) {
        double allowed = (bars ? 1.5 * bars[i] : 0) + bar, error = rig_error(f, i, a, b, without_key_bias);
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

// ---- every fixture in every dtype ----

typedef void (*RigTest)(const Fixture *f, Dtype dtype);

typedef struct RigCase {
    const char *fixture;
    RigTest test;
    Dtype dtype;
    char name[64];
} RigCase;

static void rig_run_case(void **state) {
    const RigCase *c = *state;
    Fixture f = fixture_open(c->fixture);
    c->test(&f, c->dtype);
    fixture_close(&f);
}

typedef struct RigKind {
    const char *name;
    RigTest test;
} RigKind;

enum { RIG_KINDS = 2, RIG_FIXTURES = 6, RIG_DTYPES = 3 };

static int rig_run_tests(const RigKind kinds[RIG_KINDS]) {
    static const char *const fixtures[RIG_FIXTURES] = {"gpt2_one_head", "gpt2_odd",   "gpt2_long_untied",
                                                       "llama_gqa",     "llama_tied", "llama_wide_heads"};
    static RigCase cases[RIG_KINDS * RIG_FIXTURES * RIG_DTYPES];
    static struct CMUnitTest tests[RIG_KINDS * RIG_FIXTURES * RIG_DTYPES];
    int n = 0;
    for (int k = 0; k < RIG_KINDS; k++)
        for (int i = 0; i < RIG_FIXTURES; i++)
            for (int d = 0; d < RIG_DTYPES; d++, n++) {
                cases[n] = (RigCase){.fixture = fixtures[i], .test = kinds[k].test, .dtype = (Dtype)d};
                snprintf(cases[n].name, sizeof cases[n].name, "%s %s %s", kinds[k].name, fixtures[i],
                         dtype_name((Dtype)d));
                tests[n] =
                    (struct CMUnitTest){.name = cases[n].name, .test_func = rig_run_case, .initial_state = &cases[n]};
            }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
