// The CPU as a device: memory from the host, the compute stream in the caller's thread, others as worker threads.
#include "llm/cpu/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "llm/hooks.h"
#include "llm/host_ops.h"

// ---- instruction sets ----

CpuIsa cpu_isa(void) {
    static _Atomic int known = -1;  // written with the same value by whoever comes first
    const int isa = known;
    if (isa >= 0)
        return (CpuIsa)isa;
    CpuIsa best = ISA_BASE;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        best = ISA_AVX2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        best = ISA_AVX512;
#endif
    const char *asked = getenv("ZERO_ISA");
    if (asked && strcmp(asked, "base") == 0)
        best = ISA_BASE;
    else if (asked && strcmp(asked, "avx2") == 0 && best > ISA_AVX2)
        best = ISA_AVX2;
    known = (int)best;
    return best;
}

bool cpu_has_avx512_bf16(void) {
#if defined(__x86_64__)
    return cpu_isa() == ISA_AVX512 && __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

static void cpu_model_name(char *name, size_t name_bytes) {
    snprintf(name, name_bytes, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file)
        return;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon) {
            colon[strcspn(colon, "\n")] = '\0';
            snprintf(name, name_bytes, "%s", colon + 2);
            break;
        }
    }
    fclose(file);
}

int host_cores(int local_size) {
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    bool bound = cores < sysconf(_SC_NPROCESSORS_ONLN);
    int share = bound || local_size < 2 ? cores : cores / local_size;
    return share > 0 ? share : 1;
}

static Status cpu_open(Device *device, const DeviceOptions *options) {
    (void)options;  // what it asks for is in the device's common part
    device->threads = device->host_threads;
    device->memory_size = device->host_size;
    device->ops = &cpu_ops;
    device->native[DTYPE_FP32] = true;
#ifdef HAVE_ONEDNN
    device->native[DTYPE_BF16] = cpu_has_avx512_bf16();
#endif
    omp_set_dynamic(0);  // the number of threads decides bits: never fewer than asked
    omp_set_num_threads(device->threads);
    char model[96];
    cpu_model_name(model, sizeof model);
    static const char *const isa_names[] = {"no AVX2", "AVX2", "AVX-512"};
    snprintf(device->name, sizeof device->name, "%s (%d thread%s, %s%s)", model, device->threads,
             device->threads == 1 ? "" : "s", isa_names[cpu_isa()], cpu_has_avx512_bf16() ? " with BF16" : "");
    return OK;
}

static void cpu_close(Device *device) {
    (void)device;
}

// ---- memory ----

// Large arrays come from mmap with huge pages: fewer TLB misses in the matmuls, and zero without a pass over them.
// Under AddressSanitizer everything comes from the heap, so that every overflow is seen.
enum { HUGE_PAGE = 2 << 20 };

static bool use_mmap(size_t bytes) {
#ifdef SANITIZE_BUILD
    (void)bytes;
    return false;
#else
    return bytes >= HUGE_PAGE;
#endif
}

static void *allocate(size_t bytes, size_t alignment) {
    if (use_mmap(bytes)) {
        void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            return NULL;
        madvise(memory, bytes, MADV_HUGEPAGE);
        return memory;
    }
    size_t rounded = (bytes + alignment - 1) / alignment * alignment;
#ifdef SANITIZE_BUILD
    void *memory = NULL;
    if (posix_memalign(&memory, alignment, bytes) != 0)
        return NULL;
    rounded = bytes;
#else
    void *memory = aligned_alloc(alignment, rounded);
#endif
    if (memory)
        memset(memory, 0, rounded);
    return memory;
}

static void *cpu_memory_alloc(Device *device, size_t bytes) {
    (void)device;
    return allocate(bytes, 256);
}

static void *cpu_host_alloc(Device *device, size_t bytes) {
    (void)device;
    return allocate(bytes, 4096);
}

static void cpu_memory_free(Device *device, void *memory, size_t bytes) {
    (void)device;
    if (use_mmap(bytes))
        munmap(memory, bytes);
    else
        free(memory);
}

