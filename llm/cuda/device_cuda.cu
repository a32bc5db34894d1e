// A GPU as a device: memory of cudaMalloc, pinned host memory, and streams that are CUDA's.
//
// Errors. A launch or call that CUDA refuses becomes its stream's error; what goes wrong while work runs comes back from
// stream_sync, as CUDA reports it: of the context, not of the operation. After an error the host enqueues nothing more,
// but what it enqueued before it learned of a host call's failure still runs.
//
// Waiting. A compute stream writes timestamps around each wait for an event; the time between them is time that it stood
// still. They are read when somebody asks (stream_wait_seconds) or the ring is full, as far as they have happened: nothing
// waits for them.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#include "llm/cuda/device_cuda.cuh"
#include "llm/cuda/linear_plans.cuh"

namespace {

enum {
    CALLS = 512,  // host calls of a stream that may wait at a time
    WAITS = 512,  // timed waits of a compute stream that may be under way
    MIN_MAJOR = 8,
    HOST_PAGE = 4096,
    LIBRARY_BYTES = 512 << 20,  // a guess
};

struct CudaStream;

struct HostCall {
    CudaStream *stream;
    Status (*function)(void *);
    alignas(16) char arguments[STREAM_CALL_BYTES];
};

struct TimedWait {
    cudaEvent_t begin, end;
    double *account;  // where the seconds between them go
};

struct CudaStream {
    Stream base;  // first: a Stream * is a CudaStream *
    cudaStream_t handle;
    std::mutex mutex;  // guards the next two: a host call fails in a thread of CUDA's
    Status status;
    char message[STATUS_MESSAGE_BYTES];
    HostCall *calls;  // ring of CALLS; call k is at k % CALLS
    uint64_t called;
    std::atomic<uint64_t> calls_done;
    TimedWait *waits;  // ring of WAITS, compute streams only
    uint64_t waited, waits_read;
    double wait_seconds;  // of those read, on no account of their own
};

struct CudaEvent {
    Event base;
    cudaEvent_t handle;
};

CudaStream *cuda_stream(const Stream *stream) {
    return reinterpret_cast<CudaStream *>(const_cast<Stream *>(stream));
}
cudaEvent_t handle_of(const Event *event) {
    return reinterpret_cast<const CudaEvent *>(event)->handle;
}

Status cuda_fail(cudaError_t error, const char *doing, const char *what) {
    return fail("CUDA cannot %s %s: %s (%s)", doing, what, cudaGetErrorString(error), cudaGetErrorName(error));
}

// ---- device ----

Status check_count(const DeviceOptions *options) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver)
        return fail("no GPU answers (there is no NVIDIA driver, or one older than this program's CUDA %d.%d needs)",
                    CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (error != cudaSuccess || count == 0)
        return fail("no GPU answers (%s)", error == cudaSuccess ? "none is there" : cudaGetErrorString(error));
    int ranks = options->local_size > 1 ? options->local_size : 1;
    if (ranks > count || options->local_rank >= count)
        return fail_usage("%d ranks on this host, but %d GPU%s: start one rank a GPU, each of which sees all of them "
                          "(Slurm: --gpus-per-node, not --gpus-per-task), or use --device cpu",
                          ranks, count, count == 1 ? "" : "s");
    return OK;
}

