// fixture: read a file of test/fixtures, written by dev/make_fixtures.py (its first lines say what is in one).
#ifndef TEST_FIXTURE_H
#define TEST_FIXTURE_H

#include <hdf5.h>

#include "llm/model.h"
#include "test/check.h"

enum { FIXTURE_MAX_TENSORS = 64, FIXTURE_NAME_BYTES = 40 };

// PyTorch's own errors in a half-precision dtype against its fp32 run.
typedef struct FixtureErrors {
    double loss, loss_scale;
    double *gradients, *updates_smooth;  // (n_tensors)
} FixtureErrors;

typedef struct Fixture {
    ModelConfig config;
    int batch, seq_len, steps;
    double loss, lr, beta1, beta2, eps, eps_smooth, weight_decay, grad_clip;
    int n_tensors;
    char names[FIXTURE_MAX_TENSORS][FIXTURE_NAME_BYTES];
    int64_t shapes[FIXTURE_MAX_TENSORS][2];   // shape[1] == 0: one dimension
    int64_t starts[FIXTURE_MAX_TENSORS + 1];  // of a tensor in the arrays below
    float *weights, *gradients, *updates, *updates_smooth;
    int32_t *tokens, *targets;  // (2, B, T)
    FixtureErrors bf16, fp16;
} Fixture;

static double fixture_number(hid_t file, const char *name) {
    double value = 0;
    hid_t attribute = H5Aopen(file, name, H5P_DEFAULT);
    if (attribute < 0 || H5Aread(attribute, H5T_NATIVE_DOUBLE, &value) < 0 || H5Aclose(attribute) < 0) {
        print_error("fixture: cannot read attribute %s\n", name);
        fail_test();
    }
    return value;
}

// A whole dataset of `len` elements; NULL `memory` allocates it.
static void *fixture_array(hid_t file, const char *name, hid_t type, int64_t len, void *memory) {
    hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT), space = H5Dget_space(dataset);
    if (dataset < 0 || H5Sget_simple_extent_npoints(space) != len) {
        print_error("fixture: dataset %s does not have %lld elements\n", name, (long long)len);
        fail_test();
    }
    if (!memory)
        memory = calloc((size_t)len, H5Tget_size(type));
    assert_non_null(memory);
    assert_true(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, memory) >= 0);
    H5Sclose(space);
    H5Dclose(dataset);
    return memory;
}

static FixtureErrors fixture_errors(hid_t file, const char *dtype, int n_tensors) {
    char names[4][40];
    const char *parts[4] = {"loss", "loss_scale", "gradients", "updates_smooth"};
    for (int i = 0; i < 4; i++)
        snprintf(names[i], sizeof names[i], "%s_%s", dtype, parts[i]);
    return (FixtureErrors){.loss = fixture_number(file, names[0]),
                           .loss_scale = fixture_number(file, names[1]),
                           .gradients = fixture_array(file, names[2], H5T_NATIVE_DOUBLE, n_tensors, NULL),
                           .updates_smooth = fixture_array(file, names[3], H5T_NATIVE_DOUBLE, n_tensors, NULL)};
}

