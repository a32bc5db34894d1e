// Collectives against a serial reference, bit for bit: one rank here, several by running this program again under
// mpirun, with COMM_TEST naming what the ranks shall do. With `--device cuda`, between GPUs (a program built with
// dev/cudasim: between simulated ones).
#include <math.h>
#include <signal.h>
#include <time.h>

#include "test/check.h"
#include "zero/comm.h"
#ifdef HAVE_MPI
#include <mpi.h>
#endif

// ---- what every rank contributes is known to all, so each computes the expected result by itself ----

static uint32_t mix(uint64_t x) {
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(x >> 32);
}

// Of both signs and many magnitudes, so that every order of addition gives other bits.
static float value_of(int rank, int64_t i, int salt) {
    uint32_t bits = mix((uint64_t)rank << 40 ^ (uint64_t)salt << 56 ^ (uint64_t)i);
    float mantissa = 1.0f + (float)(bits & 0xfffff) * 0x1p-20f;
    return ldexpf(bits >> 31 ? -mantissa : mantissa, (int)(bits >> 20 & 15) - 8);
}

static float rounded(Dtype dtype, float x) {
    char room[4];
    dtype_store(dtype, room, 0, x);
    return dtype_load(dtype, room, 0);
}

// The sum over all ranks of element i of unit `salt`, in the order that comm.h promises, rounded to `wire`.
static float expected_sum(CommShape shape, Dtype wire, int64_t i, int salt) {
    float total = 0;
    for (int first = 0; first < shape.n_ranks; first += shape.reduce_group) {
        float partial = rounded(wire, value_of(first, i, salt));
        for (int r = first + 1; r < first + shape.reduce_group; r++)
            partial += rounded(wire, value_of(r, i, salt));
        total = first == 0 ? partial : total + partial;
    }
    return rounded(wire, total);
}

typedef struct Bench {
    Device *device;
    Stream *compute, *gather, *reduce;
} Bench;

static bool on_cuda(void) {
    return getenv("COMM_DEVICE") && strcmp(getenv("COMM_DEVICE"), "cuda") == 0;
}

static void bench_open(Bench *b) {
    const char *local_rank = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    DeviceOptions options = {.kind = on_cuda() ? DEVICE_CUDA : DEVICE_CPU,
                             .local_rank = local_rank ? atoi(local_rank) : 0,
                             .threads = 1};
    assert_ok(device_open(&options, &b->device));
    assert_ok(stream_create(b->device, STREAM_COMPUTE, "compute", &b->compute));
    assert_ok(stream_create(b->device, STREAM_BACKGROUND, "gather", &b->gather));
    assert_ok(stream_create(b->device, STREAM_BACKGROUND, "reduce", &b->reduce));
}
static void bench_close(Bench *b) {
    stream_destroy(b->reduce);
    stream_destroy(b->gather);
    stream_destroy(b->compute);
    device_close(b->device);
}

// Copies of host data in new device memory, and back.
static void *to_device(const Bench *b, const void *data, size_t bytes) {
    void *memory, *staging;
    assert_ok(device_alloc(b->device, MEM_DATA, "test", bytes, &memory));
    assert_ok(device_host_alloc(b->device, "test", bytes, &staging));
    for (size_t i = 0; i < bytes; i++)  // the simulator's race build sees stores, but not memcpy
        ((volatile char *)staging)[i] = ((const char *)data)[i];
    stream_copy(b->compute, memory, staging, bytes);
    assert_ok(stream_sync(b->compute));
    device_host_free(b->device, staging);
    return memory;
}
static void from_device(const Bench *b, void *data, const void *memory, size_t bytes) {
    void *staging;
    assert_ok(device_host_alloc(b->device, "test", bytes, &staging));
    stream_copy(b->compute, staging, memory, bytes);
    assert_ok(stream_sync(b->compute));
    memcpy(data, staging, bytes);
    device_host_free(b->device, staging);
}
static float *zeros(const Bench *b, size_t n) {
    void *memory;
    assert_ok(device_alloc(b->device, MEM_DATA, "test", n * sizeof(float), &memory));
    return memory;
}

