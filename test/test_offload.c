// What offload is made of: files and their requests, and the optimizer's state in tiles.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "test/check.h"
#include "zero/nvme_file.h"
#include "zero/nvme_queue.h"
#include "zero/offload_state.h"

static char directory[] = "/var/tmp/test_offload_XXXXXX";  // a disk, where /tmp may be memory

static int make_directory(void **state) {
    (void)state;
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state) {
    (void)state;
    return rmdir(directory);  // fails unless it is empty: no file is left
}

static char *pages(size_t n) {
    void *memory;
    assert_int_equal(posix_memalign(&memory, NVME_ALIGN, n * NVME_ALIGN), 0);
    return memory;
}

// ---- both engines ----

static void move_pages(const NvmeEngine *engine, int fd) {
    enum { N = 64, DEPTH = 5 };
    void *impl;
    assert_int_equal(engine->open(fd, DEPTH, &impl), 0);
    char *out = pages(N), *in = pages(N);
    for (int i = 0; i < N * NVME_ALIGN; i++)
        out[i] = (char)(i * 7 + i / NVME_ALIGN);
    for (int pass = 0; pass < 2; pass++) {
        NvmeRequest requests[N];
        int in_flight = 0;
        for (int i = 0; i < N; i++) {
            int page = pass == 0 ? i : N - 1 - i;
            requests[i] = (NvmeRequest){.memory = (pass == 0 ? out : in) + page * NVME_ALIGN,
                                        .offset = page * NVME_ALIGN,
                                        .bytes = NVME_ALIGN,
                                        .write = pass == 0,
                                        .in_flight = true};
            if (in_flight == DEPTH) {
                assert_int_equal(engine->complete(impl), 0);
                in_flight--;
            }
            assert_int_equal(engine->submit(impl, &requests[i]), 0);
            in_flight++;
        }
        for (; in_flight > 0; in_flight--)
            assert_int_equal(engine->complete(impl), 0);
        for (int i = 0; i < N; i++)
            assert_true(!requests[i].in_flight && requests[i].result == NVME_ALIGN);
    }
    assert_memory_equal(in, out, N * NVME_ALIGN);
    // Beyond the end of the file: nothing is read, and that is the result.
    NvmeRequest beyond = {.memory = in, .offset = N * NVME_ALIGN, .bytes = NVME_ALIGN, .in_flight = true};
    assert_int_equal(engine->submit(impl, &beyond), 0);
    assert_int_equal(engine->complete(impl), 0);
    assert_int_equal(beyond.result, 0);
    engine->close(impl);
    free(in);
    free(out);
}

static void engines_move_bytes(void **state) {
    (void)state;
    int fd = open(directory, O_TMPFILE | O_RDWR, 0600);
    assert_true(fd >= 0);
#ifdef HAVE_LIBURING
    void *impl;
    int error = nvme_uring.open(fd, 1, &impl);
    if (error == 0) {
        nvme_uring.close(impl);
        move_pages(&nvme_uring, fd);
    } else {
        print_message("skipped: io_uring (%s)\n", strerror(-error));
    }
#else
    print_message("skipped: io_uring (built without liburing)\n");
#endif
    move_pages(&nvme_threads, fd);
    close(fd);
}

// ---- the file ----

static void file_fails_in_words(void **state) {
    (void)state;
    NvmeFile *file;
    assert_fails(nvme_open("/no/such/directory", "parameters", 3, 4096, &file),
                 "--nvme-path /no/such/directory: rank 3 cannot make a file for its parameters there: No such file");
    assert_fails(nvme_open("/proc", "parameters", 0, 4096, &file), "rank 0 cannot make a file");
    assert_fails(nvme_open(directory, "optimizer state", 1, 1LL << 50, &file),
                 "rank 1 needs 1125899906842624 bytes for its optimizer state");
}

static void short_requests_fail(void **state) {
    (void)state;
    NvmeFile *file;
    NvmeQueue *queue;
    assert_ok(nvme_open(directory, "parameters", 2, 2 * NVME_ALIGN, &file));
    assert_ok(nvme_queue_open(file, 2, &queue));
    char *memory = pages(4);
    NvmeRequest good = {.memory = memory, .bytes = NVME_ALIGN};
    memory[5] = 1;
    assert_ok(nvme_wait(queue, &good));  // not started
    assert_ok(nvme_start(queue, &good));
    assert_ok(nvme_wait(queue, &good));
    assert_int_equal(memory[5], 0);  // a new file is zero
    NvmeRequest half = {.memory = memory, .offset = NVME_ALIGN, .bytes = 2 * NVME_ALIGN};
    assert_ok(nvme_start(queue, &half));
    assert_fails(nvme_wait(queue, &half), "rank 2: reading 8192 bytes at offset 4096 of the file of parameters");
    NvmeRequest bad = {.memory = memory + 2 * NVME_ALIGN, .offset = -4096, .bytes = NVME_ALIGN, .write = true};
    Status status = nvme_start(queue, &bad);
    assert_fails(status == OK ? nvme_wait(queue, &bad) : status, "Invalid argument");
    nvme_queue_close(queue);
    nvme_close(file);
    free(memory);
}

