// test_device: memory accounts and their messages, the seal, and what streams and events promise (llm/device.h).
//
//     test_device [--device cpu|cuda]
#include "test/check.h"

#include <stdatomic.h>
#include <time.h>

#include "llm/device.h"

static DeviceKind subject = DEVICE_CPU;

static Device *open_device(size_t memory_limit) {
    Device *device;
    assert_ok(device_open(&(DeviceOptions){.kind = subject, .threads = 2, .memory_limit = memory_limit}, &device));
    return device;
}
static Stream *open_stream(Device *device, StreamKind kind) {
    Stream *stream;
    assert_ok(stream_create(device, kind, "test", &stream));
    return stream;
}
static Event *open_event(Device *device) {
    Event *event;
    assert_ok(event_create(device, &event));
    return event;
}
static void sleep_ms(int ms) {
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL);
}

// What a device's memory holds, in host memory that the caller frees with device_host_free.
static unsigned char *read_back(Device *device, Stream *stream, const void *memory, size_t bytes) {
    void *host;
    assert_ok(device_host_alloc(device, "read back", bytes, &host));
    stream_copy(stream, host, memory, bytes);
    assert_ok(stream_sync(stream));
    return host;
}
static void assert_zero(Device *device, Stream *stream, const void *memory, size_t bytes) {
    unsigned char *host = read_back(device, stream, memory, bytes);
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(host[i], 0);
    device_host_free(device, host);
}

// ---- memory ----

static void test_accounts(void **state) {
    (void)state;
    Device *device = open_device(0);
    Stream *stream = open_stream(device, STREAM_COMPUTE);
    assert_int_equal(device_kind(device), subject);
    assert_int_equal(device_threads(device), subject == DEVICE_CPU ? 2 : 1);
    assert_true(device_memory_size(device) > 0);
    void *a, *b, *c, *host;
    assert_ok(device_alloc(device, MEM_PARAMETERS, "a", 1000, &a));
    assert_ok(device_alloc(device, MEM_PARAMETERS, "b", 3 << 20, &b));  // large ones come from elsewhere
    assert_ok(device_alloc(device, MEM_DATA, "c", 1, &c));
    assert_ok(device_host_alloc(device, "host", 77, &host));
    assert_int_equal(device_bytes(device, MEM_PARAMETERS), 1000 + (3 << 20));
    assert_int_equal(device_bytes(device, MEM_DATA), 1);
    assert_int_equal(device_host_bytes(device), 77);
    assert_int_equal((uintptr_t)a % 256 + (uintptr_t)b % 256 + (uintptr_t)c % 256 + (uintptr_t)host % 4096, 0);
    assert_zero(device, stream, b, 3 << 20);
    device_free(device, b);
    assert_int_equal(device_bytes(device, MEM_PARAMETERS), 1000);
    assert_int_equal(device_peak_bytes(device, MEM_PARAMETERS), 1000 + (3 << 20));
    void *none = a;
    assert_ok(device_alloc(device, MEM_DATA, "nothing", 0, &none));
    assert_null(none);
    device_free(device, NULL);
    device_free(device, a);
    device_free(device, c);
    device_host_free(device, host);
    assert_int_equal(device_bytes(device, MEM_PARAMETERS) + device_bytes(device, MEM_DATA) + device_host_bytes(device),
                     0);
    stream_destroy(stream);
    device_close(device);
    device_close(NULL);
}

static void test_limit(void **state) {
    (void)state;
    Device *device = open_device(10 << 20);
    void *a, *b;
    assert_ok(device_alloc(device, MEM_GRADIENTS, "gradients", 6 << 20, &a));
    assert_fails(device_alloc(device, MEM_SLOTS, "slot of blocks", 5 << 20, &b), "slot of blocks");
    assert_null(b);
    assert_fails(device_alloc(device, MEM_SLOTS, "slot", (size_t)-1, &b),
                 "the limit is 10.5 MB and 6.3 MB are in use (gradients");
    assert_int_equal(device_bytes(device, MEM_SLOTS), 0);
    assert_ok(device_alloc(device, MEM_SLOTS, "what is left", 4 << 20, &b));
    device_free(device, a);
    device_free(device, b);
    device_close(device);

#ifdef SANITIZE_BUILD
    if (subject == DEVICE_CPU)  // AddressSanitizer ends the program instead
        return;
#endif
    device = open_device(0);  // no limit of ours, but more than any machine has
    assert_fails(device_alloc(device, MEM_OPTIMIZER, "moments", (size_t)1 << 60, &a), "no room for moments (optimizer");
    device_close(device);
}

