// bench_adamw [ELEMENTS]: bytes/s of the host's AdamW beside those of an in-place x[i] += c over the same arrays, in turn, the
// best of some rounds. Both read and write master weights and moments; the update also reads the gradient and writes nothing
// else, the other one goes over the gradient as well. Prints "adamw_bytes_per_s in_place_bytes_per_s ratio".
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "llm/host_ops.h"

enum {
    ARRAYS = 4,
    ROUNDS = 12,
    TABLE = 50257 * 768
};  // master, m, v, gradient; elements of the largest tensor of gpt2-124m

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void in_place(float *x, int64_t len, float c, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < len; i++)
        x[i] += c;
}

static double later(double a, double b) {
    return a > b ? a : b;
}

static Status measure(Device *device, float *arrays[ARRAYS], int64_t len) {
    int threads = device_host_threads(device);
    for (int k = 0; k < ARRAYS; k++)
        TRY(device_host_alloc(device, "array", (size_t)len * sizeof(float), (void **)&arrays[k]));
    const AdamwArgs args = {.len = len,
                            .master = arrays[0],
                            .m = arrays[1],
                            .v = arrays[2],
                            .grad = arrays[3],
                            .param_dtype = DTYPE_FP32,
                            .grad_dtype = DTYPE_FP32,
                            .grad_divisor = 1,
                            .grad_factor = 1,
                            .lr = 1e-3f,
                            .beta1 = 0.9f,
                            .beta2 = 0.95f,
                            .eps = 1e-8f,
                            .weight_decay = 0.1f,
                            .bias_correction1 = 0.1f,
                            .bias_correction2 = 0.05f,
                            .kind = OPT_ADAMW,
                            .n_ranges = 1,
                            .range_end = {len},
                            .range_decay = {true}};
    double adamw = 0, plain = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now();
        for (int k = 0; k < ARRAYS; k++)
            in_place(arrays[k], len, 1e-6f, threads);
        plain = later(plain, 2.0 * ARRAYS * (double)len * sizeof(float) / (now() - start));
        start = now();
        host_adamw(&args, threads);
        adamw = later(adamw, (2.0 * ARRAYS - 1) * (double)len * sizeof(float) / (now() - start));
    }
    printf("%.4g %.4g %.3f\n", adamw, plain, adamw / plain);
    return OK;
}

int main(int argc, char **argv) {
    Device *device = NULL;
    float *arrays[ARRAYS] = {0};
    DeviceOptions options = {.kind = DEVICE_CPU};
    Status status = device_open(&options, &device);
    if (status == OK)
        status = measure(device, arrays, argc > 1 ? atoll(argv[1]) : TABLE);
    if (status != OK)
        fprintf(stderr, "bench_adamw: %s\n", status_message());
    for (int k = 0; k < ARRAYS && device; k++)
        device_host_free(device, arrays[k]);
    device_close(device);
    return status;
}