static Fixture fixture_open(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "test/fixtures/%s.h5", name);
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    if (file < 0) {
        print_error("cannot open %s: run this test from the root of the repository\n", path);
        fail_test();
    }
    Fixture f = {0};
    f.config = (ModelConfig){
        .arch = fixture_number(file, "llama") != 0 ? ARCH_LLAMA : ARCH_GPT2,
        .layers = (int)fixture_number(file, "layers"),
        .heads = (int)fixture_number(file, "heads"),
        .kv_heads = (int)fixture_number(file, "kv_heads"),
        .channels = (int)fixture_number(file, "channels"),
        .head_dim = (int)fixture_number(file, "head_dim"),
        .ffn = (int)fixture_number(file, "ffn"),
        .vocab_size = (int64_t)fixture_number(file, "vocab_size"),
        .max_seq_len = (int)fixture_number(file, "max_seq_len"),
        .tied = fixture_number(file, "tied") != 0,
        .qkv_bias = fixture_number(file, "qkv_bias") != 0,
        .norm_eps = (float)fixture_number(file, "norm_eps"),
        .rope_theta = (float)fixture_number(file, "rope_theta"),
        .rope_llama3 = fixture_number(file, "rope_llama3") != 0,
        .init_std = 0.02f,
    };
    if (f.config.rope_llama3) {
        f.config.rope_factor = (float)fixture_number(file, "rope_factor");
        f.config.rope_low_freq = (float)fixture_number(file, "rope_low_freq");
        f.config.rope_high_freq = (float)fixture_number(file, "rope_high_freq");
        f.config.rope_original_len = (int)fixture_number(file, "rope_original_len");
    }
    f.batch = (int)fixture_number(file, "batch");
    f.seq_len = (int)fixture_number(file, "seq_len");
    f.steps = (int)fixture_number(file, "steps");
    f.loss = fixture_number(file, "loss");
    f.lr = fixture_number(file, "lr");
    f.beta1 = fixture_number(file, "beta1");
    f.beta2 = fixture_number(file, "beta2");
    f.eps = fixture_number(file, "eps");
    f.eps_smooth = fixture_number(file, "eps_smooth");
    f.weight_decay = fixture_number(file, "weight_decay");
    f.grad_clip = fixture_number(file, "grad_clip");

    hid_t names = H5Dopen2(file, "names", H5P_DEFAULT), space = H5Dget_space(names);
    f.n_tensors = (int)H5Sget_simple_extent_npoints(space);
    assert_in_range(f.n_tensors, 1, FIXTURE_MAX_TENSORS);
    H5Sclose(space);
    H5Dclose(names);
    hid_t text = H5Tcopy(H5T_C_S1);
    H5Tset_size(text, FIXTURE_NAME_BYTES);
    fixture_array(file, "names", text, f.n_tensors, f.names);
    H5Tclose(text);
    fixture_array(file, "shapes", H5T_NATIVE_INT64, 2 * f.n_tensors, f.shapes);
    for (int i = 0; i < f.n_tensors; i++)
        f.starts[i + 1] = f.starts[i] + f.shapes[i][0] * (f.shapes[i][1] ? f.shapes[i][1] : 1);

    int64_t len = f.starts[f.n_tensors], rows = (int64_t)f.batch * f.seq_len;
    f.weights = fixture_array(file, "weights", H5T_NATIVE_FLOAT, len, NULL);
    f.gradients = fixture_array(file, "gradients", H5T_NATIVE_FLOAT, len, NULL);
    f.updates = fixture_array(file, "updates", H5T_NATIVE_FLOAT, len, NULL);
    f.updates_smooth = fixture_array(file, "updates_smooth", H5T_NATIVE_FLOAT, len, NULL);
    f.tokens = fixture_array(file, "tokens", H5T_NATIVE_INT32, 2 * rows, NULL);
    f.targets = fixture_array(file, "targets", H5T_NATIVE_INT32, 2 * rows, NULL);
    f.bf16 = fixture_errors(file, "bf16", f.n_tensors);
    f.fp16 = fixture_errors(file, "fp16", f.n_tensors);
    H5Fclose(file);
    return f;
}

static void fixture_close(Fixture *f) {
    void *arrays[] = {
        f->weights,        f->gradients,           f->updates,        f->updates_smooth,     f->tokens, f->targets,
        f->bf16.gradients, f->bf16.updates_smooth, f->fp16.gradients, f->fp16.updates_smooth};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

// Which tensor of the fixture this is; fails the test when there is none of that name and shape.
static int fixture_find(const Fixture *f, const TensorSpec *tensor) {
    for (int i = 0; i < f->n_tensors; i++)
        if (strcmp(f->names[i], tensor->name) == 0) {
            assert_int_equal(tensor->n_dims, f->shapes[i][1] ? 2 : 1);
            assert_int_equal(tensor->shape[0], f->shapes[i][0]);
            assert_int_equal(tensor->len, f->starts[i + 1] - f->starts[i]);
            return i;
        }
    print_error("the fixture has no tensor %s\n", tensor->name);
    fail_test();
    return -1;
}

#endif