static void test_seal(void **state) {
    (void)state;
    Device *device = open_device(0);
    void *a;
    device_seal(device, true);
    assert_fails(device_alloc(device, MEM_DATA, "late", 8, &a), "late (8 bytes) after the first step");
    device_seal(device, false);
    assert_ok(device_alloc(device, MEM_DATA, "a", 8, &a));
    device_free(device, a);
    device_close(device);
}

static void test_scratch(void **state) {
    (void)state;
    Device *device = open_device(0);
    size_t bytes;
    assert_ok(device_reserve_scratch(device, 100));
    assert_ok(device_reserve_scratch(device, 5000));
    assert_ok(device_reserve_scratch(device, 200));
    assert_non_null(device_scratch(device, &bytes));
    assert_int_equal(bytes, 5000);
    assert_int_equal(device_bytes(device, MEM_WORKSPACE), 5000);
    device_close(device);
}

// Without CUDA in this program, without a GPU, or with more ranks than the host has GPUs.
static void test_no_gpu(void **state) {
    (void)state;
    Device *device;
    DeviceOptions options = {.kind = DEVICE_CUDA, .local_rank = 999, .local_size = 1000};
    assert_true(device_open(&options, &device) != OK);
    if (subject == DEVICE_CUDA)
        assert_non_null(strstr(status_message(), "1000 ranks on this host, but "));
    assert_null(device);
    status_clear();
}

// ---- streams ----

typedef struct Append {
    int *list, *n;
    int value, wait_ms;
} Append;
static Status append(void *arguments) {
    const Append *a = arguments;
    if (a->wait_ms)
        sleep_ms(a->wait_ms);
    a->list[(*a->n)++] = a->value;
    return OK;
}

// Work of a stream runs in the order it was enqueued, also when the queue is full and when arguments change afterwards.
static void test_stream_order(void **state) {
    (void)state;
    enum { N = 3000 };
    Device *device = open_device(0);
    static const StreamKind kinds[] = {STREAM_COMPUTE, STREAM_BACKGROUND};
    for (int k = 0; k < 2; k++) {
        Stream *stream = open_stream(device, kinds[k]);
        int list[N], n = 0;
        for (int i = 0; i < N; i++) {
            Append a = {list, &n, i, i == 0 ? 20 : 0};
            stream_call(stream, append, &a, sizeof a);
            a.value = -1;
        }
        assert_ok(stream_sync(stream));
        assert_int_equal(n, N);
        for (int i = 0; i < N; i++)
            assert_int_equal(list[i], i);
        stream_destroy(stream);
    }
    stream_destroy(NULL);
    device_close(device);
}

static Status sum_bytes(void *arguments) {
    const unsigned char *bytes = arguments;
    for (int i = 0; i < STREAM_CALL_BYTES; i++)
        if (bytes[i] != (unsigned char)(i * 7))
            return fail("byte %d of the arguments is wrong", i);
    return OK;
}
static Status do_nothing(void *arguments) {
    (void)arguments;
    return OK;
}
static void test_call_arguments(void **state) {
    (void)state;
    Device *device = open_device(0);
    for (int k = 0; k < 2; k++) {
        Stream *stream = open_stream(device, k ? STREAM_BACKGROUND : STREAM_COMPUTE);
        unsigned char bytes[STREAM_CALL_BYTES];
        for (int i = 0; i < STREAM_CALL_BYTES; i++)
            bytes[i] = (unsigned char)(i * 7);
        stream_call(stream, sum_bytes, bytes, sizeof bytes);  // as many as device.h allows
        stream_call(stream, do_nothing, NULL, 0);
        memset(bytes, 0, sizeof bytes);
        assert_ok(stream_sync(stream));
        stream_destroy(stream);
    }
    device_close(device);
}