Status cuda_open(Device *device, const DeviceOptions *options) {
    TRY(check_count(options));
    cudaDeviceProp properties;
    cudaError_t error = cudaSetDevice(options->local_rank);
    if (error == cudaSuccess)
        error = cudaGetDeviceProperties(&properties, options->local_rank);
    size_t free_bytes, total_bytes;
    if (error == cudaSuccess)
        error = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (error != cudaSuccess)
        return fail("GPU %d does not answer: %s (%s)", options->local_rank, cudaGetErrorString(error),
                    cudaGetErrorName(error));
    if (properties.major < MIN_MAJOR)
        return fail("GPU %d, %s, has compute capability %d.%d, and this program needs %d.0 or newer",
                    options->local_rank, properties.name, properties.major, properties.minor, MIN_MAJOR);
    CudaDevice *d = static_cast<CudaDevice *>(calloc(1, sizeof *d));
    if (!d)
        return fail("out of host memory");
    d->multiprocessors = properties.multiProcessorCount;
    Status status = linear_plans_open(options->tf32, &d->linear);
    if (status != OK) {
        free(d);
        return status;
    }
    device->impl = d;
    device->ops = &cuda_ops;
    device->threads = 1;
    // NCCL's buffers and kernels that are loaded when first called come out of this, too.
    const size_t later = static_cast<size_t>(options->local_size > 1 ? 2 : 1) * LIBRARY_BYTES;
    device->memory_size = free_bytes - (later < free_bytes / 16 ? later : free_bytes / 16);
    for (int dtype = DTYPE_FP32; dtype <= DTYPE_FP16; dtype++)
        device->native[dtype] = true;  // since compute capability 8.0
    snprintf(device->name, sizeof device->name, "%.96s (sm_%d%d, cuBLASLt %zu)", properties.name, properties.major,
             properties.minor, linear_library_version());
    return OK;
}

void cuda_close(Device *device) {
    CudaDevice *d = cuda_device(device);
    linear_plans_close(d->linear);
    free(d);
}

// ---- memory ----

void *cuda_memory_alloc(Device *, size_t bytes) {
    void *memory = nullptr;
    if (cudaMalloc(&memory, bytes) == cudaSuccess && cudaMemset(memory, 0, bytes) == cudaSuccess &&
        cudaDeviceSynchronize() == cudaSuccess)  // our streams do not wait for the default stream, which clears it
        return memory;
    cudaGetLastError();  // the caller says what there was no room for
    cudaFree(memory);
    return nullptr;
}

void cuda_memory_free(Device *, void *memory, size_t) {
    cudaFree(memory);
}

// CUDA promises no alignment of pinned memory. One page more, and where CUDA's block begins stands in front.
void *cuda_host_alloc(Device *, size_t bytes) {
    void *block = nullptr;
    if (bytes > SIZE_MAX - HOST_PAGE || cudaHostAlloc(&block, HOST_PAGE + bytes, cudaHostAllocDefault) != cudaSuccess) {
        cudaGetLastError();
        return nullptr;
    }
    char *memory = static_cast<char *>(block) + HOST_PAGE - reinterpret_cast<uintptr_t>(block) % HOST_PAGE;
    reinterpret_cast<void **>(memory)[-1] = block;
    memset(memory, 0, bytes);
    return memory;
}

void cuda_host_free(Device *, void *memory, size_t) {
    cudaFreeHost(static_cast<void **>(memory)[-1]);
}

// ---- streams ----

bool stream_ok(CudaStream *s) {
    std::lock_guard<std::mutex> lock(s->mutex);
    return s->status == OK;
}

void cuda_stream_fail(Stream *stream, Status status) {
    CudaStream *s = cuda_stream(stream);
    std::lock_guard<std::mutex> lock(s->mutex);
    if (s->status == OK) {
        s->status = status;
        snprintf(s->message, sizeof s->message, "%s", status_message());
    }
    status_clear();
}

// What CUDA says of a call on a stream becomes the stream's error.
void check(Stream *stream, cudaError_t error, const char *doing) {
    if (error == cudaSuccess)
        return;
    cudaGetLastError();
    cuda_stream_fail(stream, cuda_fail(error, doing, stream->name));
}

void destroy(CudaStream *s) {
    for (int i = 0; s->waits && i < WAITS; i++)
        for (cudaEvent_t event : {s->waits[i].begin, s->waits[i].end})
            if (event)
                cudaEventDestroy(event);
    if (s->handle)
        cudaStreamDestroy(s->handle);
    free(s->waits);
    free(s->calls);
    delete s;
}

