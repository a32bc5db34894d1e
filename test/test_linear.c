// Linear layers of the CPU: against sums in double, for odd shapes, every dtype and every instruction set of this
// machine, and the promise that a row's bits do not depend on the other rows of a call.
#include <math.h>
#include <sys/wait.h>

#include "llm/cpu/gemm.h"
#include "llm/cpu/linear.h"
#include "test/check.h"

static Device *device;
static Stream *stream;

static int open_device(void **state) {
    (void)state;
    assert_ok(device_open(&(DeviceOptions){.kind = DEVICE_CPU, .threads = 2}, &device));
    assert_ok(stream_create(device, STREAM_COMPUTE, "compute", &stream));
    return 0;
}

static int close_device(void **state) {
    (void)state;
    stream_destroy(stream);
    device_close(device);
    return 0;
}

// ---- arrays ----

typedef struct Array {
    Dtype dt;
    int64_t len;
    void *data;
    double *values;  // what data held when it was made, for the sums
} Array;

static Array array_new(Dtype dt, int64_t len) {
    Array a = {dt, len, malloc((size_t)len * dtype_bytes(dt)), NULL};
    assert_non_null(a.data);
    return a;
}

static Array array_random(Dtype dt, int64_t len, uint32_t seed) {
    enum { PERIOD = 65521 };  // a prime: rows of a matrix differ
    Array a = array_new(dt, len);
    for (int64_t i = 0; i < len && i < PERIOD; i++) {
        seed = seed * 1664525u + 1013904223u;
        dtype_store(dt, a.data, (size_t)i, (float)(seed >> 8) * 0x1p-23f - 1.0f);
    }
    for (int64_t i = PERIOD; i < len; i += PERIOD)
        memcpy((char *)a.data + (size_t)i * dtype_bytes(dt), a.data,
               (size_t)(len - i < PERIOD ? len - i : PERIOD) * dtype_bytes(dt));
    return a;
}

// Random numbers whose values are at hand in double.
static Array array_input(Dtype dt, int64_t len, uint32_t seed) {
    Array a = array_random(dt, len, seed);
    a.values = malloc((size_t)len * sizeof *a.values);
    assert_non_null(a.values);
    for (int64_t i = 0; i < len; i++)
        a.values[i] = (double)dtype_load(dt, a.data, (size_t)i);
    return a;
}

static void array_free(Array a) {
    free(a.data);
    free(a.values);
}

static Array array_copy(Array from) {
    Array a = array_new(from.dt, from.len);
    memcpy(a.data, from.data, (size_t)a.len * dtype_bytes(a.dt));
    return a;
}

static double get(Array a, int64_t i) {
    return (double)dtype_load(a.dt, a.data, (size_t)i);
}

static void *at(Array a, int64_t i) {
    return (char *)a.data + (size_t)i * dtype_bytes(a.dt);
}

// A result that must be c = Σ a·b + more: a sum of k terms in fp32, in any order, errs by at most k·2^-24·Σ|a·b|
// (Higham 2002, section 4.2), `more` by as much again; and the one rounding to the result's dtype by half a unit in its
// last place.
static void check_sum(Array result, int64_t i, double sum, double magnitude, double terms, const char *what) {
    double unit = result.dt == DTYPE_FP32 ? 0x1p-24 : result.dt == DTYPE_BF16 ? 0x1p-8 : 0x1p-11;
    double bound = (terms + 3) * 0x1p-24 * magnitude;
    bound += unit * (fabs(sum) + bound) + (result.dt == DTYPE_FP16 ? 0x1p-25 : 0);
    if (!(fabs(get(result, i) - sum) <= bound)) {
        print_error("%s, %s: element %lld is %.9g, expected %.9g within %.3g\n", what, dtype_name(result.dt),
                    (long long)i, get(result, i), sum, bound);
        fail_test();
    }
}

// Reserves the scratch that the shape asks for and fills it with NaN, which nobody may read.
static void reserve(Dtype dt, Dtype y_dtype, int64_t ld_y, int64_t rows, int64_t in, int64_t out, bool with_backward) {
    assert_ok(
        device_reserve_scratch(device, cpu_linear_scratch(device, dt, y_dtype, ld_y, rows, in, out, with_backward)));
    size_t bytes;
    void *scratch = device_scratch(device, &bytes);
    if (bytes)
        memset(scratch, 0xff, bytes);
}