// ---- streams ----

enum { WORK_BYTES = STREAM_CALL_BYTES + 16 };  // a stream_call's arguments and its function

typedef struct CpuWork {
    CpuFunction function;
    bool always;  // runs even after the stream failed: events must fire, or waiters would hang
    char arguments[WORK_BYTES] __attribute__((aligned(16)));
} CpuWork;

enum { QUEUE_LEN = 512 };

typedef struct CpuStream {
    Stream base;
    pthread_mutex_t mutex;   // guards everything below
    pthread_cond_t changed;  // queue, progress or stop changed
    CpuWork *queue;          // ring of QUEUE_LEN; work k is at k % QUEUE_LEN
    uint64_t enqueued, done;
    bool stop;
    Status status;  // first error
    char message[STATUS_MESSAGE_BYTES];
    pthread_t thread;
    double wait_seconds;        // compute streams: touched by the driving thread only
} CpuStream;

static CpuStream *cpu_stream(const Stream *stream) {
    return (CpuStream *)stream;
}

static bool stream_ok(CpuStream *s) {
    pthread_mutex_lock(&s->mutex);
    bool ok = s->status == OK;
    pthread_mutex_unlock(&s->mutex);
    return ok;
}

static void cpu_stream_fail(Stream *stream, Status status) {
    CpuStream *s = cpu_stream(stream);
    pthread_mutex_lock(&s->mutex);
    if (s->status == OK) {
        s->status = status;
        snprintf(s->message, sizeof s->message, "%s", status_message());
    }
    pthread_mutex_unlock(&s->mutex);
    status_clear();
}

