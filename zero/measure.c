#include "zero/measure.h"

#include "llm/peak.h"
#include "zero/comm_backend.h"

enum { PEAK_ROUNDS = 5, GATHER_ROUNDS = 5, GATHER_LEN = 4 << 20 };  // fp32 elements of all ranks together

static Status gather_bytes_per_s(Device *device, Stream *stream, Comm *comm, double *bytes_per_s) {
    CommShape shape = comm_shape(comm);
    int64_t len = GATHER_LEN / shape.n_ranks;
    float *full;
    TRY(device_alloc(device, MEM_STAGING, "measured gather", (size_t)(len * shape.n_ranks) * sizeof *full, (void **)&full));
    Status status = OK;
    *bytes_per_s = 0;
    for (int i = 0; i < GATHER_ROUNDS && status == OK; i++) {
        TRY_GOTO(comm_barrier(comm, "measured gather"), done);
        double start = comm_clock();
        comm_all_gather(comm, stream, "measured gather", full, full + comm_rank(comm) * len, len, DTYPE_FP32);
        TRY_GOTO(stream_sync(stream), done);
        double rate = (double)comm_all_gather_bytes(shape, len, DTYPE_FP32) / (comm_clock() - start);
        *bytes_per_s = rate > *bytes_per_s ? rate : *bytes_per_s;
    }
done:
    device_free(device, full);
    return status;
}

Status measure_speed(Device *device, const CommWorld *world, const Config *config, ClusterSpeed *speed) {
    Stream *compute = NULL;
    Comm *comm = NULL;
    Status status = stream_create(device, STREAM_COMPUTE, "compute", &compute);
    TRY(status);
    double peak;
    CommOptions options = {.wire = DTYPE_FP32, .max_len = 1, .timeout = 600};
    TRY_GOTO(comm_shape_make(world, 0, 0, &options.shape), done);
    TRY_GOTO(peak_measure(device, compute, config->dtype, PEAK_ROUNDS, 0.1, &peak), done);
    speed->flops = MEASURE_FRACTION * peak;
    TRY_GOTO(measure_offload(device, compute, config, speed), done);
    if (world->size == 1)
        goto done;
    TRY_GOTO(comm_open(device, compute, &options, &comm), done);
    TRY_GOTO(gather_bytes_per_s(device, compute, comm, &speed->bytes_per_s), done);
    double slowest[] = {-speed->flops, -speed->bytes_per_s};
    TRY_GOTO(comm_max(comm, "measured speed", slowest, 2), done);
    speed->flops = -slowest[0];
    speed->bytes_per_s = -slowest[1];
done:
    comm_close(comm);
    stream_destroy(compute);
    return status;
}