// ---- the three functions against double ----

enum { BIAS = 1, RESIDUAL = 2, IN_PLACE = 4, LOGITS = 8 };  // LOGITS: fp32 results, 7 elements between rows

static void check_forward(Dtype dt, int64_t rows, int64_t in, int64_t out, int flags) {
    Dtype y_dtype = flags & LOGITS ? DTYPE_FP32 : dt;
    int64_t ld = flags & LOGITS ? out + 7 : out;
    Array x = array_input(dt, rows * in, 1), w = array_input(dt, out * in, 2), bias = array_input(dt, out, 3);
    Array residual = array_input(dt, rows * out, 4);
    Array y = flags & IN_PLACE ? array_copy(residual) : array_random(y_dtype, rows * ld, 5), before = array_copy(y);
    bool has_residual = flags & (RESIDUAL | IN_PLACE);
    reserve(dt, y_dtype, ld, rows, in, out, false);
    cpu_linear_forward(stream, dt, y.data, y_dtype, ld, x.data, w.data, flags & BIAS ? bias.data : NULL,
                       flags & IN_PLACE   ? y.data
                       : flags & RESIDUAL ? residual.data
                                          : NULL,
                       rows, in, out);
    assert_ok(stream_sync(stream));
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t o = 0; o < out; o++) {
            double sum = 0, magnitude = 0;
            for (int64_t i = 0; i < in; i++) {
                double term = x.values[r * in + i] * w.values[o * in + i];
                sum += term, magnitude += fabs(term);
            }
            double more[2] = {flags & BIAS ? bias.values[o] : 0, has_residual ? residual.values[r * out + o] : 0};
            check_sum(y, r * ld + o, sum + more[0] + more[1], magnitude + fabs(more[0]) + fabs(more[1]), (double)in,
                      "y");
        }
        for (int64_t o = out; o < ld && r + 1 < rows; o++)
            assert_memory_equal(at(y, r * ld + o), at(before, r * ld + o), dtype_bytes(y.dt));
    }
    array_free(x), array_free(w), array_free(bias), array_free(residual), array_free(y), array_free(before);
}

static void check_backward(Dtype dt, int64_t rows, int64_t in, int64_t out, int64_t ld) {
    Array x = array_input(dt, rows * in, 1), w = array_input(dt, out * in, 2), dy = array_input(dt, rows * ld, 6);
    Array dx = array_random(dt, rows * in, 7), dw = array_random(DTYPE_FP32, out * in, 8),
          db = array_random(DTYPE_FP32, out, 9);
    reserve(dt, dt, ld, rows, in, out, true);
    cpu_linear_backward_input(stream, dt, dx.data, dy.data, ld, w.data, rows, in, out);
    assert_ok(stream_sync(stream));
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < in; i++) {
            double sum = 0, magnitude = 0;
            for (int64_t o = 0; o < out; o++) {
                double term = dy.values[r * ld + o] * w.values[o * in + i];
                sum += term, magnitude += fabs(term);
            }
            check_sum(dx, r * in + i, sum, magnitude, (double)out, "dx");
        }
    }
    for (int times = 1; times <= 3; times++) {  // overwrite, then add twice
        cpu_linear_backward_weight(stream, dt, dw.data, times == 2 ? NULL : db.data, dy.data, ld, x.data, rows, in, out,
                                   times > 1);
        assert_ok(stream_sync(stream));
        int db_times = times == 3 ? 2 : 1;
        for (int64_t o = 0; o < out; o++) {
            double sum = 0, magnitude = 0;
            for (int64_t r = 0; r < rows; r++)
                sum += dy.values[r * ld + o], magnitude += fabs(dy.values[r * ld + o]);
            check_sum(db, o, sum * db_times, magnitude * db_times, (double)(rows * db_times), "db");
            for (int64_t i = 0; i < in; i++) {
                sum = magnitude = 0;
                for (int64_t r = 0; r < rows; r++) {
                    double term = dy.values[r * ld + o] * x.values[r * in + i];
                    sum += term, magnitude += fabs(term);
                }
                check_sum(dw, o * in + i, sum * times, magnitude * times, (double)(rows * times), "dw");
            }
        }
    }
    array_free(x), array_free(w), array_free(dy), array_free(dx), array_free(dw), array_free(db);
}