static float *filled_unit(int rank, int64_t len, int salt) {
    float *full = malloc((size_t)len * sizeof *full);
    for (int64_t i = 0; i < len; i++)
        full[i] = value_of(rank, i, salt);
    return full;
}

typedef struct Case {
    Dtype shard_dtype;
    bool add, in_place, on_compute;
    int64_t len;
} Case;

// How far a sum in another order, in `wire` all the way, may be from the one in rank order.
static float tolerance(CommShape shape, Dtype wire, int64_t i, int salt) {
    static const float epsilon[] = {[DTYPE_FP32] = 0x1p-22f, [DTYPE_BF16] = 0x1p-7f, [DTYPE_FP16] = 0x1p-10f};
    float magnitude = 0;
    for (int r = 0; r < shape.n_ranks; r++)
        magnitude += fabsf(value_of(r, i, salt));
    return (float)shape.n_ranks * epsilon[wire] * magnitude;
}

static void check_reduce(const Bench *b, Comm *comm, const CommOptions *options, Case c, int salt) {
    CommShape shape = options->shape;
    int own = comm_rank(comm) % shape.shard_group;
    int64_t full_len = c.len * shape.shard_group;
    size_t shard_bytes = (size_t)c.len * dtype_bytes(c.shard_dtype);
    float *values = filled_unit(comm_rank(comm), full_len, salt);
    char *got_shard = calloc(1, shard_bytes);
    for (int64_t i = 0; i < c.len && c.add; i++)
        dtype_store(c.shard_dtype, got_shard, (size_t)i, value_of(77, i, salt));
    float *full = to_device(b, values, (size_t)full_len * sizeof *full);
    void *shard = c.in_place ? (void *)(full + own * c.len) : to_device(b, got_shard, shard_bytes);
    Stream *stream = c.on_compute ? b->compute : b->reduce;
    comm_reduce_scatter(comm, stream, "unit 3", shard, c.shard_dtype, full, c.len, options->wire, c.add);
    assert_ok(stream_sync(stream));
    from_device(b, got_shard, shard, shard_bytes);
    for (int64_t i = 0; i < c.len; i++) {
        float sum = expected_sum(shape, options->wire, own * c.len + i, salt);
        if (c.add)
            sum = rounded(c.shard_dtype, value_of(77, i, salt)) + sum;
        float want = rounded(c.shard_dtype, sum), got = dtype_load(c.shard_dtype, got_shard, (size_t)i);
        bool near = options->native &&
                    fabsf(got - want) <= tolerance(shape, options->wire, own * c.len + i, salt) + 0.01f * fabsf(want);
        if (fp32_bits(want) != fp32_bits(got) && !near) {
            print_error(
                "rank %d of %d, S %d, G %d, wire %s, shard %s, add %d, len %lld: element %lld is %a, expected %a\n",
                comm_rank(comm), shape.n_ranks, shape.shard_group, shape.reduce_group, dtype_name(options->wire),
                dtype_name(c.shard_dtype), c.add, (long long)c.len, (long long)i, (double)got, (double)want);
            fail_test();
        }
    }
    if (!c.in_place)
        device_free(b->device, shard);
    device_free(b->device, full);
    free(got_shard);
    free(values);
}

static void check_gather(const Bench *b, Comm *comm, Dtype dtype, Case c, int salt) {
    CommShape shape = comm_shape(comm);
    int own = comm_rank(comm) % shape.shard_group, first = comm_rank(comm) - own;
    size_t shard_bytes = (size_t)c.len * dtype_bytes(dtype), full_bytes = shard_bytes * (size_t)shape.shard_group;
    char *values = calloc(1, full_bytes), *own_values = values + (size_t)own * shard_bytes;
    for (int64_t i = 0; i < c.len; i++)
        dtype_store(dtype, own_values, (size_t)i, value_of(comm_rank(comm), i, salt));
    char *full = to_device(b, values, full_bytes);
    char *shard = c.in_place ? full + (size_t)own * shard_bytes : to_device(b, own_values, shard_bytes);
    Stream *stream = c.on_compute ? b->compute : b->gather;
    comm_all_gather(comm, stream, "unit 4", full, shard, c.len, dtype);
    assert_ok(stream_sync(stream));
    from_device(b, values, full, full_bytes);
    for (int s = 0; s < shape.shard_group; s++)
        for (int64_t i = 0; i < c.len; i++)
            assert_true(dtype_load(dtype, values, (size_t)(s * c.len + i)) ==
                        rounded(dtype, value_of(first + s, i, salt)));
    if (!c.in_place)
        device_free(b->device, shard);
    device_free(b->device, full);
    free(values);
}

