// test_ops: one table of operations drives all checks of llm/ops.h, on any device: against references in double
// precision, the references against finite differences, gradients accumulated twice, bits against the number of
// threads, and timing.
//
//     test_ops                  check every row, then again with lower instruction sets (ZERO_ISA)
//     test_ops [--threads N] --time [NAME]    time the TIMED rows (of the kinds whose name contains NAME)
//     test_ops --device cuda    on another device
//
// Everything reaches the device through device_alloc and stream_copy. Results, the gaps between rows and a guard behind
// each tensor are poisoned (all bits set, a NaN in every type), so what is not written, or written outside, shows.
#include "test/check.h"

#include <sys/wait.h>
#include <time.h>

#include "llm/adamw.h"
#include "llm/device.h"
#include "test/ops_kinds_matmul.h"
#include "test/ops_run.h"

// ---- the table ----
static const Row rows[] = {
    {&embedding, {2, 7, 24, 13, 9}},
    {&embedding, {3, 5, 33, 40, 5}, NO_POSITIONS},
    {&embedding, {1, 4, 70, 97, 16, 3}, FORWARD_ONLY},
    {&embedding, {4, 16, 1040, 50, 16}},
    {&norm, {7, 24}},
    {&norm, {7, 24}, RMS},
    {&norm, {1, 1}, RMS, .tolerance = 1e-2},  // 1 - x̂² cancels to eps
    {&norm, {13, 97}, RESIDUAL},
    {&norm, {5, 130}, RMS | RESIDUAL | IN_PLACE},
    {&norm, {131, 64}, RESIDUAL | IN_PLACE},
    {&norm, {600, 48}, RMS, .tolerance = 1e-5},
    {&norm, {70, 264}, RESIDUAL},
    {&norm, {3, 8208}, RESIDUAL, .tolerance = 1e-5},
    {&rope, {2, 5, 3, 1, 8, 0}},
    {&rope, {1, 7, 2, 2, 6, 4}},
    {&rope, {2, 3, 4, 2, 64, 0}},
    {&rope, {1, 3, 1, 1, 44, 2}},
    {&gelu, {1, 1}},
    {&gelu, {17, 59}},
    {&gelu, {600, 40}, IN_PLACE},
    {&swiglu, {5, 24}},
    {&swiglu, {3, 97}},
    {&swiglu, {64, 200}},
    {&cross_entropy, {9, 97, 97, 97}},
    {&cross_entropy, {5, 50, 64, 72}},
    {&cross_entropy, {6, 97, 112, 0}, IN_PLACE},
    {&cross_entropy, {4, 3000, 3008, 0}, IN_PLACE},
    {&cross_entropy, {1, 1, 1, 1}},
    {&linear, {7, 24, 33, 33}},
    {&linear, {5, 16, 97, 128}, LOGITS},
    {&linear, {13, 40, 24, 24}, BIAS},
    {&linear, {13, 40, 24, 24}, BIAS | RESIDUAL},
    {&linear, {64, 128, 96, 96}, BIAS | RESIDUAL | IN_PLACE},
    {&linear, {1, 31, 65, 65}},
    {&attention, {2, 13, 4, 4, 8}},
    {&attention, {1, 37, 6, 2, 16}},
    {&attention, {3, 1, 1, 1, 24}},
    {&attention, {1, 70, 3, 1, 64}},
    {&attention, {1, 131, 2, 2, 20}},
    {&decode, {1, 9, 4, 2, 8, 12}},
    {&decode, {1, 33, 3, 3, 64, 33}},
    {&convert, {1001}, .other = DTYPE_FP32},
    {&convert, {1001}, .other = DTYPE_BF16},
    {&convert, {70001}, .other = DTYPE_FP16},
    {&add, {1001}, .other = DTYPE_FP32},
    {&add, {70001}, .other = DTYPE_BF16},
    {&add, {15}, .other = DTYPE_FP16},
    {&total, {1}},
    {&total, {9001}},
    {&sumsq, {1}},
    {&sumsq, {4095}},
    {&sumsq, {50001}},
    {&adamw, {3}, .other = DTYPE_FP32},
    {&adamw, {5003}, .other = DTYPE_FP32},
    {&adamw, {5003}, .other = DTYPE_BF16},
    {&adamw, {5003}, ADAM, .other = DTYPE_FP16},
    {&adamw, {5003}, SGD, .other = DTYPE_FP32},
    // GPT-2 124M at micro-batch 4, T = 256; the head in chunks of 256 rows
    {&embedding, {4, 256, 768, 50257, 1024}, TIMED},
    {&norm, {1024, 768}, TIMED | RESIDUAL | IN_PLACE},
    {&norm, {1024, 768}, TIMED | RMS},
    {&norm, {32768, 768}, TIMED | RESIDUAL | IN_PLACE},  // beyond a GPU's caches, as the next of this size
    {&rope, {4, 256, 12, 12, 64, 0}, TIMED},
    {&gelu, {1024, 3072}, TIMED | IN_PLACE},
    {&gelu, {32768, 3072}, TIMED | IN_PLACE},
    {&swiglu, {1024, 2048}, TIMED},
    {&swiglu, {8192, 14336}, TIMED},
    {&cross_entropy, {256, 50257, 50304, 0}, TIMED | IN_PLACE},
    {&linear, {1024, 768, 3072, 3072}, TIMED | BIAS},
    {&linear, {32768, 768, 3072, 3072}, TIMED | BIAS},
    {&linear, {256, 768, 50257, 50304}, TIMED | LOGITS},
    {&attention, {4, 256, 12, 12, 64}, TIMED},
    {&attention, {4, 1024, 12, 12, 64}, TIMED},
    {&attention, {8, 1024, 32, 8, 128}, TIMED},
    {&convert, {16 << 20}, TIMED, .other = DTYPE_FP32},
    {&convert, {16 << 20}, TIMED, .other = DTYPE_BF16},
    {&add, {16 << 20}, TIMED, .other = DTYPE_FP32},
    {&sumsq, {16 << 20}, TIMED},
    {&adamw, {16 << 20}, TIMED, .other = DTYPE_FP32},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

// ---- checks ----
static int faults;
static void fault(const Case *c, const char *what, const char *tensor, double found, double allowed) {
    faults++;
    print_error("  %s: %s of %s is %.3g, allowed %.3g (%s)\n", dtype_name(c->dt), what, tensor, found, allowed,
                c->row->kind->why);
}

// The largest |a-b| / (|b| + rms(b)); infinite where a is not finite and b is.
static double distance(const Image *m, const double *expected, double factor) {
    double square = 0, worst = 0;
    for (int64_t i = 0; i < m->rows * m->cols; i++)
        square += expected[i] * expected[i] * factor * factor;
    double rms = sqrt(square / (double)(m->rows * m->cols));
    for (int64_t i = 0; i < m->rows * m->cols; i++) {
        double a = type_load(m->type, m->staging, i / m->cols * m->ld + i % m->cols), b = expected[i] * factor;
        double error = a == b ? 0 : fabs(a - b) / (fabs(b) + rms);
        if (!(error <= worst))
            worst = isnan(error) ? INFINITY : error;
    }
    return worst;
}
static void compare(const Case *c, const char *what, const Tensor *t, const Image *m, const double *expected,
                    double factor) {
    double tolerance = c->row->tolerance != 0 ? c->row->tolerance : c->row->kind->tolerance;
    double allowed = tolerance + unit_roundoff(m->type) + c->row->kind->roundings_16 * unit_roundoff((int)c->dt);
    double found = distance(m, expected, factor);
    if (found > allowed)
        fault(c, what, t->name, found, allowed);
    bool over_logits = c->row->kind == &cross_entropy && c->row->flags & IN_PLACE;
    for (int64_t i = 0; i < m->rows * m->ld + GUARD; i++) {
        size_t size = type_bytes(m->type);
        bool gap = i >= m->rows * m->ld || (i % m->ld >= m->cols && !over_logits);
        for (size_t byte = 0; gap && byte < size; byte++)
            if (m->staging[(size_t)i * size + byte] != 0xff) {
                fault(c, "number of the element written outside", t->name, (double)i, 0);
                return;
            }
    }
}

// Forward, backward, backward once more with accumulation: results in the images' staging, `seen` called after each.
typedef void (*Seen)(const Case *c, Run *r, int pass, void *context);
static void run_passes(const Case *c, Run *r, Seen seen, void *context) {
    const Kind *kind = c->row->kind;
    kind->forward(&r->call);
    for (int k = 0; k < TENSORS; k++)
        if (c->v[k])
            image_read(&r->v[k], r->machine.stream);
    seen(c, r, 0, context);
    for (int pass = 1; pass <= 2 && kind->backward && !(c->row->flags & FORWARD_ONLY); pass++) {
        r->call.accumulate = pass == 2;
        kind->backward(&r->call);
        for (int k = 0; k < TENSORS; k++)
            if (c->d[k])
                image_read(&r->d[k], r->machine.stream);
        seen(c, r, pass, context);
    }
}

static void compare_with_reference(const Case *c, Run *r, int pass, void *context) {
    (void)context;
    for (int k = 0; k < TENSORS; k++) {
        const Tensor *t = &c->t[k];
        if (pass == 0 && (t->role == OUT || t->role == SAVED || t->role == INOUT))
            compare(c, "error", t, &r->v[k], c->v[k], 1);
        if (pass > 0 && t->role == ARG && c->d[k])
            compare(c, pass == 1 ? "error of the gradient" : "error of the gradient, accumulated twice,", t, &r->d[k],
                    c->d[k], pass == 2 && t->sums ? 2 : 1);
    }
}

// Keep the bytes of every result, or compare with those kept.
typedef struct Kept {
    unsigned char *bytes[3][2][TENSORS];  // pass; values, gradients
    bool compare;
} Kept;
static void keep_or_compare(const Case *c, Run *r, int pass, void *context) {
    Kept *kept = context;
    for (int k = 0; k < TENSORS; k++) {
        for (int gradient = 0; gradient < 2; gradient++) {
            const Image *m = gradient ? &r->d[k] : &r->v[k];
            if (!m->staging || c->t[k].role == SCRATCH || (gradient && pass == 0) || (!gradient && pass > 0))
                continue;
            unsigned char **bytes = &kept->bytes[pass][gradient][k];
            if (kept->compare) {
                if (memcmp(*bytes, m->staging, m->bytes) != 0)
                    fault(c, "difference in bits with the number of threads or the kind of stream", c->t[k].name, 1, 0);
            } else {
                *bytes = malloc(m->bytes);
                memcpy(*bytes, m->staging, m->bytes);
            }
        }
    }
}

static double weighted_outputs(const Case *c, double **v) {  // Σ dy · y: what backward differentiates
    double sum = 0;
    for (int k = 0; k < TENSORS; k++)
        for (int64_t i = 0; c->t[k].role == OUT && i < tensor_len(&c->t[k]); i++)
            sum += c->d[k][i] * v[k][i];
    return sum;
}
// The reference's gradient against central differences of the reference's forward, at up to 50 elements a tensor.
static void check_finite_differences(const Case *c) {
    const double h = 1e-5;
    for (int k = 0; k < TENSORS; k++) {
        if (c->t[k].role != ARG)
            continue;
        int64_t len = tensor_len(&c->t[k]), step = len / 50 + 1;
        for (int64_t i = 0; i < len; i += step) {
            double x = c->v[k][i];
            c->v[k][i] = x + h;
            c->row->kind->reference_forward(c->row, (double **)c->v);
            double above = weighted_outputs(c, (double **)c->v);
            c->v[k][i] = x - h;
            c->row->kind->reference_forward(c->row, (double **)c->v);
            double slope = (above - weighted_outputs(c, (double **)c->v)) / (2 * h);
            c->v[k][i] = x;
            double error = fabs(slope - c->d[k][i]) / (fabs(slope) + 1);
            if (!(error < 1e-6))
                fault(c, "distance of the reference from finite differences", c->t[k].name, error, 1e-6);
        }
    }
    c->row->kind->reference_forward(c->row, (double **)c->v);
}

static void compare_and_keep(const Case *c, Run *r, int pass, void *context) {
    compare_with_reference(c, r, pass, NULL);
    keep_or_compare(c, r, pass, context);
}

static void check_row_in(const Row *row, Dtype dt) {
    Case inputs = case_make(row, dt), expected = case_make(row, dt);
    row->kind->reference_forward(row, expected.v);
    if (row->kind->backward && !(row->flags & FORWARD_ONLY)) {
        row->kind->reference_backward(row, expected.v, expected.d);
        if (dt == DTYPE_FP32 && device_kind_chosen == DEVICE_CPU)  // of the reference: once is enough
            check_finite_differences(&expected);
    }
    static const struct {
        int threads;
        StreamKind stream;
    } runs[] = {{3, STREAM_COMPUTE}, {3, STREAM_COMPUTE}, {1, STREAM_COMPUTE}, {1, STREAM_BACKGROUND}};
    Kept kept = {.compare = false};
    for (int i = 0; i < 4; i++) {
        bool again = device_kind_chosen == DEVICE_CUDA && i == 2;  // a GPU has no number of threads
        if (again || (i > 1 && row->kind->threads_matter) || (runs[i].stream == STREAM_BACKGROUND && !row->kind->flat))
            continue;
        Machine machine = machine_open(runs[i].threads, runs[i].stream);
        Run r = run_make(&inputs, machine);
        kept.compare = i > 0;
        run_passes(&expected, &r, i == 0 ? compare_and_keep : keep_or_compare, &kept);
        run_free(&r);
        machine_close(machine);
    }
    for (int pass = 0; pass < 3; pass++)
        for (int k = 0; k < TENSORS; k++) {
            free(kept.bytes[pass][0][k]);
            free(kept.bytes[pass][1][k]);
        }
    case_free(&inputs);
    case_free(&expected);
}

static void check_row(void **state) {
    const Row *row = *state;
    faults = 0;
    for (int dt = 0; dt < 3; dt++)
        if (row->kind != &total || dt == DTYPE_FP32)
            check_row_in(row, (Dtype)dt);
    assert_int_equal(faults, 0);
}

// ---- what must hold to the last bit ----

// Run one row on the compute stream with values given as raw bytes; the results stay in the returned Run.
static Run run_raw(const Case *c, Machine machine, const void *const raw[TENSORS]) {
    Run r = run_make(c, machine);
    for (int k = 0; k < TENSORS; k++)
        if (raw[k]) {
            memcpy(r.v[k].staging, raw[k], (size_t)tensor_len(&c->t[k]) * type_bytes(r.v[k].type));
            stream_copy(machine.stream, r.v[k].memory, r.v[k].staging, r.v[k].bytes);
        }
    c->row->kind->forward(&r.call);
    for (int k = 0; k < TENSORS; k++)
        if (r.v[k].staging)
            image_read(&r.v[k], machine.stream);
    return r;
}

// Every 16-bit pattern to fp32, and fp32 patterns of every exponent, with the hard cases of rounding, to 16 bits.
static void test_convert_bits(void **state) {
    (void)state;
    enum { LEN = 1 << 17 };
    uint32_t *wide = malloc(LEN * sizeof *wide);
    uint16_t *narrow = malloc(LEN * sizeof *narrow);
    random_state = 7;
    for (uint32_t i = 0; i < LEN; i++) {
        static const uint32_t hard[] = {0,      1,      0xfff,  0x1000, 0x1001,  0x2000,
                                        0x3000, 0x7fff, 0x8000, 0x8001, 0x18000, 0x7fffff};
        wide[i] = (i & 0x1ff) << 23 | (i >> 9 < 12 ? hard[i >> 9] : (uint32_t)random_uniform(0, 0x800000));
        narrow[i] = (uint16_t)i;
    }
    Machine machine = machine_open(2, STREAM_COMPUTE);
    for (Dtype dt = DTYPE_BF16; dt <= DTYPE_FP16; dt++) {
        const Row widen = {&convert, {LEN}, .other = DTYPE_FP32}, round = {&convert, {LEN}, .other = dt};
        Case c = case_make(&widen, dt);
        Run r = run_raw(&c, machine, (const void *[TENSORS]){narrow});
        for (size_t i = 0; i < LEN; i++)
            assert_int_equal(((uint32_t *)r.v[F_TO].staging)[i], fp32_bits(dtype_load(dt, narrow, i)));
        run_free(&r);
        case_free(&c);
        c = case_make(&round, DTYPE_FP32);
        r = run_raw(&c, machine, (const void *[TENSORS]){wide});
        for (size_t i = 0; i < LEN; i++) {
            uint16_t expected;
            dtype_store(dt, &expected, 0, fp32_from_bits(wide[i]));
            assert_int_equal(((uint16_t *)r.v[F_TO].staging)[i], expected);
        }
        run_free(&r);
        case_free(&c);
    }
    machine_close(machine);
    free(wide);
    free(narrow);
}

// The tree of sumsq_to_host as ops.h words it.
static void test_sumsq_bits(void **state) {
    (void)state;
    const Row row = {&sumsq, {3 * SUMSQ_TILE + 777}};
    Case c = case_make(&row, DTYPE_FP32);
    Machine machine = machine_open(2, STREAM_COMPUTE);
    Run r = run_raw(&c, machine, (const void *[TENSORS]){NULL});
    for (int64_t tile = 0; tile < 4; tile++) {
        float lanes[SUMSQ_LANES] = {0};
        for (int64_t i = tile * SUMSQ_TILE; i < (tile + 1) * SUMSQ_TILE && i < row.n[0]; i++) {
            float x = (float)c.v[F_FROM][i] / sumsq_divisor, *lane = &lanes[i % SUMSQ_LANES];
            *lane = fmaf(x, x, *lane);
        }
        for (int half = SUMSQ_LANES / 2; half > 0; half /= 2)
            for (int j = 0; j < half; j++)
                lanes[j] += lanes[j + half];
        assert_int_equal(fp32_bits(lanes[0]), ((uint32_t *)r.v[F_TO].staging)[tile]);
    }
    run_free(&r);
    case_free(&c);
    machine_close(machine);
}

// The sum of tiles in index order, in double, and the sum of an addition, rounded once.
static void test_sum_bits(void **state) {
    (void)state;
    const Row sum_row = {&total, {2 * SUMSQ_TILE + 77}}, add_row = {&add, {1003}, .other = DTYPE_BF16};
    Machine machine = machine_open(2, STREAM_COMPUTE);
    Case c = case_make(&sum_row, DTYPE_FP32);
    Run r = run_raw(&c, machine, (const void *[TENSORS]){NULL});
    double sum = 0;
    for (int64_t tile = 0; tile < sum_row.n[0]; tile += SUMSQ_TILE) {
        double tile_sum = 0;
        for (int64_t i = tile; i < sum_row.n[0] && i < tile + SUMSQ_TILE; i++)
            tile_sum += (double)(float)c.v[F_FROM][i];
        sum += tile_sum;
    }
    assert_memory_equal(&sum, r.v[F_TO].staging, sizeof sum);
    run_free(&r);
    case_free(&c);
    for (int dt = 0; dt < 3; dt++) {
        c = case_make(&add_row, (Dtype)dt);
        r = run_raw(&c, machine, (const void *[TENSORS]){NULL});
        for (int64_t i = 0; i < add_row.n[0]; i++)
            assert_int_equal(fp32_to_bf16((float)c.v[F_TO][i] + (float)c.v[F_FROM][i]),
                             ((uint16_t *)r.v[F_TO].staging)[i]);
        run_free(&r);
        case_free(&c);
    }
    machine_close(machine);
}

// The optimizer's bits are those of llm/adamw.h, element by element, also for subnormal and huge gradients.
static void test_adamw_bits(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        const Row row = {&adamw, {2049}, (unsigned[]){0, ADAM, SGD}[kind], .other = DTYPE_FP32};
        AdamwArgs args = adamw_args(&row);
        Case c = case_make(&row, DTYPE_BF16);
        for (int64_t i = 0; i < 600; i++)
            c.v[O_GRAD][i] = (double)(float)ldexp(c.v[O_GRAD][i], (int)i / 2 - 150);
        Machine machine = machine_open(2, STREAM_COMPUTE);
        Run r = run_raw(&c, machine, (const void *[TENSORS]){NULL});
        for (int64_t i = 0; i < row.n[0]; i++) {
            AdamwScalars s =
                adamw_scalars(&args, args.range_decay[(i >= args.range_end[0]) + (i >= args.range_end[1])]);
            float w = (float)c.v[O_MASTER][i], m = (float)c.v[O_M][i], v = c.v[O_V] ? (float)c.v[O_V][i] : 0.0f;
            if (args.kind == OPT_SGD)
                sgd_element(&w, &m, (float)c.v[O_GRAD][i], &s);
            else
                adamw_element(&w, &m, &v, (float)c.v[O_GRAD][i], &s);
            assert_int_equal(fp32_bits(w), ((uint32_t *)r.v[O_MASTER].staging)[i]);
            assert_int_equal(fp32_bits(m), ((uint32_t *)r.v[O_M].staging)[i]);
            if (c.v[O_V])
                assert_int_equal(fp32_bits(v), ((uint32_t *)r.v[O_V].staging)[i]);
            assert_int_equal(fp32_to_bf16(w), ((uint16_t *)r.v[O_PARAM].staging)[i]);
        }
        run_free(&r);
        case_free(&c);
        machine_close(machine);
    }
}

