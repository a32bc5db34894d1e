#include "llm/peak.h"

#include <time.h>

enum { CPU_SIZE = 2048, LEAST_SIZE = 256, MOST_SIZE = 8192 };
enum { VALUES = 1 << 20 };  // that fill the matrices: a GPU that multiplies zeros takes less power and clocks higher
static const double ENOUGH_SECONDS = 1e-3;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// FLOP/s of n x n products, and the seconds of the last one.
static Status measure(Device *device, Stream *compute, Dtype dt, int64_t n, int rounds, double round_seconds,
                      double *flops, double *seconds) {
    const Ops *ops = device_ops(device);
    size_t bytes = (size_t)(n * n) * dtype_bytes(dt);
    void *x = NULL, *w = NULL, *y = NULL, *values = NULL;
    Status status = OK;
    *flops = *seconds = 0;
    TRY_GOTO(device_reserve_scratch(device, ops->linear_scratch(device, dt, dt, n, n, n, n, false)), done);
    TRY_GOTO(device_alloc(device, MEM_WORKSPACE, "peak x", bytes, &x), done);
    TRY_GOTO(device_alloc(device, MEM_WORKSPACE, "peak w", bytes, &w), done);
    TRY_GOTO(device_alloc(device, MEM_WORKSPACE, "peak y", bytes, &y), done);
    void *all[] = {x, w, y};
    TRY_GOTO(device_host_alloc(device, "peak values", VALUES * dtype_bytes(dt), &values), done);
    for (size_t i = 0; i < VALUES; i++)
        dtype_store(dt, values, i, (float)((i * 2654435761u) % 2048) / 1024 - 1);
    for (int i = 0; i < 3; i++)
        for (size_t at = 0; at < bytes; at += VALUES * dtype_bytes(dt)) {
            size_t piece = VALUES * dtype_bytes(dt);
            stream_copy(compute, (char *)all[i] + at, values, bytes - at < piece ? bytes - at : piece);
        }
    TRY_GOTO(stream_sync(compute), done);
    for (int r = 0; r < rounds; r++) {
        double start = now(), elapsed;
        int products = 0;
        do {
            double began = now();
            ops->linear_forward(compute, dt, y, dt, n, x, w, NULL, NULL, n, n, n);
            TRY_GOTO(stream_sync(compute), done);
            products++;
            *seconds = now() - began;
            elapsed = now() - start;
        } while (elapsed < round_seconds);
        double rate = 2.0 * (double)(n * n) * (double)n * products / elapsed;
        if (rate > *flops)
            *flops = rate;
    }
done:
    device_host_free(device, values);
    device_free(device, x);
    device_free(device, w);
    device_free(device, y);
    device_release_scratch(device);
    return status;
}

Status peak_measure(Device *device, Stream *compute, Dtype dt, int rounds, double round_seconds, double *flops) {
    int64_t n = CPU_SIZE;
    double seconds;
    if (device_kind(device) == DEVICE_CUDA) {  // as large as it takes for the launch not to count
        n = LEAST_SIZE / 2;
        do {
            n *= 2;
            TRY(measure(device, compute, dt, n, 2, 0, flops, &seconds));
        } while (seconds < ENOUGH_SECONDS && n < MOST_SIZE);
    }
    return measure(device, compute, dt, n, rounds, round_seconds, flops, &seconds);
}