static CommOptions options_of(CommShape shape, Dtype wire, int64_t piece_bytes) {
    return (CommOptions){.shape = shape, .wire = wire, .max_len = 5000, .piece_bytes = piece_bytes, .timeout = 100};
}

static const Dtype dtypes[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};
static const int64_t lengths[] = {1, 999, 4097};

static void check_shape(const Bench *b, const CommOptions *options, bool on_compute) {
    Comm *comm;
    size_t before = device_bytes(b->device, MEM_STAGING);
    assert_ok(comm_open(b->device, b->compute, options, &comm));
    assert_int_equal(device_bytes(b->device, MEM_STAGING) - before, comm_staging_bytes(options));
    int salt = 1;
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        for (int d = 0; d < 3; d++) {
            check_reduce(b, comm, options, (Case){dtypes[d], false, false, on_compute, lengths[l]}, salt++);
            check_reduce(b, comm, options, (Case){dtypes[d], true, false, on_compute, lengths[l]}, salt++);
            check_gather(b, comm, dtypes[d], (Case){.len = lengths[l], .on_compute = on_compute}, salt++);
            check_gather(b, comm, dtypes[d], (Case){.in_place = true, .len = lengths[l], .on_compute = on_compute},
                         salt++);
        }
        check_reduce(b, comm, options, (Case){DTYPE_FP32, false, true, on_compute, lengths[l]}, salt++);
    }
    comm_close(comm);
}

// ---- one rank ----

static void test_one_rank(void **state) {
    (void)state;
    Bench b;
    bench_open(&b);
    for (int w = 0; w < 3; w++) {
        CommOptions options = options_of((CommShape){1, 1, 1}, dtypes[w], 0);
        check_shape(&b, &options, w == 0);
    }
    bench_close(&b);
}

static void test_start_alone(void **state) {
    (void)state;
    CommWorld world;
    assert_ok(comm_start(&world));
    assert_int_equal(world.size, 1);
    assert_int_equal(world.local_size, 1);
    comm_stop();
    setenv("SLURM_STEP_NUM_TASKS", "2", 1);
    assert_fails(comm_start(&world), "use srun --mpi=pmix");
    unsetenv("SLURM_STEP_NUM_TASKS");
}

static void test_shapes(void **state) {
    (void)state;
    CommWorld world = {.size = 12, .host_group = 4};
    CommShape shape;
    assert_ok(comm_shape_make(&world, 0, 0, &shape));
    assert_int_equal(shape.shard_group, 12);
    assert_int_equal(shape.reduce_group, 4);
    assert_ok(comm_shape_make(&(CommWorld){.size = 12, .host_group = 1}, 0, 0, &shape));
    assert_int_equal(shape.reduce_group, 12);  // one rank a host
    assert_ok(comm_shape_make(&world, 3, 0, &shape));
    assert_int_equal(shape.shard_group, 3);
    assert_int_equal(shape.reduce_group, 3);
    assert_fails(comm_shape_make(&world, 5, 0, &shape), "--shard-group 5 does not divide");
    assert_fails(comm_shape_make(&world, 0, 8, &shape), "groups of 8");
    assert_fails(comm_shape_make(&world, 3, 6, &shape), "must be equal");
}