// A logit that is not finite gives a loss that is not finite, wherever it stands; other rows are not touched by it.
static void test_loss_not_finite(void **state) {
    (void)state;
    const Row row = {&cross_entropy, {3, 2100, 2100, 2100}};
    static const int64_t columns[] = {0, 15, 1023, 1024, 2047, 2099};
    Machine machine = machine_open(1, STREAM_COMPUTE);
    for (int i = 0; i < 12; i++) {
        Case c = case_make(&row, DTYPE_FP32);
        for (int64_t k = 0; k < 3; k++)
            c.v[C_TARGETS][k] = 7;
        c.v[C_LOGITS][row.n[1] + columns[i / 2]] = i % 2 ? (double)NAN : (double)INFINITY;
        Run r = run_raw(&c, machine, (const void *[TENSORS]){NULL});
        const float *losses = (float *)r.v[C_LOSSES].staging;
        assert_true(isfinite(losses[0]) && !isfinite(losses[1]) && isfinite(losses[2]));
        run_free(&r);
        case_free(&c);
    }
    machine_close(machine);
}

// ---- timing ----
static int threads_chosen;  // 0: all
static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
typedef void (*Work)(const Call *call);
static double best_time(Work work, Run *r) {  // of as many calls as fit half a second
    const int calls = device_kind_chosen == DEVICE_CUDA ? 20 : 1;  // so that enqueuing and waiting do not count
    double best = INFINITY, begin = seconds();
    work(&r->call);
    do {
        double start = seconds();
        for (int i = 0; i < calls; i++)
            work(&r->call);
        assert_ok(stream_sync(r->machine.stream));
        double took = (seconds() - start) / calls;
        best = took < best ? took : best;
    } while (seconds() - begin < 0.5);
    return best;
}
static double moved_bytes(const Case *c, const Run *r, bool backward) {
    double bytes = 0;
    for (int k = 0; k < TENSORS; k++) {
        const Tensor *t = &c->t[k];
        double elements = (double)(t->touched ? t->touched : tensor_len(t));
        bool reads = backward ? c->row->kind->backward_reads >> k & 1 : t->role != ABSENT;
        if (reads)
            bytes += elements * (double)type_bytes(t->type) * (t->role == INOUT ? 2 : 1);
        if (backward && r->d[k].staging)
            bytes += (t->sums ? (double)tensor_len(t) : elements) * (double)type_bytes(t->grad_type);
    }
    return bytes;
}
static void time_row(const Row *row, Dtype dt) {
    Machine machine = machine_open(threads_chosen, STREAM_COMPUTE);
    const Case c = case_shape(row, dt);
    Run r = run_make(&c, machine);  // no arrays of doubles, so no tensors yet
    for (int k = 0; k < TENSORS; k++) {
        for (int gradient = 0; gradient < (has_gradient(row, &c.t[k]) ? 2 : 1) && c.t[k].role != ABSENT; gradient++) {
            Image m = image_make(&c.t[k], gradient, machine.device);
            for (int64_t i = 0; i < m.rows * m.ld; i++)
                type_store(m.type, m.staging, i,
                           m.type == TYPE_INT32 ? fabs(floor(random_uniform(c.t[k].low, c.t[k].high)))
                                                : random_uniform(c.t[k].low, c.t[k].high));
            stream_copy(machine.stream, m.memory, m.staging, m.bytes);
            *(gradient ? &r.d[k] : &r.v[k]) = m;
            *(gradient ? &r.call.d[k] : &r.call.v[k]) = m.memory;
        }
    }
    char shape[128];
    int used = 0;
    for (int i = 0; i < 6 && row->n[i]; i++)
        used += snprintf(shape + used, sizeof shape - (size_t)used, "%s%lld", i ? " x " : "", (long long)row->n[i]);
    printf("%-14s %-26s %-5s", row->kind->name, shape,
           row->kind->flat    ? dtype_name(row->other)
           : row->flags & RMS ? "rms"
                              : "");
    printf("%s", dtype_name(dt));
    for (int backward = 0; backward <= (row->kind->backward != NULL); backward++) {
        double time = best_time(backward ? row->kind->backward : row->kind->forward, &r);
        printf("  %s %8.3f ms", backward ? "backward" : "forward", time * 1e3);
        if (row->kind->flops)
            printf(" %6.1f GFLOP/s", row->kind->flops(row) * (backward ? row->kind->backward_flops : 1) / time * 1e-9);
        else
            printf(" %6.1f GB/s", moved_bytes(&c, &r, backward) / time * 1e-9);
    }
    printf("\n");
    run_free(&r);
    machine_close(machine);
}