cudaError_t create_waits(CudaStream *s) {
    for (int i = 0; i < WAITS; i++)
        for (cudaEvent_t *event : {&s->waits[i].begin, &s->waits[i].end})
            if (cudaError_t error = cudaEventCreate(event))
                return error;
    return cudaSuccess;
}

Status cuda_stream_create(Device *device, StreamKind kind, const char *name, Stream **stream) {
    *stream = nullptr;
    CudaStream *s = new (std::nothrow) CudaStream();
    if (!s)
        return fail("out of host memory for stream %s", name);
    s->base = Stream{device, kind, name};
    s->calls = static_cast<HostCall *>(malloc(CALLS * sizeof *s->calls));
    if (kind == STREAM_COMPUTE)
        s->waits = static_cast<TimedWait *>(calloc(WAITS, sizeof *s->waits));
    if (!s->calls || (kind == STREAM_COMPUTE && !s->waits)) {
        destroy(s);
        return fail("out of host memory for stream %s", name);
    }
    // What others wait for goes first where there is a choice.
    int least, greatest;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithPriority(&s->handle, cudaStreamNonBlocking,
                                             kind == STREAM_COMPUTE ? least : greatest);
    if (error == cudaSuccess && s->waits)
        error = create_waits(s);
    if (error != cudaSuccess) {
        destroy(s);
        return cuda_fail(error, "create stream", name);
    }
    *stream = &s->base;
    return OK;
}

void cuda_stream_destroy(Stream *stream) {
    CudaStream *s = cuda_stream(stream);
    cudaStreamSynchronize(s->handle);
    destroy(s);
}

Status cuda_stream_sync(Stream *stream) {
    CudaStream *s = cuda_stream(stream);
    check(stream, cudaStreamSynchronize(s->handle), "finish the work of stream");
    std::lock_guard<std::mutex> lock(s->mutex);
    if (s->status == BAD_USAGE)
        return fail_usage("%s", s->message);
    return s->status == OK ? OK : fail("%s", s->message);
}

void cuda_stream_copy(Stream *stream, void *to, const void *from, size_t bytes) {
    CudaStream *s = cuda_stream(stream);
    if (stream_ok(s))
        check(stream, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s->handle), "enqueue a copy on stream");
}

void cuda_stream_zero(Stream *stream, void *memory, size_t bytes) {
    CudaStream *s = cuda_stream(stream);
    if (stream_ok(s))
        check(stream, cudaMemsetAsync(memory, 0, bytes, s->handle), "enqueue a fill on stream");
}

void CUDART_CB run_call(void *argument) {
    HostCall *call = static_cast<HostCall *>(argument);
    CudaStream *s = call->stream;
    if (stream_ok(s)) {
        Status status = call->function(call->arguments);
        if (status != OK)
            cuda_stream_fail(&s->base, status);
    }
    s->calls_done.fetch_add(1, std::memory_order_release);
}

void cuda_stream_call(Stream *stream, Status (*function)(void *), const void *arguments, size_t bytes) {
    CudaStream *s = cuda_stream(stream);
    if (bytes > STREAM_CALL_BYTES)
        abort();
    if (!stream_ok(s))
        return;
    if (s->called - s->calls_done.load(std::memory_order_acquire) == CALLS) {  // the ring is full
        check(stream, cudaStreamSynchronize(s->handle), "finish the work of stream");
        if (!stream_ok(s))
            return;
    }
    HostCall *call = &s->calls[s->called % CALLS];
    call->stream = s;
    call->function = function;
    if (bytes)  // arguments may be NULL
        memcpy(call->arguments, arguments, bytes);
    cudaError_t error = cudaLaunchHostFunc(s->handle, run_call, call);
    if (error == cudaSuccess)
        s->called++;
    check(stream, error, "enqueue a host call on stream");
}

// ---- events ----

Status cuda_event_create(Device *device, Event **event) {
    *event = nullptr;
    CudaEvent *e = static_cast<CudaEvent *>(calloc(1, sizeof *e));
    if (!e)
        return fail("out of host memory for an event");
    e->base.device = device;
    if (cudaError_t error = cudaEventCreateWithFlags(&e->handle, cudaEventDisableTiming)) {
        free(e);
        return cuda_fail(error, "create", "an event");
    }
    *event = &e->base;
    return OK;
}

