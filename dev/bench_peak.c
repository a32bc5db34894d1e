// bench_peak DTYPE [ROUNDS SECONDS]: FLOP/s of large square matrix products on this machine, the best of the rounds.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llm/peak.h"

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "fp32";
    Dtype dt = strcmp(name, "bf16") == 0 ? DTYPE_BF16 : strcmp(name, "fp16") == 0 ? DTYPE_FP16 : DTYPE_FP32;
    int rounds = argc > 2 ? atoi(argv[2]) : 5;
    double seconds = argc > 3 ? atof(argv[3]) : 1.0, flops = 0;
    DeviceOptions options = {.kind = DEVICE_CPU};
    Device *device = NULL;
    Stream *compute = NULL;
    Status status = device_open(&options, &device);
    if (status == OK)
        status = stream_create(device, STREAM_COMPUTE, "compute", &compute);
    if (status == OK)
        status = peak_measure(device, compute, dt, rounds, seconds, &flops);
    if (status == OK)
        printf("%.4g\n", flops);
    else
        fprintf(stderr, "bench_peak: %s\n", status_message());
    stream_destroy(compute);
    device_close(device);
    return status;
}