static void test_copy_and_zero(void **state) {
    (void)state;
    enum { BYTES = (5 << 20) + 13 };  // enough for threads, not a multiple of anything
    Device *device = open_device(0);
    void *to;
    unsigned char *from;
    assert_ok(device_host_alloc(device, "from", BYTES, (void **)&from));
    assert_ok(device_alloc(device, MEM_DATA, "to", BYTES + 1, &to));
    for (int i = 0; i < BYTES; i++)
        from[i] = (unsigned char)(i * 31 + i / 256);
    for (int k = 0; k < 2; k++) {
        Stream *stream = open_stream(device, k ? STREAM_BACKGROUND : STREAM_COMPUTE);
        char *end = (char *)to + BYTES;
        stream_copy(stream, end, from + 5, 1);
        stream_copy(stream, to, from, BYTES);
        unsigned char *back = read_back(device, stream, to, BYTES);
        assert_memory_equal(back, from, BYTES);
        device_host_free(device, back);
        stream_zero(stream, to, BYTES);
        stream_copy(stream, to, from, 0);
        stream_zero(stream, NULL, 0);
        assert_zero(device, stream, to, BYTES);
        back = read_back(device, stream, end, 1);
        assert_int_equal(*back, from[5]);
        device_host_free(device, back);
        stream_destroy(stream);
    }
    device_free(device, to);
    device_host_free(device, from);
    device_close(device);
}

typedef struct FailWith {
    const char *message;
    bool usage;
} FailWith;
static Status fail_with(void *arguments) {
    const FailWith *f = arguments;
    return f->usage ? fail_usage("%s", f->message) : fail("%s", f->message);
}

// The first error sticks, later work is dropped, events still fire, other streams go on, and the host's own message is
// its own.
static void test_sticky_error(void **state) {
    (void)state;
    Device *device = open_device(0);
    for (int k = 0; k < 2; k++) {
        Stream *stream = open_stream(device, k ? STREAM_BACKGROUND : STREAM_COMPUTE);
        Stream *other = open_stream(device, STREAM_BACKGROUND);
        Event *event = open_event(device);
        int list[4], n = 0;
        char *memory, *from;
        assert_ok(device_host_alloc(device, "memory", 8, (void **)&memory));
        assert_ok(device_host_alloc(device, "from", 8, (void **)&from));
        strcpy(memory, "before");
        strcpy(from, "after");
        stream_call(stream, append, &(Append){list, &n, 1, 0}, sizeof(Append));
        stream_call(stream, fail_with, &(FailWith){"the disk is full", k == 1}, sizeof(FailWith));
        stream_call(stream, fail_with, &(FailWith){"a later error", false}, sizeof(FailWith));
        stream_call(stream, append, &(Append){list, &n, 2, 0}, sizeof(Append));
        if (subject == DEVICE_CUDA)  // where the host learns of it later
            assert_int_equal(stream_sync(stream), k == 1 ? BAD_USAGE : FAILED);
        stream_copy(stream, memory, from, 8);
        event_record(event, stream);
        stream_wait(other, event);  // must not hang
        stream_call(other, append, &(Append){list, &n, 3, 0}, sizeof(Append));
        assert_ok(stream_sync(other));
        assert_ok(event_sync(event));
        for (int i = 0; i < 2; i++) {
            status_clear();
            assert_int_equal(stream_sync(stream), k == 1 ? BAD_USAGE : FAILED);
            assert_string_equal(status_message(), "the disk is full");
        }
        status_clear();
        assert_int_equal(n, 2);
        assert_int_equal(list[0] * 10 + list[1], 13);
        assert_string_equal(memory, "before");
        device_host_free(device, memory);
        device_host_free(device, from);
        event_destroy(event);
        stream_destroy(stream);
        stream_destroy(other);
    }
    device_close(device);
}

// ---- events ----

typedef struct Step {
    atomic_int *clock;
    int *seen;
    int wait_ms;
} Step;
static Status step(void *arguments) {  // *seen = the number of steps before this one
    const Step *s = arguments;
    if (s->wait_ms)
        sleep_ms(s->wait_ms);
    *s->seen = atomic_fetch_add(s->clock, 1);
    return OK;
}