// Textbook bytes: (N-1)/N of a unit for each; two levels send every addend inside the group, partial sums across.
static void test_bytes(void **state) {
    (void)state;
    CommShape flat = {8, 8, 8}, hosts = {8, 8, 4}, hybrid = {8, 4, 4};
    assert_int_equal(comm_all_gather_bytes(flat, 100, DTYPE_BF16), 7 * 200);
    assert_int_equal(comm_all_gather_bytes(hybrid, 100, DTYPE_BF16), 3 * 200);
    assert_int_equal(comm_reduce_scatter_bytes(flat, 100, DTYPE_BF16), 7 * 200);
    assert_int_equal(comm_reduce_scatter_bytes(hosts, 100, DTYPE_BF16), 3 * 2 * 200 + 1 * 400);
    assert_int_equal(comm_all_reduce_bytes(hosts, 100), 0);
    assert_int_equal(comm_reduce_scatter_bytes(hybrid, 100, DTYPE_BF16), 3 * 200);
    assert_int_equal(comm_all_reduce_bytes(hybrid, 100), 400);
    CommOptions large = {.shape = {1024, 1024, 8}, .wire = DTYPE_BF16, .max_len = 1 << 30};
    assert_true(comm_staging_bytes(&large) <= (size_t)80 << 20);
}

#ifdef HAVE_MPI
// ---- what the ranks of a test do ----

// Every message passes here: MPI's profiling interface. Only the MPI thread calls it.
static int64_t messages_bytes;
int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    messages_bytes += count;
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}

static int64_t counted_bytes(Comm *comm) {
    CommStats stats = comm_stats(comm);
    int64_t bytes = 0;
    for (int c = 0; c < COMM_COLLECTIVES; c++)
        bytes += stats.bytes_sent[c];
    return bytes;
}

// Reductions and gathers at the same time on two streams, in a different order of arrival on each rank.
static void check_concurrent(const Bench *b, Comm *comm, Dtype wire) {
    enum { UNITS = 20 };
    CommShape shape = comm_shape(comm);
    int64_t len = 4999;
    int own = comm_rank(comm) % shape.shard_group;
    size_t full_bytes = (size_t)(len * shape.shard_group) * sizeof(float);
    float *full[UNITS], *shard[UNITS];
    int64_t before = messages_bytes;
    comm_stats_reset(comm);
    for (int u = 0; u < UNITS; u++) {
        float *values = filled_unit(comm_rank(comm), len * shape.shard_group, u);
        full[u] = to_device(b, values, full_bytes);
        shard[u] = zeros(b, (size_t)len);
        free(values);
    }
    Event *reduced[UNITS];
    for (int u = 0; u < UNITS; u++) {
        assert_ok(event_create(b->device, &reduced[u]));
        comm_reduce_scatter(comm, b->reduce, "unit", shard[u], DTYPE_FP32, full[u], len, wire, false);
        event_record(reduced[u], b->reduce);
        stream_wait(b->gather, reduced[u]);
        comm_all_gather(comm, b->gather, "unit", full[u], shard[u], len, DTYPE_FP32);
    }
    double sum = own;
    assert_ok(comm_sum(comm, "places", &sum, 1));
    assert_ok(stream_sync(b->reduce));
    assert_ok(stream_sync(b->gather));
    float *values = malloc(full_bytes);
    for (int u = 0; u < UNITS; u++) {
        from_device(b, values, full[u], full_bytes);
        for (int64_t i = 0; i < len * shape.shard_group; i += 7)
            assert_int_equal(fp32_bits(values[i]), fp32_bits(expected_sum(shape, wire, i, u)));
        event_destroy(reduced[u]);
        device_free(b->device, full[u]);
        device_free(b->device, shard[u]);
    }
    free(values);
    assert_ok(comm_check_order(comm));
    CommStats stats = comm_stats(comm);
    assert_int_equal(stats.bytes_sent[COMM_ALL_GATHER], UNITS * comm_all_gather_bytes(shape, len, DTYPE_FP32));
    assert_int_equal(stats.bytes_sent[COMM_REDUCE_SCATTER], UNITS * comm_reduce_scatter_bytes(shape, len, wire));
    assert_int_equal(stats.bytes_sent[COMM_ALL_REDUCE], UNITS * comm_all_reduce_bytes(shape, len));
    assert_int_equal(messages_bytes - before, on_cuda() ? stats.bytes_sent[COMM_HOST_VALUES] : counted_bytes(comm));
    assert_true(stats.cpu_seconds > 0);
}