void cuda_event_destroy(Event *event) {
    cudaEventDestroy(handle_of(event));
    free(event);
}

// Events fire and are waited for on streams that have failed, too: their work is only less.
void cuda_event_record(Event *event, Stream *stream) {
    check(stream, cudaEventRecord(handle_of(event), cuda_stream(stream)->handle), "record an event on stream");
}

// Takes the time of all waits that are over.
void read_waits(CudaStream *s) {
    for (; s->waits_read < s->waited; s->waits_read++) {
        TimedWait *wait = &s->waits[s->waits_read % WAITS];
        float milliseconds = 0;
        if (cudaEventElapsedTime(&milliseconds, wait->begin, wait->end) == cudaErrorNotReady) {
            cudaGetLastError();
            return;
        }
        *wait->account += milliseconds * 1e-3;
    }
}

void cuda_stream_wait(Stream *stream, Event *event, double *account) {
    CudaStream *s = cuda_stream(stream);
    if (s->waited - s->waits_read == WAITS)
        read_waits(s);
    // With so many under way the wait goes without timestamps, and its time uncounted.
    TimedWait *wait = s->waits && s->waited - s->waits_read < WAITS ? &s->waits[s->waited++ % WAITS] : nullptr;
    if (wait) {
        wait->account = account ? account : &s->wait_seconds;
        check(stream, cudaEventRecord(wait->begin, s->handle), "record an event on stream");
    }
    check(stream, cudaStreamWaitEvent(s->handle, handle_of(event), 0), "make an event be waited for by stream");
    if (wait)
        check(stream, cudaEventRecord(wait->end, s->handle), "record an event on stream");
}

double cuda_stream_wait_seconds(Stream *stream) {
    CudaStream *s = cuda_stream(stream);
    read_waits(s);
    double seconds = s->wait_seconds;
    s->wait_seconds = 0;
    return seconds;
}

Status cuda_event_sync(Event *event) {
    cudaError_t error = cudaEventSynchronize(handle_of(event));
    return error == cudaSuccess ? OK : cuda_fail(error, "wait for", "an event");
}

bool cuda_event_done(const Event *event) {
    if (cudaEventQuery(handle_of(event)) == cudaSuccess)
        return true;
    cudaGetLastError();  // "not ready" is an error to CUDA
    return false;
}

}  // namespace

// ---- for the operations ----

cudaStream_t cuda_begin(Stream *stream) {
    CudaStream *s = cuda_stream(stream);
    return stream_ok(s) ? s->handle : nullptr;
}

void cuda_end(Stream *stream, const char *operation) {
    if (cudaError_t error = cudaGetLastError())
        cuda_stream_fail(stream, cuda_fail(error, "run", operation));
}

void *cuda_scratch(Stream *stream, size_t bytes) {
    size_t have;
    void *scratch = device_scratch(stream->device, &have);
    if (bytes <= have)
        return scratch;
    stream_fail(stream, fail("an operation needs %zu bytes of scratch and %zu are reserved: this is a bug in zero.c",
                             bytes, have));
    return nullptr;
}

int cuda_multiprocessors(const Stream *stream) {
    return cuda_device(stream->device)->multiprocessors;
}

const DeviceBackend cuda_backend = {
    .open = cuda_open,
    .close = cuda_close,
    .memory_alloc = cuda_memory_alloc,
    .memory_free = cuda_memory_free,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_sync = cuda_stream_sync,
    .stream_copy = cuda_stream_copy,
    .stream_zero = cuda_stream_zero,
    .stream_call = cuda_stream_call,
    .stream_fail = cuda_stream_fail,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .stream_wait = cuda_stream_wait,
    .stream_wait_seconds = cuda_stream_wait_seconds,
    .event_sync = cuda_event_sync,
    .event_done = cuda_event_done,
};