// A ring of producer and consumer over one buffer, as slots use it: ready and released, compute and a worker, many
// rounds.
typedef struct Slot {
    int *slot, *taken;
    int value;
} Slot;
static Status fill_slot(void *arguments) {
    const Slot *s = arguments;
    if (s->value % 16 == 0)
        sleep_ms(1);
    *s->slot = s->value;
    return OK;
}
static Status take_slot(void *arguments) {
    const Slot *s = arguments;
    if (s->value % 24 == 0)
        sleep_ms(1);
    *s->taken = *s->slot;
    return OK;
}
static void test_slots(void **state) {
    (void)state;
    enum { ROUNDS = 400 };
    Device *device = open_device(0);
    for (int k = 0; k < 2; k++) {
        Stream *gather = open_stream(device, STREAM_BACKGROUND);
        Stream *compute = open_stream(device, k ? STREAM_BACKGROUND : STREAM_COMPUTE);
        Event *ready[2], *released[2];
        int slots[2] = {0}, taken[ROUNDS];
        for (int i = 0; i < 2; i++) {
            ready[i] = open_event(device);
            released[i] = open_event(device);
            assert_true(event_done(ready[i]));  // never recorded: done
            assert_ok(event_sync(ready[i]));
        }
        for (int i = 0; i < ROUNDS; i++) {
            stream_wait(gather, released[i % 2]);
            stream_call(gather, fill_slot, &(Slot){&slots[i % 2], NULL, i}, sizeof(Slot));
            event_record(ready[i % 2], gather);
            stream_wait(compute, ready[i % 2]);
            stream_call(compute, take_slot, &(Slot){&slots[i % 2], &taken[i], i}, sizeof(Slot));
            event_record(released[i % 2], compute);
        }
        assert_ok(event_sync(released[(ROUNDS - 1) % 2]));
        assert_ok(stream_sync(compute));
        for (int i = 0; i < ROUNDS; i++)
            assert_int_equal(taken[i], i);
        stream_destroy(gather);
        stream_destroy(compute);
        for (int i = 0; i < 2; i++) {
            event_destroy(ready[i]);
            event_destroy(released[i]);
        }
    }
    event_destroy(NULL);
    device_close(device);
}

// A wait refers to the mark at the time of the call, and a record on another stream does not let it through early.
static void test_event_marks(void **state) {
    (void)state;
    Device *device = open_device(0);
    Stream *slow = open_stream(device, STREAM_BACKGROUND), *fast = open_stream(device, STREAM_BACKGROUND);
    Stream *waiter = open_stream(device, STREAM_BACKGROUND);
    Event *event = open_event(device);
    atomic_int clock = 0;
    int first = -1, waited = -1, second = -1, late = -1;
    stream_call(slow, step, &(Step){&clock, &first, 30}, sizeof(Step));
    event_record(event, slow);
    assert_false(event_done(event));
    stream_wait(waiter, event);  // for `first`
    stream_call(waiter, step, &(Step){&clock, &waited, 0}, sizeof(Step));
    event_record(event, fast);  // nothing before it on its own stream
    assert_ok(event_sync(event));
    assert_ok(stream_sync(waiter));
    assert_int_equal(first, 0);
    assert_int_equal(waited, 1);
    // the other way round: the mark moves, and the old wait does not wait for what comes later
    event_record(event, fast);
    stream_wait(waiter, event);
    stream_call(waiter, step, &(Step){&clock, &second, 0}, sizeof(Step));
    stream_call(slow, step, &(Step){&clock, &late, 30}, sizeof(Step));
    event_record(event, slow);
    assert_ok(stream_sync(waiter));
    if (subject == DEVICE_CPU)  // a simulated device does not know how long things take
        assert_int_equal(second, 2);
    assert_ok(event_sync(event));
    assert_true(event_done(event));
    assert_int_equal(second + late, 5);
    stream_destroy(slow);
    stream_destroy(fast);
    stream_destroy(waiter);
    event_destroy(event);
    device_close(device);
}

// Destroying a stream waits for its work.
static void test_destroy_waits(void **state) {
    (void)state;
    Device *device = open_device(0);
    Stream *stream = open_stream(device, STREAM_BACKGROUND);
    int list[3], n = 0;
    for (int i = 0; i < 3; i++)
        stream_call(stream, append, &(Append){list, &n, i, 5}, sizeof(Append));
    stream_destroy(stream);
    assert_int_equal(n, 3);
    device_close(device);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--device") == 0 && strcmp(argv[2], "cuda") == 0)
        subject = DEVICE_CUDA;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accounts),       cmocka_unit_test(test_limit),
        cmocka_unit_test(test_seal),           cmocka_unit_test(test_scratch),
        cmocka_unit_test(test_no_gpu),         cmocka_unit_test(test_stream_order),
        cmocka_unit_test(test_call_arguments), cmocka_unit_test(test_copy_and_zero),
        cmocka_unit_test(test_sticky_error),   cmocka_unit_test(test_slots),
        cmocka_unit_test(test_event_marks),    cmocka_unit_test(test_destroy_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