static void check_host_values(Comm *comm) {
    int n = comm_size(comm), rank = comm_rank(comm);
    enum { LEN = 20000 };  // more than one piece
    double *values = malloc(LEN * sizeof *values);
    for (int i = 0; i < LEN; i++)
        values[i] = (double)value_of(rank, i, 5) * 1e-3;
    assert_ok(comm_sum(comm, "values", values, LEN));
    for (int i = 0; i < LEN; i++) {
        double sum = (double)value_of(0, i, 5) * 1e-3;
        for (int r = 1; r < n; r++)
            sum += (double)value_of(r, i, 5) * 1e-3;
        assert_memory_equal(&values[i], &sum, sizeof sum);
    }
    free(values);

    double most[2] = {rank, rank == 1 ? NAN : 0};
    assert_ok(comm_max(comm, "values", most, 2));
    assert_true(most[0] == n - 1 && isnan(most[1]));

    unsigned __int128 wide[2] = {(unsigned __int128)1 << 127, (unsigned __int128)(rank + 1) << 64};
    assert_ok(comm_sum_u128(comm, "hash", wide, 2));
    assert_true(wide[0] == (n % 2 ? (unsigned __int128)1 << 127 : 0) && wide[1] == (unsigned __int128)(n * (n + 1) / 2)
                                                                                       << 64);

    size_t bytes = 9 << 20;
    uint32_t *data = calloc(1, bytes);
    for (size_t i = 0; i < bytes / 4 && rank == n - 1; i++)
        data[i] = mix(i);
    assert_ok(comm_broadcast(comm, "data", data, bytes, n - 1));
    for (size_t i = 0; i < bytes / 4; i++)
        assert_int_equal(data[i], mix(i));
    free(data);
    assert_ok(comm_barrier(comm, "the end of a test"));
}

static void check_agreement(const Bench *b, Comm *comm) {
    char text[200];
    assert_ok(comm_agree(comm, "configuration", "{\n  \"lr\": 0.1\n}"));
    snprintf(text, sizeof text, "{\n  \"lr\": 0.1,\n  \"seed\": %d\n}", comm_rank(comm) == 1 ? 2 : 1);
    assert_fails(comm_agree(comm, "configuration", text), "rank 0 has \"\"seed\": 1\", rank 1 has \"\"seed\": 2\"");
    assert_ok(comm_agree(comm, "data", "the same again"));

    float *values = zeros(b, 4);  // the same messages under different names
    comm_all_gather(comm, b->gather, comm_rank(comm) == 1 ? "unit 1" : "unit 2", values, values + comm_rank(comm), 1,
                    DTYPE_FP32);
    assert_ok(stream_sync(b->gather));
    assert_fails(comm_check_order(comm), "order of collectives");
    device_free(b->device, values);
}

static void check_waits(const Bench *b, Comm *comm) {
    Event *event;
    assert_ok(event_create(b->device, &event));
    float *values = zeros(b, 4);
    assert_ok(comm_barrier(comm, "the others wait for rank 1"));
    comm_stats_reset(comm);
    if (comm_rank(comm) == 1)
        usleep(500000);
    comm_all_gather(comm, b->gather, "unit 1", values, values + comm_rank(comm), 1, DTYPE_FP32);
    event_record(event, b->gather);
    stream_wait(b->compute, event);
    assert_ok(stream_sync(b->compute));
    assert_true(comm_rank(comm) == 1 || comm_stats(comm).wait_seconds > 0.1);
    event_destroy(event);
    device_free(b->device, values);
}

// Rank 1 is busy for longer than the timeout, and the others know.
static void check_patience(Bench *b, CommOptions options) {
    Comm *comm;
    options.timeout = 0.5;
    assert_ok(comm_open(b->device, b->compute, &options, &comm));
    comm_set_patience(comm, 60);
    if (comm_rank(comm) == 1)
        sleep(2);
    double value = comm_rank(comm);
    assert_ok(comm_max(comm, "patience", &value, 1));
    assert_true(value == comm_size(comm) - 1);
    comm_close(comm);
}