// ---- the optimizer's state ----

typedef struct Fixture {
    Device *device;
    Stream *compute;
    Offload *offload;
    OffloadState *state;
    UnitLayout units[4];
    Layout layout;
    int kinds;
} Fixture;

static void open_state(Fixture *f, OffloadLevel level, int kinds, size_t buffer) {
    static const int64_t lens[] = {64, 40000, 2048, 12288};  // shorter than a tile, several and a rest, one, whole ones
    *f = (Fixture){.layout = {.n_units = 4, .n_ranks = 1, .group = 1}, .kinds = kinds};
    for (int u = 0; u < 4; u++) {
        f->units[u] = (UnitLayout){.full_len = lens[u], .shard_len = lens[u], .shard_offset = f->layout.shard_len};
        f->layout.shard_len += lens[u];
    }
    f->layout.units = f->units;
    assert_ok(device_open(&(DeviceOptions){.kind = DEVICE_CPU, .threads = 1}, &f->device));
    assert_ok(stream_create(f->device, STREAM_COMPUTE, "compute", &f->compute));
    OffloadOptions options = {.optimizer = level, .nvme_path = directory, .nvme_buffer = buffer, .state_kinds = kinds};
    assert_ok(offload_open(f->device, f->compute, options, &f->offload));
    size_t host[MEM_CATEGORIES] = {0}, nvme = 0;
    offload_state_plan(&f->layout, &options, host, &nvme);
    assert_ok(offload_state_open(f->offload, &f->layout, &f->state));
    for (int c = 0; c < MEM_CATEGORIES; c++)
        assert_int_equal(device_offload_bytes(f->device, (MemoryCategory)c), host[c]);
    assert_int_equal(device_file_bytes(f->device), nvme);
}

static void close_state(Fixture *f) {
    offload_state_close(f->state);
    offload_close(f->offload);
    stream_destroy(f->compute);
    device_close(f->device);
}

static float value(int kind, int u, int64_t i) {
    return (float)(kind * 1000000 + u * 100000 + (int)i);
}

// Every element of every kind, in pieces that no tile or block begins with.
static void check_all(Fixture *f, float added) {
    static float piece[777];
    for (int u = 0; u < 4; u++) {
        for (int k = 0; k < f->kinds; k++) {
            for (int64_t at = 0; at < f->units[u].shard_len; at += 777) {
                int64_t len = f->units[u].shard_len - at < 777 ? f->units[u].shard_len - at : 777;
                assert_ok(offload_state_read(f->state, (StateKind)k, u, at, len, piece));
                for (int64_t i = 0; i < len; i++)
                    assert_true(piece[i] == value(k, u, at + i) + added);
            }
        }
    }
}

static void walk(Fixture *f, bool change) {
    int64_t seen = 0;
    StateTile tile;
    assert_ok(offload_state_begin(f->state));
    for (;;) {
        assert_ok(offload_state_next(f->state, &tile));
        if (tile.len == 0)
            break;
        assert_int_equal(f->units[tile.u].shard_offset + tile.begin, seen);  // in order, nothing left out
        assert_int_equal(tile.begin % OFFLOAD_PAD_LEN, 0);
        seen += tile.len;
        for (int k = 0; k < STATE_KINDS; k++) {
            assert_int_equal(tile.state[k] == NULL, k >= f->kinds);
            for (int64_t i = 0; i < tile.len && tile.state[k]; i++)
                tile.state[k][i] += change ? 0.5f : 0;
        }
        assert_ok(offload_state_release(f->state, &tile, change));
    }
    assert_ok(offload_state_end(f->state));
    assert_int_equal(seen, f->layout.shard_len);
}

static void state_comes_back(void **unused) {
    (void)unused;
    const struct {
        OffloadLevel level;
        int kinds;
        size_t buffer;
    } cases[] = {
        {OFFLOAD_CPU, 3, 1 << 16}, {OFFLOAD_NVME, 3, 1 << 16}, {OFFLOAD_NVME, 2, 1 << 16}, {OFFLOAD_NVME, 3, 8 << 20}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        Fixture f;
        static float piece[1001];
        open_state(&f, cases[c].level, cases[c].kinds, cases[c].buffer);
        for (int u = 0; u < 4; u++) {
            for (int k = 0; k < f.kinds; k++) {
                for (int64_t at = 0; at < f.units[u].shard_len; at += 1001) {
                    int64_t len = f.units[u].shard_len - at < 1001 ? f.units[u].shard_len - at : 1001;
                    for (int64_t i = 0; i < len; i++)
                        piece[i] = value(k, u, at + i);
                    assert_ok(offload_state_write(f.state, (StateKind)k, u, at, len, piece));
                }
            }
        }
        check_all(&f, 0);
        walk(&f, true);
        check_all(&f, 0.5f);
        walk(&f, false);
        walk(&f, true);
        check_all(&f, 1.0f);
        close_state(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engines_move_bytes),
        cmocka_unit_test(file_fails_in_words),
        cmocka_unit_test(short_requests_fail),
        cmocka_unit_test(state_comes_back),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
