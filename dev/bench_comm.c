// How long the units of a model travel with nothing else going on: the gathers and reductions of a step, one after another.
//
//     mpirun -n N bench_comm ROUNDS [train_gpt's options]
//
// On GPUs (--device cuda), with --deterministic on and off: reductions in rank order, and NCCL's own.
//
// Prints one JSON object: per unit the seconds of its all-gather and of its reduce-scatter (the median of the rounds), and the
// bytes that a rank sends for each. bench_zero.py sets the times of steps beside them.
#include <stdio.h>
#include <stdlib.h>

#include "zero/comm_backend.h"
#include "zero/options.h"

enum { MAX_ROUNDS = 100 };

typedef struct Bench {
    Config config;
    Layout layout;
    CommWorld world;
    CommShape shape;
    Device *device;
    Stream *stream;
    Comm *comm;
    float *full;     // one unit, fp32
    double *times;   // (2, n_units, rounds): of gathers, of reductions
    int rounds;
} Bench;

static Status open_bench(Bench *b, int argc, char **argv) {
    if (argc < 2 || (b->rounds = atoi(argv[1])) < 1 || b->rounds > MAX_ROUNDS)
        return fail_usage("bench_comm ROUNDS [train_gpt's options]");
    config_defaults(&b->config);
    TRY(config_parse(&b->config, argc - 1, argv + 1));
    TRY(comm_start(&b->world));
    TRY(config_resolve(&b->config, b->world.size, 0));
    TRY(layout_make(&b->config.model, b->world.size, b->config.shard_group, b->world.rank, &b->layout));
    DeviceOptions device = {.kind = b->config.device == CHOOSE_CUDA ? DEVICE_CUDA : DEVICE_CPU, .threads = 1,
                            .local_rank = b->world.local_rank, .local_size = b->world.local_size};
    TRY(device_open(&device, &b->device));
    TRY(stream_create(b->device, STREAM_COMPUTE, "compute", &b->stream));
    TRY(options_shape(&b->config, &b->world, device.kind, &b->shape));
    CommOptions options = options_comm(&b->config, &b->layout, b->shape, device.kind);
    TRY(comm_open(b->device, b->stream, &options, &b->comm));
    int64_t longest = 0;
    for (int u = 0; u < b->layout.n_units; u++)
        longest = b->layout.units[u].full_len > longest ? b->layout.units[u].full_len : longest;
    TRY(device_alloc(b->device, MEM_SLOTS, "unit", (size_t)longest * sizeof *b->full, (void **)&b->full));
    b->times = calloc((size_t)(2 * b->layout.n_units * b->rounds), sizeof *b->times);
    return b->times ? OK : fail("out of host memory");
}

static double *time_of(const Bench *b, bool reduces, int u) {
    return b->times + ((reduces ? b->layout.n_units : 0) + u) * b->rounds;
}

static Status run_round(Bench *b, int round) {
    ZeroOptions zero = options_zero(&b->config);
    for (int reduces = 0; reduces < 2; reduces++) {
        TRY(comm_barrier(b->comm, "bench"));
        for (int u = 0; u < b->layout.n_units; u++) {
            int64_t len = b->layout.units[u].shard_len;
            char *own = (char *)b->full + (size_t)(b->layout.shard * len) * dtype_bytes(zero.dtype);
            double start = comm_clock();
            if (reduces)
                comm_reduce_scatter(b->comm, b->stream, "unit", b->full + b->layout.shard * len, DTYPE_FP32, b->full, len,
                                    zero.reduce_dtype, false);
            else
                comm_all_gather(b->comm, b->stream, "unit", b->full, own, len, zero.dtype);
            TRY(stream_sync(b->stream));
            time_of(b, reduces, u)[round] = comm_clock() - start;
        }
    }
    return OK;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_list(const Bench *b, const char *name, bool reduces) {
    printf("\"%s\":[", name);
    for (int u = 0; u < b->layout.n_units; u++) {
        double *times = time_of(b, reduces, u);
        qsort(times, (size_t)b->rounds, sizeof *times, by_value);
        printf("%s%.9f", u ? "," : "", times[b->rounds / 2]);
    }
    printf("]");
}

static void print_bench(const Bench *b) {
    ZeroOptions zero = options_zero(&b->config);
    int64_t gathers = 0, reductions = 0;
    for (int u = 0; u < b->layout.n_units; u++) {
        int64_t len = b->layout.units[u].shard_len;
        gathers += comm_all_gather_bytes(b->shape, len, zero.dtype);
        reductions += comm_reduce_scatter_bytes(b->shape, len, zero.reduce_dtype) + comm_all_reduce_bytes(b->shape, len);
    }
    printf("{\"n_params\":%lld,\"unit_0\":%lld,\"gather_bytes\":%lld,\"reduce_bytes\":%lld,", (long long)b->layout.n_params,
           (long long)b->layout.units[0].spec.len, (long long)gathers, (long long)reductions);
    print_list(b, "gather_s", false);
    printf(",");
    print_list(b, "reduce_s", true);
    printf("}\n");
}

int main(int argc, char **argv) {
    static Bench b;
    Status status = open_bench(&b, argc, argv);
    for (int round = 0; status == OK && round < b.rounds; round++)
        status = run_round(&b, round);
    if (status != OK)
        comm_fail(status);
    else if (b.world.rank == 0)
        print_bench(&b);
    free(b.times);
    device_free(b.device, b.full);
    comm_close(b.comm);
    stream_destroy(b.stream);
    device_close(b.device);
    layout_free(&b.layout);
    comm_stop();
    return status;
}