static void *worker(void *argument) {
    CpuStream *s = argument;
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        while (s->done == s->enqueued && !s->stop)
            pthread_cond_wait(&s->changed, &s->mutex);
        if (s->done == s->enqueued)
            break;
        CpuWork *work = &s->queue[s->done % QUEUE_LEN];
        bool run = work->always || s->status == OK;
        pthread_mutex_unlock(&s->mutex);
        hook_delay();
        if (run)
            work->function(&s->base, work->arguments);
        pthread_mutex_lock(&s->mutex);
        s->done++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

static void launch(Stream *stream, CpuFunction function, const void *arguments, size_t bytes, bool always) {
    CpuStream *s = cpu_stream(stream);
    if (bytes > WORK_BYTES)
        abort();
    if (stream->kind == STREAM_COMPUTE) {
        char copy[WORK_BYTES] __attribute__((aligned(16)));
        memcpy(copy, arguments, bytes);
        hook_delay();
        if (always || stream_ok(s))
            function(stream, copy);
        return;
    }
    pthread_mutex_lock(&s->mutex);
    while (s->enqueued - s->done == QUEUE_LEN)
        pthread_cond_wait(&s->changed, &s->mutex);
    CpuWork *work = &s->queue[s->enqueued % QUEUE_LEN];
    work->function = function;
    work->always = always;
    memcpy(work->arguments, arguments, bytes);
    s->enqueued++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

void cpu_launch(Stream *stream, CpuFunction function, const void *arguments, size_t bytes) {
    launch(stream, function, arguments, bytes, false);
}

bool cpu_compute(Stream *stream) {
    if (stream->kind != STREAM_COMPUTE)
        abort();
    return stream_ok(cpu_stream(stream));
}

void *cpu_scratch(Stream *stream, size_t bytes) {
    size_t have;
    void *scratch = device_scratch(stream->device, &have);
    if (bytes <= have)
        return scratch;
    stream_fail(stream, fail("an operation needs %zu bytes of scratch and %zu are reserved: this is a bug in zero.c",
                             bytes, have));
    return NULL;
}

static Status cpu_stream_create(Device *device, StreamKind kind, const char *name, Stream **stream) {
    *stream = NULL;
    CpuStream *s = calloc(1, sizeof *s);
    if (!s)
        return fail("out of host memory for stream %s", name);
    s->base = (Stream){device, kind, name};
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (kind != STREAM_COMPUTE) {
        s->queue = malloc(QUEUE_LEN * sizeof *s->queue);
        if (!s->queue || pthread_create(&s->thread, NULL, worker, s) != 0) {
            pthread_cond_destroy(&s->changed);
            pthread_mutex_destroy(&s->mutex);
            free(s->queue);
            free(s);
            return fail("cannot start the thread of stream %s", name);
        }
    }
    *stream = &s->base;
    return OK;
}

static void cpu_stream_destroy(Stream *stream) {
    CpuStream *s = cpu_stream(stream);
    if (stream->kind != STREAM_COMPUTE) {
        pthread_mutex_lock(&s->mutex);
        s->stop = true;  // the worker finishes what is queued first
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->mutex);
        pthread_join(s->thread, NULL);
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->mutex);
    free(s->queue);
    free(s);
}

static Status cpu_stream_sync(Stream *stream) {
    CpuStream *s = cpu_stream(stream);
    pthread_mutex_lock(&s->mutex);
    while (s->done != s->enqueued)
        pthread_cond_wait(&s->changed, &s->mutex);
    Status status = s->status;
    pthread_mutex_unlock(&s->mutex);
    if (status == BAD_USAGE)
        return fail_usage("%s", s->message);
    return status == OK ? OK : fail("%s", s->message);
}

typedef struct CopyArguments {
    void *to;
    const void *from;
    size_t bytes;
} CopyArguments;

static void run_copy(Stream *stream, void *arguments) {
    const CopyArguments *a = arguments;
    int n = cpu_threads(stream);
#pragma omp parallel for num_threads(n) if (n > 1 && a->bytes > 1 << 20) schedule(static)
    for (int i = 0; i < n; i++) {
        int64_t begin, end;
        cpu_cut((int64_t)a->bytes, 64, n, i, &begin, &end);
        memmove((char *)a->to + begin, (const char *)a->from + begin, (size_t)(end - begin));
    }
}

static void run_zero(Stream *stream, void *arguments) {
    const CopyArguments *a = arguments;
    int n = cpu_threads(stream);
#pragma omp parallel for num_threads(n) if (n > 1 && a->bytes > 1 << 20) schedule(static)
    for (int i = 0; i < n; i++) {
        int64_t begin, end;
        cpu_cut((int64_t)a->bytes, 64, n, i, &begin, &end);
        memset((char *)a->to + begin, 0, (size_t)(end - begin));
    }
}

static void cpu_stream_copy(Stream *stream, void *to, const void *from, size_t bytes) {
    CopyArguments arguments = {to, from, bytes};
    cpu_launch(stream, run_copy, &arguments, sizeof arguments);
}

static void cpu_stream_zero(Stream *stream, void *memory, size_t bytes) {
    CopyArguments arguments = {memory, NULL, bytes};
    cpu_launch(stream, run_zero, &arguments, sizeof arguments);
}

typedef struct CallArguments {
    Status (*function)(void *);
    char arguments[STREAM_CALL_BYTES] __attribute__((aligned(16)));
} CallArguments;

static void run_call(Stream *stream, void *arguments) {
    CallArguments *a = arguments;
    Status status = a->function(a->arguments);
    if (status != OK)
        stream_fail(stream, status);
}

static void cpu_stream_call(Stream *stream, Status (*function)(void *), const void *arguments, size_t bytes) {
    CallArguments call = {.function = function};
    if (bytes > sizeof call.arguments)
        abort();
    if (bytes)  // arguments may be NULL
        memcpy(call.arguments, arguments, bytes);
    cpu_launch(stream, run_call, &call, sizeof call);
}

// ---- events: a counter of records and of completed records, which complete in order (see cpu_event_record) ----

typedef struct CpuEvent {
    Event base;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t recorded, completed;
    const Stream *last;  // the stream of the latest record; compared, never followed
} CpuEvent;

typedef struct EventArguments {
    CpuEvent *event;
    uint64_t mark;
    double *account;  // of a wait: where its seconds go; NULL: to the stream's own
} EventArguments;

static Status cpu_event_create(Device *device, Event **event) {
    CpuEvent *e = calloc(1, sizeof *e);
    if (!e)
        return fail("out of host memory for an event");
    e->base.device = device;
    pthread_mutex_init(&e->mutex, NULL);
    pthread_cond_init(&e->changed, NULL);
    *event = &e->base;
    return OK;
}

static void cpu_event_destroy(Event *event) {
    CpuEvent *e = (CpuEvent *)event;
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->mutex);
    free(e);
}