static void ranks_results(const CommWorld *world) {
    static const CommShape shapes[] = {{2, 2, 2}, {2, 2, 1}, {2, 1, 1}, {3, 3, 3}, {3, 3, 1}, {3, 1, 1},
                                       {4, 4, 4}, {4, 4, 2}, {4, 4, 1}, {4, 2, 2}, {4, 1, 1}};
    static const int64_t pieces[] = {256, 4096, 0};
    Bench b;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int w = 0; w < 3 && shapes[s].n_ranks == world->size; w++) {
            for (int p = 0; p < 3; p++) {
                if ((getenv("ZERO_TEST_COMM_DELAY_US") || on_cuda()) && p != w)
                    continue;  // slow
                bench_open(&b);
                CommOptions options = options_of(shapes[s], dtypes[w], pieces[p]);
                check_shape(&b, &options, p == w);
                Comm *comm;
                assert_ok(comm_open(b.device, b.compute, &options, &comm));
                check_concurrent(&b, comm, dtypes[w]);
                comm_close(comm);
                bench_close(&b);
            }
        }
    }
    CommOptions options = options_of((CommShape){world->size, world->size, world->host_group}, DTYPE_FP32, 0);
    Comm *comm;
    bench_open(&b);
    for (int w = 0; w < 3 && on_cuda(); w++) {  // NCCL's own reductions
        for (int s = 1; s <= world->size; s++) {
            CommOptions native = options_of((CommShape){world->size, s, s}, dtypes[w], 4096);
            native.native = true;
            if (world->size % s == 0)
                check_shape(&b, &native, s == 2);
        }
    }
    assert_ok(comm_open(b.device, b.compute, &options, &comm));
    check_host_values(comm);
    check_agreement(&b, comm);
    check_waits(&b, comm);
    comm_close(comm);
    check_patience(&b, options);
    bench_close(&b);
    comm_stop();
}

// Rank 1 does something wrong while the others gather. Returns how many elements it gathers if it comes to that.
static int64_t do_wrong(const char *how) {
    if (strcmp(how, "absent") == 0)
        sleep(60);
    if (strcmp(how, "stopped") == 0)
        raise(SIGSTOP);
    if (strcmp(how, "killed") == 0)
        raise(SIGKILL);
    if (strcmp(how, "failed") == 0) {
        fail("the disk is on fire");
        comm_fail(FAILED);
    }
    return strcmp(how, "other length") == 0 ? 50 : 100;
}

static void ignore(int signal_number) {
    (void)signal_number;
}

static void ranks_failure(const CommWorld *world, const char *how) {
    Bench b;
    bench_open(&b);
    signal(SIGTERM, ignore);  // as a training run does: mpirun's SIGTERM asks for an end, and nothing more
    CommOptions options = options_of((CommShape){world->size, world->size, world->size}, DTYPE_FP32, 0);
    options.timeout = 1;
    Comm *comm;
    assert_ok(comm_open(b.device, b.compute, &options, &comm));
    if (strcmp(how, "disagreement") == 0) {
        if (comm_agree(comm, "build", world->rank == world->size - 1 ? "1.1" : "1.0") != OK)
            comm_fail(BAD_USAGE);
    }
    comm_set_step(comm, 17);
    int64_t len = world->rank == 1 ? do_wrong(how) : 100;
    float *full = zeros(&b, (size_t)world->size * 100);
    comm_all_gather(comm, b.gather, "unit 3", full, full + world->rank * len, len, DTYPE_FP32);
    stream_sync(b.gather);
    sleep(60);  // whoever failed ends this
}

static int run_ranks(const char *what) {
    CommWorld world;
    if (comm_start(&world) != OK) {
        comm_fail(FAILED);
        return FAILED;
    }
    if (strcmp(what, "results") == 0)
        ranks_results(&world);
    else
        ranks_failure(&world, what);
    return 0;
}

// cmocka's assertions need a test around them.
static void test_as_rank(void **state) {
    (void)state;
    run_ranks(getenv("COMM_TEST"));
}

// ---- starting them ----

static char output[65536];