// What memory gives: x[i] += c over three arrays of the optimizer's size, on all threads; on a GPU, CUDA's own copy.
static void time_memory(void) {
    const int64_t len = 3 * (int64_t)(16 << 20);
    Machine machine = machine_open(threads_chosen, STREAM_COMPUTE);
    void *memory[2];
    for (int i = 0; i < 2; i++)
        assert_ok(device_alloc(machine.device, MEM_WORKSPACE, "x", (size_t)len * 4, &memory[i]));
    bool gpu = device_kind_chosen == DEVICE_CUDA;
    float *x = memory[0];
    double best = INFINITY;
    for (int round = 0; round < 8; round++) {
        double start = seconds();
        if (gpu)
            stream_copy(machine.stream, memory[1], memory[0], (size_t)len * 4);
        else
#pragma omp parallel for simd num_threads(device_threads(machine.device)) schedule(static)
            for (int64_t i = 0; i < len; i++)
                x[i] += 1.0f;
        assert_ok(stream_sync(machine.stream));
        double took = seconds() - start;
        best = took < best ? took : best;
    }
    printf("%s: %.1f GB/s\n", gpu ? "copy" : "x[i] += c", (double)len * 8 / best * 1e-9);
    for (int i = 0; i < 2; i++)
        device_free(machine.device, memory[i]);
    machine_close(machine);
}

