// Flash attention against a plain double-precision one: every dtype, odd shapes, every instruction set, and the same
// bits for every thread count. Backward's reference is itself checked by finite differences.
//
//     test_attention [--device cpu|cuda]
#include <math.h>
#include <sys/wait.h>

#include "llm/cpu/cpu.h"
#include "test/check.h"

// ---- the reference: attention of (B, T, heads + 2·kv_heads, head_dim) by the formula ----

static size_t qkv_at(AttentionShape s, int b, int t, int head) {
    return (((size_t)b * (size_t)s.seq_len + (size_t)t) * (size_t)(s.heads + 2 * s.kv_heads) + (size_t)head) *
           (size_t)s.head_dim;
}
static size_t out_at(AttentionShape s, int b, int t, int head) {
    return (((size_t)b * (size_t)s.seq_len + (size_t)t) * (size_t)s.heads + (size_t)head) * (size_t)s.head_dim;
}
static int key_head(AttentionShape s, int h) {
    return s.heads + h / (s.heads / s.kv_heads);
}

static double dot(const double *a, const double *b, int n) {
    double sum = 0.0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

// probabilities of query t over keys 0 … t; returns the log-sum-exp
static double reference_row(double *p, const double *qkv, AttentionShape s, int b, int h, int t) {
    const double *q = qkv + qkv_at(s, b, t, h);
    double max = -INFINITY, sum = 0.0;
    for (int k = 0; k <= t; k++) {
        p[k] = dot(q, qkv + qkv_at(s, b, k, key_head(s, h)), s.head_dim) / sqrt(s.head_dim);
        max = p[k] > max ? p[k] : max;
    }
    for (int k = 0; k <= t; k++)
        sum += p[k] = exp(p[k] - max);
    for (int k = 0; k <= t; k++)
        p[k] /= sum;
    return max + log(sum);
}

static void reference_forward(double *out, double *lse, const double *qkv, AttentionShape s) {
    double *p = malloc((size_t)s.seq_len * sizeof *p);
    for (int b = 0; b < s.batch; b++)
        for (int h = 0; h < s.heads; h++)
            for (int t = 0; t < s.seq_len; t++) {
                lse[(b * s.heads + h) * s.seq_len + t] = reference_row(p, qkv, s, b, h, t);
                double *o = out + out_at(s, b, t, h);
                memset(o, 0, (size_t)s.head_dim * sizeof *o);
                for (int k = 0; k <= t; k++)
                    for (int c = 0; c < s.head_dim; c++)
                        o[c] += p[k] * qkv[qkv_at(s, b, k, key_head(s, h) + s.kv_heads) + (size_t)c];
            }
    free(p);
}

static void reference_backward(double *dqkv, const double *dout, const double *qkv, AttentionShape s) {
    size_t qkv_len = qkv_at(s, s.batch, 0, 0);
    double *p = malloc((size_t)s.seq_len * sizeof *p), *dp = malloc((size_t)s.seq_len * sizeof *dp);
    memset(dqkv, 0, qkv_len * sizeof *dqkv);
    for (int b = 0; b < s.batch; b++)
        for (int h = 0; h < s.heads; h++)
            for (int t = 0; t < s.seq_len; t++) {
                const double *o = dout + out_at(s, b, t, h);
                double mean = 0.0;
                reference_row(p, qkv, s, b, h, t);
                for (int k = 0; k <= t; k++)
                    mean += p[k] * (dp[k] = dot(o, qkv + qkv_at(s, b, k, key_head(s, h) + s.kv_heads), s.head_dim));
                for (int k = 0; k <= t; k++) {
                    size_t q_at = qkv_at(s, b, t, h), k_at = qkv_at(s, b, k, key_head(s, h));
                    size_t v_at = qkv_at(s, b, k, key_head(s, h) + s.kv_heads);
                    double ds = p[k] * (dp[k] - mean) / sqrt(s.head_dim);
                    for (size_t c = 0; c < (size_t)s.head_dim; c++) {
                        dqkv[q_at + c] += ds * qkv[k_at + c];
                        dqkv[k_at + c] += ds * qkv[q_at + c];
                        dqkv[v_at + c] += p[k] * o[c];
                    }
                }
            }
    free(p);
    free(dp);
}

// ---- one run on the device ----

static DeviceKind subject = DEVICE_CPU;

typedef struct Tensor {
    void *device, *host;  // the host's copy is what tests write and read
    size_t bytes;
} Tensor;

typedef struct Run {
    Device *device;
    Stream *stream;
    AttentionShape shape;
    Dtype dt;
    size_t qkv_len, out_len, lse_len;
    Tensor qkv, out, dout, dqkv, lse;
} Run;

static float random_number(uint64_t *state) {  // roughly normal, variance 1
    float sum = 0.0f;
    for (int i = 0; i < 4; i++) {
        *state = *state * 6364136223846793005ull + 1442695040888963407ull;
        sum += (float)(*state >> 40) * 0x1p-24f - 0.5f;
    }
    return sum * 1.7320508f;
}

static void push(Run *r, Tensor t) {
    stream_copy(r->stream, t.device, t.host, t.bytes);
}
static void pull(Run *r, Tensor t) {
    stream_copy(r->stream, t.host, t.device, t.bytes);
    assert_ok(stream_sync(r->stream));
}

static void fill_with_nan(Tensor t) {  // in every dtype
    for (size_t i = 0; i < t.bytes / 2; i++)
        dtype_store(DTYPE_BF16, t.host, i, NAN);
}

// NaN everywhere: results must be written.
static Tensor new_tensor(Run *r, size_t bytes) {
    Tensor t = {.bytes = bytes};
    assert_ok(device_alloc(r->device, MEM_ACTIVATIONS, "test", bytes, &t.device));
    assert_ok(device_host_alloc(r->device, "test", bytes, &t.host));
    fill_with_nan(t);
    push(r, t);
    return t;
}
static void free_tensor(Run *r, Tensor t) {
    device_free(r->device, t.device);
    device_host_free(r->device, t.host);
}

// Scratch starts as NaN as well: nothing may come from it.
static void reserve_scratch(Run *r) {
    size_t bytes = device_ops(r->device)->attention_scratch(r->device, r->dt, r->shape);
    assert_ok(device_reserve_scratch(r->device, bytes));
    Tensor scratch = {.device = device_scratch(r->device, &bytes)};
    scratch.bytes = bytes;
    assert_ok(device_host_alloc(r->device, "test", bytes, &scratch.host));
    fill_with_nan(scratch);
    push(r, scratch);
    assert_ok(stream_sync(r->stream));
    device_host_free(r->device, scratch.host);
}

static Run run_open(int threads, Dtype dt, AttentionShape s, float magnitude) {
    Run r = {.shape = s, .dt = dt, .qkv_len = qkv_at(s, s.batch, 0, 0), .out_len = out_at(s, s.batch, 0, 0)};
    r.lse_len = (size_t)s.batch * (size_t)s.heads * (size_t)s.seq_len;
    DeviceOptions options = {.kind = subject, .threads = threads};
    assert_ok(device_open(&options, &r.device));
    assert_ok(stream_create(r.device, STREAM_COMPUTE, "compute", &r.stream));
    r.qkv = new_tensor(&r, r.qkv_len * dtype_bytes(dt));
    r.dqkv = new_tensor(&r, r.qkv_len * dtype_bytes(dt));
    r.out = new_tensor(&r, r.out_len * dtype_bytes(dt));
    r.dout = new_tensor(&r, r.out_len * dtype_bytes(dt));
    r.lse = new_tensor(&r, r.lse_len * sizeof(float));
    assert_ok(stream_sync(r.stream));
    uint64_t seed = 7;
    for (size_t i = 0; i < r.qkv_len; i++)
        dtype_store(dt, r.qkv.host, i, random_number(&seed) * magnitude);
    for (size_t i = 0; i < r.out_len; i++)
        dtype_store(dt, r.dout.host, i, random_number(&seed));
    reserve_scratch(&r);
    return r;
}

static void run_both(Run *r) {
    const Ops *ops = device_ops(r->device);
    push(r, r->qkv);
    push(r, r->dout);
    ops->attention_forward(r->stream, r->dt, r->out.device, r->lse.device, r->qkv.device, r->shape);
    ops->attention_backward(r->stream, r->dt, r->dqkv.device, r->dout.device, r->qkv.device, r->out.device,
                            r->lse.device, r->shape);
    pull(r, r->out);
    pull(r, r->lse);
    pull(r, r->dqkv);
}

static void run_close(Run *r) {
    const Tensor tensors[] = {r->qkv, r->out, r->dout, r->dqkv, r->lse};
    for (int i = 0; i < 5; i++)
        free_tensor(r, tensors[i]);
    stream_destroy(r->stream);
    device_close(r->device);
}

static double *as_double(Dtype dt, const void *data, size_t len) {
    double *x = malloc(len * sizeof *x);
    for (size_t i = 0; i < len; i++)
        x[i] = (double)dtype_load(dt, data, i);
    return x;
}

// ‖a - b‖ / ‖b‖; where b is tiny (gradients that cancel), relative to `floor`
static double error(const double *a, const double *b, size_t len, double floor) {
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < len; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return sqrt(difference / fmax(norm, floor * floor * (double)len));
}

static void check_error(const char *what, Dtype dt, AttentionShape s, double found, double tolerance) {
    if (found <= tolerance)
        return;
    print_error("%s %s B=%d T=%d heads %d/%d x %d: relative error %.2e, allowed %.2e\n", dtype_name(dt), what, s.batch,
                s.seq_len, s.heads, s.kv_heads, s.head_dim, found, tolerance);
    fail_test();
}

static void check_shape(Dtype dt, AttentionShape s, float magnitude, double tolerance) {
    Run r = run_open(2, dt, s, magnitude);
    run_both(&r);
    double *qkv = as_double(dt, r.qkv.host, r.qkv_len), *dout = as_double(dt, r.dout.host, r.out_len);
    double *out = as_double(dt, r.out.host, r.out_len), *dqkv = as_double(dt, r.dqkv.host, r.qkv_len);
    double *lse = as_double(DTYPE_FP32, r.lse.host, r.lse_len);
    double *out_ref = malloc(r.out_len * sizeof(double)), *dqkv_ref = malloc(r.qkv_len * sizeof(double));
    double *lse_ref = malloc(r.lse_len * sizeof(double));
    reference_forward(out_ref, lse_ref, qkv, s);
    reference_backward(dqkv_ref, dout, qkv, s);
    check_error("out", dt, s, error(out, out_ref, r.out_len, 0.0), tolerance);
    check_error("lse", dt, s, error(lse, lse_ref, r.lse_len, 0.1), 2e-6);
    // dq, dk and dv apart: they have different sizes
    struct {
        const char *name;
        int first, heads;
    } parts[] = {{"dq", 0, s.heads}, {"dk", s.heads, s.kv_heads}, {"dv", s.heads + s.kv_heads, s.kv_heads}};
    for (int i = 0; i < 3; i++) {
        size_t n = 0, row = (size_t)(parts[i].heads * s.head_dim);
        double *a = malloc(r.qkv_len * sizeof *a), *b = malloc(r.qkv_len * sizeof *b);
        for (int t = 0; t < s.batch * s.seq_len; t++, n += row) {
            memcpy(a + n, dqkv + qkv_at(s, 0, t, parts[i].first), row * sizeof *a);
            memcpy(b + n, dqkv_ref + qkv_at(s, 0, t, parts[i].first), row * sizeof *b);
        }
        check_error(parts[i].name, dt, s, error(a, b, n, 0.05), 2 * tolerance);
        free(a);
        free(b);
    }
    free(qkv), free(dout), free(out), free(dqkv), free(lse), free(out_ref), free(dqkv_ref), free(lse_ref);
    run_close(&r);
}

typedef struct Shapes {
    const AttentionShape *list;
    int n;
} Shapes;

// B, T, heads, kv_heads, head_dim
static const AttentionShape cpu_shapes[] = {
    {1, 1, 1, 1, 64},    {2, 13, 4, 2, 8},   {1, 64, 1, 1, 64},  {1, 65, 2, 2, 1},
    {3, 130, 4, 1, 24},  {1, 257, 2, 1, 80}, {1, 300, 2, 2, 96}, {1, 200, 4, 2, 64},
    {2, 150, 2, 1, 128}, {1, 129, 3, 3, 33}, {1, 191, 1, 1, 15}, {1, 520, 1, 1, 64},
};
// Around the tiles of 32, 64 and 128 rows, on and off tensor cores; small, as a simulated device is slow.
static const AttentionShape cuda_shapes[] = {
    {1, 1, 1, 1, 64},   {1, 17, 2, 1, 64}, {2, 64, 2, 2, 64},  {1, 129, 3, 3, 64},
    {1, 200, 4, 2, 64}, {1, 1, 2, 2, 128}, {2, 33, 4, 1, 128}, {1, 129, 2, 1, 128},
    {1, 17, 2, 1, 80},  {1, 65, 1, 1, 32}, {1, 33, 2, 2, 1},   {1, 40, 1, 1, 150},
};
static Shapes shapes(void) {
    return subject == DEVICE_CPU ? (Shapes){cpu_shapes, sizeof cpu_shapes / sizeof *cpu_shapes}
                                 : (Shapes){cuda_shapes, sizeof cuda_shapes / sizeof *cuda_shapes};
}

static double tolerance_of(Dtype dt) {
    return dt == DTYPE_FP32 ? 3e-6 : dt == DTYPE_BF16 ? 5e-3 : 6e-4;
}

static void test_matches_reference(void **state) {
    (void)state;
    for (Dtype dt = DTYPE_FP32; dt <= DTYPE_FP16; dt++)
        for (int i = 0; i < shapes().n; i++)
            check_shape(dt, shapes().list[i], 1.0f, tolerance_of(dt));
}

// Scores in the hundreds: exponentials would overflow without the running maximum. Rounding of the scores themselves is
// what remains: |score|·2^-24 relative error in fp32.
static void test_large_logits(void **state) {
    (void)state;
    for (Dtype dt = DTYPE_FP32; dt <= DTYPE_FP16; dt++)
        check_shape(dt, (AttentionShape){1, 150, 2, 1, 64}, 12.0f, dt == DTYPE_FP32 ? 1e-4 : 4 * tolerance_of(dt));
}

static void test_reference_gradient(void **state) {
    (void)state;
    AttentionShape s = {2, 5, 4, 2, 3};
    Run r = run_open(1, DTYPE_FP32, s, 1.0f);
    double *qkv = as_double(DTYPE_FP32, r.qkv.host, r.qkv_len), *dout = as_double(DTYPE_FP32, r.dout.host, r.out_len);
    double *dqkv = malloc(r.qkv_len * sizeof(double)), *out = malloc(r.out_len * sizeof(double));
    double *lse = malloc(r.lse_len * sizeof(double));
    reference_backward(dqkv, dout, qkv, s);
    for (size_t i = 0; i < r.qkv_len; i++) {
        double saved = qkv[i], loss[2];
        for (int side = 0; side < 2; side++) {
            qkv[i] = saved + (side ? 1e-5 : -1e-5);
            reference_forward(out, lse, qkv, s);
            loss[side] = dot(out, dout, (int)r.out_len);
        }
        qkv[i] = saved;
        assert_true(fabs((loss[1] - loss[0]) / 2e-5 - dqkv[i]) < 1e-7 * (1.0 + fabs(dqkv[i])));
    }
    free(qkv), free(dout), free(dqkv), free(out), free(lse);
    run_close(&r);
}

// On the CPU one thread works in one pass, several threads on few heads in two: the bits must not show it. A simulated
// device in random order takes blocks and threads in another order each time.
static void test_same_bits(void **state) {
    (void)state;
    static const AttentionShape on_cpu[] = {{1, 300, 2, 1, 64}, {2, 140, 2, 2, 24}, {1, 513, 3, 3, 64}};
    static const AttentionShape on_cuda[] = {{1, 140, 2, 1, 64}, {1, 70, 2, 1, 128}, {1, 40, 1, 1, 24}};
    static const int threads[] = {1, 1, 2, 3, 7};
    const AttentionShape *same = subject == DEVICE_CPU ? on_cpu : on_cuda;
    for (size_t i = 0; i < 3; i++)
        for (Dtype dt = DTYPE_FP32; dt <= DTYPE_FP16; dt++) {
            Run first = run_open(1, dt, same[i], 1.0f);
            run_both(&first);
            for (size_t n = 0; n < (subject == DEVICE_CPU ? sizeof threads / sizeof *threads : 2); n++) {
                Run r = run_open(threads[n], dt, same[i], 1.0f);
                run_both(&r);
                assert_memory_equal(r.out.host, first.out.host, r.out_len * dtype_bytes(dt));
                assert_memory_equal(r.lse.host, first.lse.host, r.lse_len * sizeof(float));
                assert_memory_equal(r.dqkv.host, first.dqkv.host, r.qkv_len * dtype_bytes(dt));
                run_close(&r);
            }
            run_close(&first);
        }
}

static void test_decode(void **state) {
    (void)state;
    for (Dtype dt = DTYPE_FP32; dt <= DTYPE_FP16; dt++)
        for (int i = 0; i < shapes().n; i++) {
            AttentionShape s = shapes().list[i];
            s.batch = 1;
            if (subject == DEVICE_CUDA && s.seq_len > 40)
                s.seq_len = 40;  // one launch a token
            Run r = run_open(2, dt, s, 1.0f);
            const Ops *ops = device_ops(r.device);
            push(&r, r.qkv);
            ops->attention_forward(r.stream, dt, r.out.device, r.lse.device, r.qkv.device, s);
            pull(&r, r.out);
            int positions = s.seq_len + 3;
            size_t row = (size_t)s.head_dim * dtype_bytes(dt);
            size_t cache_bytes = (size_t)s.kv_heads * (size_t)positions * row;
            Tensor k = new_tensor(&r, cache_bytes), v = new_tensor(&r, cache_bytes);
            Tensor out = new_tensor(&r, (size_t)s.heads * row);
            for (int t = 0; t < s.seq_len; t++)
                ops->attention_decode(r.stream, dt, out.device, k.device, v.device,
                                      (char *)r.qkv.device + qkv_at(s, 0, t, 0) * dtype_bytes(dt), s, t, positions);
            pull(&r, k);
            pull(&r, v);
            pull(&r, out);
            size_t n = (size_t)(s.heads * s.head_dim);
            double *a = as_double(dt, out.host, n);
            double *b = as_double(dt, (char *)r.out.host + out_at(s, 0, s.seq_len - 1, 0) * dtype_bytes(dt), n);
            check_error("decode", dt, s, error(a, b, n, 0.0), 2 * tolerance_of(dt));
            for (int h = 0; h < 2 * s.kv_heads; h++)  // the last token was appended to both caches
                assert_memory_equal(
                    (char *)(h < s.kv_heads ? k : v).host + (size_t)(h % s.kv_heads * positions + s.seq_len - 1) * row,
                    (char *)r.qkv.host + qkv_at(s, 0, s.seq_len - 1, s.heads + h) * dtype_bytes(dt), row);
            free(a), free(b);
            free_tensor(&r, k), free_tensor(&r, v), free_tensor(&r, out);
            run_close(&r);
        }
}

// NaN and infinity must not turn into plausible numbers: the run's check for non-finite values relies on it.
static void test_non_finite(void **state) {
    (void)state;
    AttentionShape s = {1, 100, 1, 1, 64};
    for (Dtype dt = DTYPE_FP32; dt <= DTYPE_FP16; dt++)
        for (int part = 0; part < 3; part++) {
            Run r = run_open(1, dt, s, 1.0f);
            dtype_store(dt, r.qkv.host, qkv_at(s, 0, 70, part) + 5, NAN);
            run_both(&r);
            assert_true(isnan(dtype_load(dt, r.out.host, out_at(s, 0, 70, 0) + 5)));
            assert_true(isnan(dtype_load(dt, r.dqkv.host, qkv_at(s, 0, 70, 0) + 5)));
            assert_true(!isnan(dtype_load(dt, r.out.host, out_at(s, 0, 3, 0))));
            run_close(&r);
        }
}

// The whole program again with older instruction sets.
static void test_other_instruction_sets(void **state) {
    char *const *argv = *state;
    static const char *const sets[] = {"base", "avx2"};
    if (subject != DEVICE_CPU)
        return;
    if (getenv("ZERO_ISA")) {
        print_message("skipped: ZERO_ISA is set, so this is one of the runs that this test starts\n");
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (i == 1 && cpu_isa() < ISA_AVX2) {
            print_message("skipped avx2: this machine has none\n");
            continue;
        }
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            setenv("ZERO_ISA", sets[i], 1);
            setenv("OMP_WAIT_POLICY", "passive", 1);  // more threads than cores: do not spin
            execv("/proc/self/exe", argv);
            _exit(127);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--device") == 0 && strcmp(argv[2], "cuda") == 0)
        subject = DEVICE_CUDA;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_gradient),
        cmocka_unit_test(test_matches_reference),
        cmocka_unit_test(test_large_logits),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_non_finite),
        cmocka_unit_test_prestate(test_other_instruction_sets, argv),
    };
    return cmocka_run_group_tests_name(getenv("ZERO_ISA") ? getenv("ZERO_ISA") : "attention", tests, NULL, NULL);
}