// Runs this program again on n ranks; returns the exit status, and what was printed in `output`.
static int run_mpi(int n, const char *what, const char *environment, double *seconds) {
    char program[4096], command[8192];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    assert_true(length > 0);
    program[length] = '\0';
    snprintf(command, sizeof command,
             "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ASAN_OPTIONS=detect_leaks=0 COMM_TEST='%s' %s "
             "timeout -k 5 150 mpirun -q --oversubscribe --bind-to none --mca btl self,vader -np %d '%s' 2>&1",
             what, environment, n, program);
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t used = fread(output, 1, sizeof output - 1, pipe);
    output[used] = '\0';
    int status = pclose(pipe);
    clock_gettime(CLOCK_MONOTONIC, &end);
    *seconds = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static void need_mpirun(void) {
    if (system("command -v mpirun >/dev/null") == 0)
        return;
    print_message("skipped: there is no mpirun on the PATH\n");
    skip();
}

static void expect(bool condition, const char *what, int status) {
    if (!condition) {
        print_error("%s; exit status %d, output:\n%s\n", what, status, output);
        fail_test();
    }
}

static void test_many_ranks(void **state) {
    (void)state;
    need_mpirun();
    for (int n = 2; n <= 4; n++) {
        double seconds;
        int status = run_mpi(n, "results", "", &seconds);
        expect(status == 0, "results are wrong", status);
        print_message("%d ranks: %.1f s\n", n, seconds);
    }
}

static void test_random_delays(void **state) {
    (void)state;
    need_mpirun();
    if (on_cuda())
        skip();  // of MPI's messages
    for (int n = 3; n <= 4; n++) {
        double seconds;
        int status = run_mpi(n, "results", "ZERO_TEST_COMM_DELAY_US=300", &seconds);
        expect(status == 0, "results are wrong with delays", status);
        print_message("%d ranks with random delays: %.1f s\n", n, seconds);
    }
}

static int count_of(const char *text) {
    int n = 0;
    for (const char *at = output; (at = strstr(at, text)); at++)
        n++;
    return n;
}

static void test_failures(void **state) {
    (void)state;
    need_mpirun();
    static const struct {
        const char *how, *message;
        int status;  // -1: any but 0
    } cases[] = {
        {"absent", "all_gather of unit 3 in step 17 did not finish within 1 s; waiting for rank 1 (host ", 1},
        {"stopped", "all_gather of unit 3 in step 17 did not finish within 1 s; waiting for rank 1 (host ", 1},
        {"killed", "rank 1 ", -1},
        {"failed", "rank 1: the disk is on fire\n", 1},
        {"other length", "all_gather of unit 3 in step 17 failed between this rank and rank ", 1},
        {"disagreement", "the ranks do not have the same build: rank 0 has \"1.0\", rank 2 has \"1.1\"", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (on_cuda() && strcmp(cases[i].how, "other length") == 0)
            continue;  // NCCL does not look
        double seconds;
        int status = run_mpi(3, cases[i].how, "", &seconds);
        expect(cases[i].status < 0 ? status != 0 : status == cases[i].status, "wrong exit status", status);
        expect(strstr(output, cases[i].message) != NULL, cases[i].message, status);
        expect(count_of("rank 0: ") + count_of("rank 1: ") + count_of("rank 2: ") <= 1, "more than one message",
               status);
        expect(seconds < 30, "took too long", status);  // much of it is starting up on a busy machine
        // Only the message: cmocka's own lines of the ranks would look like tests that never ended
        const char *line = strstr(output, cases[i].message);
        while (line > output && line[-1] != '\n')
            line--;
        print_message("%s: %.1f s: %.*s\n", cases[i].how, seconds, (int)strcspn(line, "\n"), line);
    }
}
#endif

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--device") == 0)
        setenv("COMM_DEVICE", argv[2], 1);  // the ranks inherit it
#ifdef HAVE_MPI
    if (getenv("COMM_TEST")) {
        const struct CMUnitTest as_rank[] = {cmocka_unit_test(test_as_rank)};
        return cmocka_run_group_tests(as_rank, NULL, NULL);
    }
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank),   cmocka_unit_test(test_start_alone),   cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_bytes),
#ifdef HAVE_MPI
        cmocka_unit_test(test_many_ranks), cmocka_unit_test(test_random_delays), cmocka_unit_test(test_failures),
#endif
    };
#ifndef HAVE_MPI
    print_message("skipped: many ranks (built without MPI)\n");
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