// ---- the program ----

// Run this program again with a lower instruction set; its exit status.
static int run_with_isa(const char *isa) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv("ZERO_ISA", isa, 1);
        execl("/proc/self/exe", "test_ops", (char *)NULL);
        _exit(127);
    }
    int status;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--device") == 0 && i + 1 < argc) {
            device_kind_chosen = strcmp(argv[++i], "cuda") == 0 ? DEVICE_CUDA : DEVICE_CPU;
        } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
            threads_chosen = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--time") == 0) {
            time_memory();
            for (int k = 0; k < N_ROWS; k++)
                for (int dt = 0; dt < 3; dt++)
                    if (rows[k].flags & TIMED && (i + 1 == argc || strstr(rows[k].kind->name, argv[i + 1])))
                        time_row(&rows[k], (Dtype)dt);
            return 0;
        }
    }
    static char names[N_ROWS][128];
    struct CMUnitTest tests[N_ROWS + 5];
    size_t n = 0;
    for (int k = 0; k < N_ROWS; k++) {
        const Row *row = &rows[k];
        if (row->flags & TIMED)
            continue;
        int used = snprintf(names[k], sizeof names[k], "%s (%s) =", row->kind->name, row->kind->shape);
        for (int i = 0; i < 6; i++)
            if (row->n[i])
                used += snprintf(names[k] + used, sizeof names[k] - (size_t)used, " %lld", (long long)row->n[i]);
        tests[n++] = (struct CMUnitTest){names[k], check_row, NULL, NULL, (void *)row};
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_convert_bits);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_sumsq_bits);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_sum_bits);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_adamw_bits);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_loss_not_finite);
    const char *isa = getenv("ZERO_ISA");
    int failed = _cmocka_run_group_tests(isa ? isa : "ops", tests, n, NULL, NULL);
#if defined(__x86_64__)
    if (!isa && device_kind_chosen == DEVICE_CPU)
        failed += run_with_isa("avx2") + run_with_isa("base");
#endif
    return failed != 0;
}