static void run_record(Stream *stream, void *arguments) {
    (void)stream;
    EventArguments *a = arguments;
    pthread_mutex_lock(&a->event->mutex);
    a->event->completed = a->mark;
    pthread_cond_broadcast(&a->event->changed);
    pthread_mutex_unlock(&a->event->mutex);
}

static void wait_for(CpuEvent *e, uint64_t mark) {
    pthread_mutex_lock(&e->mutex);
    while (e->completed < mark)
        pthread_cond_wait(&e->changed, &e->mutex);
    pthread_mutex_unlock(&e->mutex);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void run_wait(Stream *stream, void *arguments) {
    EventArguments *a = arguments;
    double start = now();
    wait_for(a->event, a->mark);
    if (stream->kind == STREAM_COMPUTE)
        *(a->account ? a->account : &cpu_stream(stream)->wait_seconds) += now() - start;
}

static double cpu_stream_wait_seconds(Stream *stream) {
    CpuStream *s = cpu_stream(stream);
    double seconds = s->wait_seconds;
    s->wait_seconds = 0;
    return seconds;
}

static uint64_t event_mark(const Event *event) {
    CpuEvent *e = (CpuEvent *)event;
    pthread_mutex_lock(&e->mutex);
    uint64_t mark = e->recorded;
    pthread_mutex_unlock(&e->mutex);
    return mark;
}

static void cpu_stream_wait(Stream *stream, Event *event, double *account) {
    EventArguments arguments = {(CpuEvent *)event, event_mark(event), account};
    launch(stream, run_wait, &arguments, sizeof arguments, true);
}

// Records on different streams could complete in any order; the later stream waits for the earlier record, so that one
// counter tells which are done.
static void cpu_event_record(Event *event, Stream *stream) {
    CpuEvent *e = (CpuEvent *)event;
    if (e->last != stream)
        cpu_stream_wait(stream, event, NULL);
    e->last = stream;
    pthread_mutex_lock(&e->mutex);
    EventArguments arguments = {e, ++e->recorded, NULL};
    pthread_mutex_unlock(&e->mutex);
    launch(stream, run_record, &arguments, sizeof arguments, true);
}

static Status cpu_event_sync(Event *event) {
    wait_for((CpuEvent *)event, event_mark(event));
    return OK;
}

static bool cpu_event_done(const Event *event) {
    CpuEvent *e = (CpuEvent *)event;
    pthread_mutex_lock(&e->mutex);
    bool done = e->completed >= e->recorded;
    pthread_mutex_unlock(&e->mutex);
    return done;
}

const DeviceBackend cpu_backend = {
    .open = cpu_open,
    .close = cpu_close,
    .memory_alloc = cpu_memory_alloc,
    .memory_free = cpu_memory_free,
    .host_alloc = cpu_host_alloc,
    .host_free = cpu_memory_free,
    .stream_create = cpu_stream_create,
    .stream_destroy = cpu_stream_destroy,
    .stream_sync = cpu_stream_sync,
    .stream_copy = cpu_stream_copy,
    .stream_zero = cpu_stream_zero,
    .stream_call = cpu_stream_call,
    .stream_fail = cpu_stream_fail,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .stream_wait = cpu_stream_wait,
    .stream_wait_seconds = cpu_stream_wait_seconds,
    .event_sync = cpu_event_sync,
    .event_done = cpu_event_done,
};
