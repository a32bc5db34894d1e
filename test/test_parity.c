// The models against PyTorch: loss, every gradient, ten AdamW steps, and decoding, of the small models in
// test/fixtures, in fp32, bf16 and fp16.
//
// An error is |a-b|/|b| over a tensor. fp32: 1e-5 for the loss, 1e-4 for gradients, 1e-3 for the sum of ten updates.
// bf16 and fp16: 1.5 times PyTorch's own error in that dtype, which the fixture holds, and what its rounding may add.
//
// Key biases are left out of half-precision errors and of updates: softmax does not see a number added to all scores of
// a query, so the true gradient of a key bias is zero (with RoPE nearly zero, in the dimensions that hardly turn), what
// a run computes for it is rounding noise, and Adam turns noise of any size into full steps.
#include "test/rig.h"

// The most that the fixture's own rounding (15 and 12 significant bits) can add to an error.
#define GRADIENT_ROUNDING 0x1p-15
#define UPDATE_ROUNDING   0x1p-12

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

static void loss_and_gradients(const Fixture *f, Dtype dtype) {
    const FixtureErrors *torch = errors_of(f, dtype);
    int64_t len = f->starts[f->n_tensors];
    double rows = (double)f->batch * f->seq_len, loss_scale = torch ? torch->loss_scale : 1;
    float *gradients = malloc((size_t)len * 4);
    Rig r;
    rig_open(&r, rig_options(f, dtype));
    rig_load(&r, f, f->weights);
    double loss = rig_micro_batch(&r, f->tokens, f->targets, loss_scale / rows, true, false) / rows;
    rig_read(&r, f, r.grads, gradients);
    for (int64_t i = 0; i < len; i++)
        gradients[i] /= (float)loss_scale;
    check_loss(loss, f, torch ? 1.5 * torch->loss : 1e-5);
    rig_check_tensors(f, "gradient", gradients, f->gradients, torch != NULL, torch ? torch->gradients : NULL,
                      torch ? GRADIENT_ROUNDING : 1e-4);
    rig_close(&r);
    free(gradients);
}

// Step number `t` (from 1) of AdamW on the gradients that rig_micro_batch left.
static void rig_adamw(Rig *r, const Fixture *f, int t, double eps, double loss_scale, float *scratch) {
    double squares = 0;
    rig_read(r, f, r->grads, scratch);
    for (int64_t i = 0; i < f->starts[f->n_tensors]; i++)
        squares += (scratch[i] / loss_scale) * (scratch[i] / loss_scale);
    double factor = f->grad_clip > 0 ? fmin(1, f->grad_clip / (sqrt(squares) + 1e-6)) : 1;
    for (int u = 0; u < r->n_units; u++) {
        AdamwArgs a = {.len = r->units[u].len,
                       .master = r->master[u],
                       .param_dtype = r->options.dtype,
                       .grad = r->grads[u],
                       .grad_dtype = DTYPE_FP32,
                       .m = r->m[u],
                       .v = r->v[u],
                       .grad_divisor = (float)loss_scale,
                       .grad_factor = (float)factor,
                       .lr = (float)f->lr,
                       .beta1 = (float)f->beta1,
                       .beta2 = (float)f->beta2,
                       .eps = (float)eps,
                       .weight_decay = (float)f->weight_decay,
                       .bias_correction1 = (float)(1 - pow(f->beta1, t)),
                       .bias_correction2 = (float)(1 - pow(f->beta2, t)),
                       .kind = OPT_ADAMW,
                       .n_ranges = r->units[u].n_tensors};
        a.param = r->params[u] == r->master[u] ? NULL : r->params[u];
        for (int i = 0; i < a.n_ranges; i++) {  // a tensor's range takes the gap after it along
            a.range_end[i] = i + 1 < a.n_ranges ? r->units[u].tensors[i + 1].offset : a.len;
            a.range_decay[i] = r->units[u].tensors[i].decay;
        }
        r->ops->adamw(r->stream, &a);
    }
    assert_ok(stream_sync(r->stream));
}

static void ten_steps(const Fixture *f, Dtype dtype, bool smooth) {
    const FixtureErrors *torch = errors_of(f, dtype);
    int64_t len = f->starts[f->n_tensors], rows = (int64_t)f->batch * f->seq_len;
    double loss_scale = torch ? torch->loss_scale : 1;
    float *flat = malloc((size_t)len * 4);
    Rig r;
    rig_open(&r, rig_options(f, dtype));
    rig_load(&r, f, f->weights);
    for (int step = 0; step < f->steps; step++) {
        int64_t batch = step % 2 * rows;
        rig_micro_batch(&r, f->tokens + batch, f->targets + batch, loss_scale / (double)rows, true, false);
        rig_adamw(&r, f, step + 1, smooth ? f->eps_smooth : f->eps, loss_scale, flat);
    }
    rig_read(&r, f, r.master, flat);
    for (int64_t i = 0; i < len; i++)
        flat[i] -= f->weights[i];
    rig_check_tensors(f, smooth ? "update (smooth)" : "update", flat, smooth ? f->updates_smooth : f->updates, true,
                      torch ? torch->updates_smooth : NULL, torch ? UPDATE_ROUNDING : 1e-3);
    rig_close(&r);
    free(flat);
}

static void parity(const Fixture *f, Dtype dtype) {
    loss_and_gradients(f, dtype);
    ten_steps(f, dtype, true);
    if (dtype == DTYPE_FP32)  // in half precision Adam's usual eps makes this a lottery: dev/make_fixtures.py says why
        ten_steps(f, dtype, false);
}

// The logits that sampling sees, token by token from the KV cache, give PyTorch's loss.
static void decoding(const Fixture *f, Dtype dtype) {
    int64_t vocab = f->config.vocab_size;
    ModelOptions options = rig_options(f, dtype);
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

int main(void) {
    return rig_run_tests((RigKind[]){{"parity", parity}, {"decoding", decoding}});
}