static const int64_t row_counts[] = {1, 3, 13, 64, 257}, widths[] = {8, 24, 97, 257};
#define FOR_EACH(item, list)                                                                                \
    for (size_t item##_ = 0, item##_go = 1; item##_ < sizeof list / sizeof *list; item##_++, item##_go = 1) \
        for (int64_t item = list[item##_]; item##_go; item##_go = 0)

static void test_forward(void **state) {
    (void)state;
    static const int64_t flags[] = {
        0, BIAS, RESIDUAL, BIAS | RESIDUAL, BIAS | IN_PLACE, LOGITS, LOGITS | BIAS | RESIDUAL};
    int n = 0;
    for (Dtype dt = DTYPE_FP32; dt <= DTYPE_FP16; dt++)
        FOR_EACH(rows, row_counts)
    FOR_EACH(in, widths)
    FOR_EACH(out, widths)
    check_forward(dt, rows, in, out, (int)flags[n++ % 7]);
    for (Dtype dt = DTYPE_FP32; dt <= DTYPE_FP16; dt++)
        FOR_EACH(flag, flags)
    check_forward(dt, 64, 1100, 130, (int)flag);  // a sum longer than the library's step
}

static void test_backward(void **state) {
    (void)state;
    for (Dtype dt = DTYPE_FP32; dt <= DTYPE_FP16; dt++) {
        FOR_EACH(rows, row_counts)
        FOR_EACH(in, widths)
        FOR_EACH(out, widths)
        check_backward(dt, rows, in, out, (in + out) % 2 ? out : out + 7);
        check_backward(dt, 70, 24, 2500, 2507);  // more than one tile of the vocabulary
    }
}

// Shapes that need several tiles in every direction, checked at a few elements.
static void test_many_tiles(void **state) {
    (void)state;
    enum { ROWS = 600, IN = 2200, OUT = 2100 };
    for (Dtype dt = DTYPE_FP32; dt <= DTYPE_FP16; dt++) {
        Array x = array_input(dt, ROWS * IN, 1), w = array_input(dt, OUT * IN, 2),
              y = array_random(DTYPE_FP32, ROWS * OUT, 3);
        Array dy = array_input(dt, ROWS * OUT, 4), dx = array_random(dt, ROWS * IN, 5),
              dw = array_random(DTYPE_FP32, OUT * IN, 6);
        reserve(dt, DTYPE_FP32, OUT, ROWS, IN, OUT, true);
        cpu_linear_forward(stream, dt, y.data, DTYPE_FP32, OUT, x.data, w.data, NULL, NULL, ROWS, IN, OUT);
        cpu_linear_backward_input(stream, dt, dx.data, dy.data, OUT, w.data, ROWS, IN, OUT);
        cpu_linear_backward_weight(stream, dt, dw.data, NULL, dy.data, OUT, x.data, ROWS, IN, OUT, false);
        assert_ok(stream_sync(stream));
        for (int64_t n = 0; n < 2000; n++) {
            int64_t r = n * 37 % ROWS, i = n * 101 % IN, o = n * 211 % OUT;
            double sum = 0, magnitude = 0;
            for (int64_t j = 0; j < IN; j++)
                sum += x.values[r * IN + j] * w.values[o * IN + j],
                    magnitude += fabs(x.values[r * IN + j] * w.values[o * IN + j]);
            check_sum(y, r * OUT + o, sum, magnitude, IN, "y");
            sum = magnitude = 0;
            for (int64_t j = 0; j < OUT; j++)
                sum += dy.values[r * OUT + j] * w.values[j * IN + i],
                    magnitude += fabs(dy.values[r * OUT + j] * w.values[j * IN + i]);
            check_sum(dx, r * IN + i, sum, magnitude, OUT, "dx");
            sum = magnitude = 0;
            for (int64_t j = 0; j < ROWS; j++)
                sum += dy.values[j * OUT + o] * x.values[j * IN + i],
                    magnitude += fabs(dy.values[j * OUT + o] * x.values[j * IN + i]);
            check_sum(dw, o * IN + i, sum, magnitude, ROWS, "dw");
        }
        array_free(x), array_free(w), array_free(y), array_free(dy), array_free(dx), array_free(dw);
    }
}

// A product half-way between two numbers of the dtype, and a residual (or bias) that decides: wrong if the product is
// rounded first.
static void test_rounded_once(void **state) {
    (void)state;
    for (Dtype dt = DTYPE_BF16; dt <= DTYPE_FP16; dt++) {
        float half = dt == DTYPE_BF16 ? 0x1p-8f : 0x1p-11f;
        for (int place = 0; place < 3; place++) {  // the residual, the bias, the residual in y
            uint16_t x[8], w[8], more[8], y[8];
            for (int i = 0; i < 8; i++) {
                dtype_store(dt, x, (size_t)i, 1.0f);
                dtype_store(dt, more, (size_t)i, half / 4);
                dtype_store(dt, y, (size_t)i, half / 4);
            }
            for (int i = 0; i < 8; i++)
                dtype_store(dt, w, (size_t)i, i == 0 ? 1.0f : i == 1 ? half : 0.0f);
            reserve(dt, dt, 1, 8, 8, 1, false);
            uint16_t xs[64];
            for (int r = 0; r < 8; r++)
                memcpy(xs + 8 * r, x, sizeof x);
            cpu_linear_forward(stream, dt, y, dt, 1, xs, w, place == 1 ? more : NULL,
                               place == 0   ? more
                               : place == 2 ? y
                                            : NULL,
                               8, 8, 1);
            assert_ok(stream_sync(stream));
            for (int r = 0; r < 8; r++)
                assert_true(dtype_load(dt, y, (size_t)r) == 1.0f + 2 * half);
        }
    }
}

// ---- bits ----

static void check_cuts(Dtype dt, int64_t in, int64_t out, int64_t ld, bool logits) {
    enum { ROWS = 525 };  // 512 and an odd tail
    static const int64_t cuts[] = {256, 128, 64, 100, 13};
    Dtype y_dtype = logits ? DTYPE_FP32 : dt;
    Array x = array_random(dt, ROWS * in, 1), w = array_random(dt, out * in, 2), dy = array_random(dt, ROWS * ld, 3);
    Array y = array_random(y_dtype, ROWS * ld, 4), y_cut = array_copy(y);
    Array dx = array_random(dt, ROWS * in, 5), dx_cut = array_copy(dx);
    reserve(dt, y_dtype, ld, ROWS, in, out, true);
    cpu_linear_forward(stream, dt, y.data, y_dtype, ld, x.data, w.data, NULL, NULL, ROWS, in, out);
    cpu_linear_backward_input(stream, dt, dx.data, dy.data, ld, w.data, ROWS, in, out);
    FOR_EACH(cut, cuts) {
        if ((!gemm_fuses() && cut % LINEAR_ROW_TILE != 0) || (out > 10000 && cut < 64))  // the latter would take long
            continue;
        for (int64_t r = 0; r < ROWS; r += cut) {
            int64_t rows = cut < ROWS - r ? cut : ROWS - r;
            reserve(dt, y_dtype, ld, rows, in, out, true);
            cpu_linear_forward(stream, dt, at(y_cut, r * ld), y_dtype, ld, at(x, r * in), w.data, NULL, NULL, rows, in,
                               out);
            cpu_linear_backward_input(stream, dt, at(dx_cut, r * in), at(dy, r * ld), ld, w.data, rows, in, out);
        }
        assert_ok(stream_sync(stream));
        if (memcmp(y.data, y_cut.data, (size_t)y.len * dtype_bytes(y_dtype)) ||
            memcmp(dx.data, dx_cut.data, (size_t)dx.len * dtype_bytes(dt))) {
            print_error("%s %lld -> %lld (ld %lld): other bits in cuts of %lld rows\n", dtype_name(dt), (long long)in,
                        (long long)out, (long long)ld, (long long)cut);
            fail_test();
        }
        memset(y_cut.data, 0, (size_t)y.len * dtype_bytes(y_dtype));
        for (int64_t r = 0; r < ROWS; r++)  // what stands between the rows is not the function's
            memcpy(at(y_cut, r * ld + out), at(y, r * ld + out), (size_t)(ld - out) * dtype_bytes(y_dtype));
    }
    array_free(x), array_free(w), array_free(dy), array_free(y), array_free(y_cut), array_free(dx), array_free(dx_cut);
}

static void test_rows_alone(void **state) {
    (void)state;
    if (!gemm_fuses())
        print_message("  (this library: cuts at multiples of %d rows only)\n", LINEAR_ROW_TILE);
    for (Dtype dt = DTYPE_FP32; dt <= DTYPE_FP16; dt++) {
        int64_t vocab = gemm_fuses() && dt != DTYPE_FP16 ? 50257 : 5003;  // the others cut alike, but are slow
        check_cuts(dt, 64, vocab, vocab + 47, true);
        check_cuts(dt, 64, 3001, 3001, true);
        check_cuts(dt, 768, 97, 128, true);
        check_cuts(dt, 768, 97, 97, false);
        check_cuts(dt, 2304, 512, 512, false);
    }
}

static void test_again(void **state) {
    (void)state;
    enum { ROWS = 300, IN = 200, OUT = 500 };
    for (Dtype dt = DTYPE_FP32; dt <= DTYPE_FP16; dt++) {
        Array x = array_random(dt, ROWS * IN, 1), dy = array_random(dt, ROWS * OUT, 2);
        Array dw[2], db[2];
        reserve(dt, dt, OUT, ROWS, IN, OUT, true);
        for (int i = 0; i < 2; i++) {
            dw[i] = array_new(DTYPE_FP32, OUT * IN), db[i] = array_new(DTYPE_FP32, OUT);
            cpu_linear_backward_weight(stream, dt, dw[i].data, db[i].data, dy.data, OUT, x.data, ROWS, IN, OUT, false);
        }
        assert_ok(stream_sync(stream));
        assert_memory_equal(dw[0].data, dw[1].data, OUT * IN * sizeof(float));
        assert_memory_equal(db[0].data, db[1].data, OUT * sizeof(float));
        array_free(x), array_free(dy), array_free(dw[0]), array_free(dw[1]), array_free(db[0]), array_free(db[1]);
    }
}

static void test_too_little_scratch(void **state) {
    (void)state;
    Device *bare;
    Stream *compute;
    float x[4] = {1, 2, 3, 4}, y[8] = {0};
    assert_ok(device_open(&(DeviceOptions){.kind = DEVICE_CPU, .threads = 2}, &bare));
    assert_ok(stream_create(bare, STREAM_COMPUTE, "compute", &compute));
    cpu_linear_forward(compute, DTYPE_FP32, y, DTYPE_FP32, 4, x, x, NULL, NULL, 2, 2, 2);
    assert_fails(stream_sync(compute), "scratch");
    stream_destroy(compute);
    device_close(bare);
}

// The tests in a process that takes this machine for one with these instructions at most. Its idle threads sleep:
// spinning ones make thousands of small products slow when other programs run.
static int run_as(const char *isa) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv("ZERO_ISA", isa, 1);
        setenv("OMP_WAIT_POLICY", "passive", 1);
        execl("/proc/self/exe", "test_linear", (char *)NULL);
        _exit(127);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        print_error("test_linear fails with ZERO_ISA=%s\n", isa);
        return 1;
    }
    return 0;
}

int main(void) {
    const char *isa = getenv("ZERO_ISA");
    if (!isa)
        return run_as("avx512") + run_as("avx2") + run_as("base") != 0;
    print_message("linear with instructions up to %s\n", isa);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_backward),
        cmocka_unit_test(test_many_tiles),
        cmocka_unit_test(test_rounded_once),
        cmocka_unit_test(test_rows_alone),
        cmocka_unit_test(test_again),
        cmocka_unit_test(test_too_little_scratch),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
