// Speed of the linear layers on this machine, as fractions of the matmul peak: the best of several large square
// products, measured again before every shape, because other programs may be running.
//
//     bench_linear [fp32|bf16|fp16 [seconds for each shape and form]]
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "llm/cpu/gemm.h"
#include "llm/cpu/linear.h"

static Device *device;
static Stream *stream;

static void must(Status status) {
    if (status == OK)
        return;
    fprintf(stderr, "bench_linear: %s\n", status_message());
    exit(1);
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *array(size_t bytes) {
    void *memory;
    must(device_alloc(device, MEM_WORKSPACE, "operand", bytes, &memory));
    return memory;
}

static void fill(Dtype dt, void *memory, int64_t len) {
    for (int64_t i = 0; i < len; i++)
        dtype_store(dt, memory, (size_t)i, (float)((i * 2654435761u >> 8) & 0xffff) * 0x1p-15f - 1.0f);
}

// What is timed: a square product of the library, or one of the three functions.
typedef enum Form {
    SQUARE,
    FORWARD,
    FORWARD_BIAS,
    FORWARD_RESIDUAL,
    FORWARD_IN_PLACE,
    INPUT,
    WEIGHT,
    WEIGHT_ADD,
    N_FORMS
} Form;
static const char *const form_names[] = {"square",          "y",  "y + bias", "y + bias + r",
                                         "y += (in place)", "dx", "dw, db",   "dw, db +="};

typedef struct Shape {
    const char *name;
    int64_t rows, in, out;
    bool head;  // fp32 logits with rows padded to a multiple of 64, dlogits alike in dt
} Shape;

static void *x, *w, *y, *r, *dw, *db, *bias;

static void run_square(Dtype dt, int64_t n) {
    Gemm g = {dt, dt, false, true, false, GEMM_ADD_NOTHING, n, n, n, n, n, n};
    must(gemm(&g, y, x, w, NULL, NULL, dw));
}

static void run(Form form, Dtype dt, const Shape *s) {
    int64_t ld = s->head ? (s->out + 63) / 64 * 64 : s->out;
    Dtype y_dtype = s->head ? DTYPE_FP32 : dt;
    const void *add = form == FORWARD_RESIDUAL ? r : form == FORWARD_IN_PLACE ? y : NULL;
    if (form <= FORWARD_IN_PLACE)
        cpu_linear_forward(stream, dt, y, y_dtype, ld, x, w, form == FORWARD ? NULL : bias, add, s->rows, s->in,
                           s->out);
    else if (form == INPUT)
        cpu_linear_backward_input(stream, dt, r, y, ld, w, s->rows, s->in, s->out);
    else
        cpu_linear_backward_weight(stream, dt, dw, s->head ? NULL : db, y, ld, x, s->rows, s->in, s->out,
                                   form == WEIGHT_ADD);
}

// GFLOP/s of the fastest of the calls that fit into `limit` seconds, two at least.
static double measure(Form form, Dtype dt, const Shape *s, double limit) {
    double best = 1e9, start = seconds();
    for (int n = 0; n < 2 || seconds() - start < limit; n++) {
        double t = seconds();
        if (form == SQUARE)
            run_square(dt, s->rows);
        else
            run(form, dt, s);
        t = seconds() - t;
        best = t < best ? t : best;
    }
    return 2e-9 * (double)s->rows * (double)s->in * (double)s->out / best;
}

static void bench(Dtype dt, double limit) {
    static const Shape squares[] = {{"", 2048, 2048, 2048, false}, {"", 3072, 3072, 3072, false}};
    static const Shape shapes[] = {
        {"gpt2-124m qkv", 1024, 768, 2304, false},       {"gpt2-124m proj", 1024, 768, 768, false},
        {"gpt2-124m fc", 1024, 768, 3072, false},        {"gpt2-124m fc proj", 1024, 3072, 768, false},
        {"gpt2-124m qkv", 4096, 768, 2304, false},       {"gpt2-124m proj", 4096, 768, 768, false},
        {"gpt2-124m fc", 4096, 768, 3072, false},        {"gpt2-124m fc proj", 4096, 3072, 768, false},
        {"gpt2-124m head", 128, 768, 50257, true},       {"gpt2-124m head", 256, 768, 50257, true},
        {"gpt2-124m head", 512, 768, 50257, true},       {"gpt2-124m head", 1024, 768, 50257, true},
        {"llama-110m gate, up", 1024, 768, 4096, false}, {"llama-110m down", 1024, 2048, 768, false},
        {"llama-110m head", 256, 768, 32000, true},
    };
    enum { N_SHAPES = sizeof shapes / sizeof *shapes };
    Dtype native = device_has_native(device, dt) ? dt : DTYPE_FP32;
    double peak = 0, speed[N_SHAPES][N_FORMS] = {{0}};
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N_SHAPES; i++) {
            for (int k = 0; k < 2; k++) {
                double p = measure(SQUARE, native, &squares[k], limit / 2);
                peak = p > peak ? p : peak;
            }
            for (Form form = FORWARD; form < N_FORMS; form++) {
                if (shapes[i].head && form > FORWARD && form < INPUT)
                    continue;
                double s = measure(form, dt, &shapes[i], limit);
                speed[i][form] = s > speed[i][form] ? s : speed[i][form];
            }
        }
    }
    printf("%s: peak %.1f GFLOP/s%s\n", dtype_name(dt), peak, native == dt ? "" : " (fp32)");
    for (int i = 0; i < N_SHAPES; i++)
        for (Form form = FORWARD; form < N_FORMS; form++)
            if (speed[i][form] > 0)
                printf("  %-20s %5lld rows %5lld -> %5lld  %-16s %6.1f GFLOP/s  %.3f of peak\n", shapes[i].name,
                       (long long)shapes[i].rows, (long long)shapes[i].in, (long long)shapes[i].out, form_names[form],
                       speed[i][form], speed[i][form] / peak);
    fflush(stdout);
}

int main(int argc, char **argv) {
    must(device_open(&(DeviceOptions){.kind = DEVICE_CPU}, &device));
    must(stream_create(device, STREAM_COMPUTE, "compute", &stream));
    printf("%s\n", device_name(device));
    enum { LARGEST = 1024 * 50304, WEIGHTS = 50304 * 768 };
    x = array(4096 * 3072 * 4), w = array(WEIGHTS * 4), y = array((size_t)LARGEST * 4), r = array(4096 * 3072 * 4);
    dw = array((size_t)WEIGHTS * 4), db = array(50304 * 4), bias = array(50304 * 4);
    must(device_reserve_scratch(device, (size_t)256 << 20));
    double limit = argc > 2 ? atof(argv[2]) : 0.1;
    for (Dtype dt = DTYPE_FP32; dt <= DTYPE_FP16; dt++) {
        if (argc > 1 && strcmp(argv[1], dtype_name(dt)) != 0)
            continue;
        fill(dt, x, 4096 * 3072), fill(dt, w, WEIGHTS), fill(dt, y, 4096 * 4096), fill(dt, r, 4096 * 3072);
        bench(dt, limit);
    }
    void *arrays[] = {x, w, y, r, dw, db, bias};
    for (int i = 0; i < 7; i++)
        device_free(device, arrays[i]);
    stream_destroy(stream);
    device_close(device);
    return 0;
}
