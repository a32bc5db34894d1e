#include "llm/device_backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llm/host_memory.h"
#include "llm/host_ops.h"

const char *const memory_category_names[MEM_CATEGORIES] = {
    "parameters", "gradients", "optimizer", "activations", "slots", "workspace", "staging", "data",
};

static const DeviceBackend *backend_of(DeviceKind kind) {
#ifdef HAVE_CUDA
    if (kind == DEVICE_CUDA)
        return &cuda_backend;
#endif
    return kind == DEVICE_CPU ? &cpu_backend : NULL;
}

Status device_open(const DeviceOptions *options, Device **device_out) {
    *device_out = NULL;
    const DeviceBackend *backend = backend_of(options->kind);
    if (!backend)
        return fail("this program was built without CUDA");
    Device *device = calloc(1, sizeof *device);
    if (!device)
        return fail("out of host memory");
    device->backend = backend;
    device->kind = options->kind;
    device->memory_limit = options->memory_limit;
    device->host_threads = options->threads > 0 ? options->threads : host_cores(options->local_size);
    device->host_size = host_memory_size() / (size_t)(options->local_size > 1 ? options->local_size : 1);
    Status status = device->backend->open(device, options);
    if (status != OK) {
        free(device);
        return status;
    }
    *device_out = device;
    return OK;
}

void device_close(Device *device) {
    if (!device)
        return;
    device_free(device, device->scratch);
    for (int i = 0; i < device->n_allocations; i++)  // an owner forgot to free: say so, and do not leak
        fprintf(stderr, "device: %s (%zu bytes) was not freed\n", device->allocations[i].name, device->allocations[i].bytes);
    while (device->n_allocations > 0) {
        Allocation *last = &device->allocations[device->n_allocations - 1];
        if (last->host)
            device_host_free(device, last->memory);
        else
            device_free(device, last->memory);
    }
    device->backend->close(device);
    free(device->allocations);
    free(device);
}

const char *device_name(const Device *device) {
    return device->name;
}
DeviceKind device_kind(const Device *device) {
    return device->kind;
}
int device_threads(const Device *device) {
    return device->threads;
}
int device_host_threads(const Device *device) {
    return device->host_threads;
}
const Ops *device_ops(const Device *device) {
    return device->ops;
}
bool device_has_native(const Device *device, Dtype dtype) {
    return device->native[dtype];
}

// ---- memory and its accounts ----

static size_t total_bytes(const Device *device) {
    size_t total = 0;
    for (int c = 0; c < MEM_CATEGORIES; c++)
        total += device->bytes[c];
    return total;
}

static Status no_room(const Device *device, const char *name, MemoryCategory category, size_t bytes) {
    char table[512];
    size_t used = 0;
    table[0] = '\0';
    for (int c = 0; c < MEM_CATEGORIES; c++)
        if (device->bytes[c])
            used += (size_t)snprintf(table + used, sizeof table - used, "%s%s %.1f MB", used ? ", " : "",
                                     memory_category_names[c], (double)device->bytes[c] / 1e6);
    if (device->memory_limit)
        return fail("no room for %s (%s, %.1f MB): the limit is %.1f MB and %.1f MB are in use (%s). A smaller --micro-batch, "
                    "--recompute full or a higher --zero stage needs less; --plan shows the table",
                    name, memory_category_names[category], (double)bytes / 1e6, (double)device->memory_limit / 1e6,
                    (double)total_bytes(device) / 1e6, table);
    return fail("the device has no room for %s (%s, %.1f MB); in use: %s. A smaller --micro-batch, --recompute full or a "
                "higher --zero stage needs less; --plan shows the table",
                name, memory_category_names[category], (double)bytes / 1e6, used ? table : "nothing");
}

static Status remember(Device *device, Allocation allocation) {
    if (device->n_allocations == device->allocations_room) {
        int room = device->allocations_room ? 2 * device->allocations_room : 64;
        Allocation *grown = realloc(device->allocations, (size_t)room * sizeof *grown);
        if (!grown)
            return fail("out of host memory");
        device->allocations = grown;
        device->allocations_room = room;
    }
    device->allocations[device->n_allocations++] = allocation;
    return OK;
}

static Allocation forget(Device *device, const void *memory) {
    for (int i = 0; i < device->n_allocations; i++) {
        if (device->allocations[i].memory == memory) {
            Allocation found = device->allocations[i];
            device->allocations[i] = device->allocations[--device->n_allocations];
            return found;
        }
    }
    fprintf(stderr, "device: freed memory that was not allocated here\n");
    abort();
}

Status device_alloc(Device *device, MemoryCategory category, const char *name, size_t bytes, void **memory) {
    *memory = NULL;
    if (bytes == 0)
        return OK;
    if (device->sealed)
        return fail("allocation of %s (%zu bytes) after the first step: this is a bug in zero.c", name, bytes);
    if (device->memory_limit && bytes > device->memory_limit - total_bytes(device))
        return no_room(device, name, category, bytes);
    void *block = device->backend->memory_alloc(device, bytes);
    if (!block)
        return no_room(device, name, category, bytes);
    Status status = remember(device, (Allocation){.memory = block, .bytes = bytes, .category = category, .name = name});
    if (status != OK) {
        device->backend->memory_free(device, block, bytes);
        return status;
    }
    device->bytes[category] += bytes;
    if (device->bytes[category] > device->peak_bytes[category])
        device->peak_bytes[category] = device->bytes[category];
    *memory = block;
    return OK;
}

void device_free(Device *device, void *memory) {
    if (!memory)
        return;
    Allocation allocation = forget(device, memory);
    device->bytes[allocation.category] -= allocation.bytes;
    device->backend->memory_free(device, memory, allocation.bytes);
}

static size_t *host_account(Device *device, const Allocation *a) {
    return a->offloaded ? &device->offload_bytes[a->category] : &device->host_bytes;
}

static Status host_alloc(Device *device, Allocation a, void **memory) {
    *memory = NULL;
    if (a.bytes == 0)
        return OK;
    a.memory = device->backend->host_alloc(device, a.bytes);
    if (!a.memory)
        return fail("out of host memory for %s (%.1f MB)", a.name, (double)a.bytes / 1e6);
    Status status = remember(device, a);
    if (status != OK) {
        device->backend->host_free(device, a.memory, a.bytes);
        return status;
    }
    *host_account(device, &a) += a.bytes;
    *memory = a.memory;
    return OK;
}

Status device_host_alloc(Device *device, const char *name, size_t bytes, void **memory) {
    return host_alloc(device, (Allocation){.bytes = bytes, .name = name, .host = true}, memory);
}

Status device_offload_alloc(Device *device, MemoryCategory category, const char *name, size_t bytes, void **memory) {
    return host_alloc(
        device, (Allocation){.bytes = bytes, .category = category, .name = name, .host = true, .offloaded = true}, memory);
}

void device_host_free(Device *device, void *memory) {
    if (!memory)
        return;
    Allocation allocation = forget(device, memory);
    *host_account(device, &allocation) -= allocation.bytes;
    device->backend->host_free(device, memory, allocation.bytes);
}

size_t device_bytes(const Device *device, MemoryCategory category) {
    return device->bytes[category];
}
size_t device_peak_bytes(const Device *device, MemoryCategory category) {
    return device->peak_bytes[category];
}
size_t device_host_bytes(const Device *device) {
    return device->host_bytes;
}
size_t device_offload_bytes(const Device *device, MemoryCategory category) {
    return device->offload_bytes[category];
}
size_t device_file_bytes(const Device *device) {
    return device->file_bytes;
}
void device_count_file(Device *device, int64_t bytes) {
    device->file_bytes += (size_t)bytes;
}
size_t device_host_bytes_of(const Device *device, const char *name) {
    size_t bytes = 0;
    for (int i = 0; i < device->n_allocations; i++)
        if (device->allocations[i].host && strcmp(device->allocations[i].name, name) == 0)
            bytes += device->allocations[i].bytes;
    return bytes;
}
size_t device_host_size(const Device *device) {
    return device->host_size;
}
size_t device_memory_size(const Device *device) {
    return device->memory_size;
}
void device_seal(Device *device, bool sealed) {
    device->sealed = sealed;
}

Status device_reserve_scratch(Device *device, size_t bytes) {
    if (bytes <= device->scratch_bytes)
        return OK;
    device_release_scratch(device);
    TRY(device_alloc(device, MEM_WORKSPACE, "scratch", bytes, &device->scratch));
    device->scratch_bytes = bytes;
    return OK;
}

void device_release_scratch(Device *device) {
    device_free(device, device->scratch);
    device->scratch = NULL;
    device->scratch_bytes = 0;
}

void *device_scratch(const Device *device, size_t *bytes) {
    *bytes = device->scratch_bytes;
    return device->scratch;
}

// ---- streams and events: passed on to the backend ----

Status stream_create(Device *device, StreamKind kind, const char *name, Stream **stream) {
    return device->backend->stream_create(device, kind, name, stream);
}
void stream_destroy(Stream *stream) {
    if (stream)
        stream->device->backend->stream_destroy(stream);
}
Device *stream_device(const Stream *stream) {
    return stream->device;
}
const char *stream_name(const Stream *stream) {
    return stream->name;
}
Status stream_sync(Stream *stream) {
    return stream->device->backend->stream_sync(stream);
}
void stream_copy(Stream *stream, void *to, const void *from, size_t bytes) {
    if (bytes && to != from)
        stream->device->backend->stream_copy(stream, to, from, bytes);
}
void stream_zero(Stream *stream, void *memory, size_t bytes) {
    if (bytes)
        stream->device->backend->stream_zero(stream, memory, bytes);
}
void stream_call(Stream *stream, Status (*function)(void *), const void *arguments, size_t arguments_bytes) {
    stream->device->backend->stream_call(stream, function, arguments, arguments_bytes);
}
void stream_fail(Stream *stream, Status status) {
    stream->device->backend->stream_fail(stream, status);
}
Status event_create(Device *device, Event **event) {
    return device->backend->event_create(device, event);
}
void event_destroy(Event *event) {
    if (event)
        event->device->backend->event_destroy(event);
}
void event_record(Event *event, Stream *stream) {
    event->device->backend->event_record(event, stream);
}
void stream_wait(Stream *stream, Event *event) {
    event->device->backend->stream_wait(stream, event, NULL);
}
void stream_wait_on_account(Stream *stream, Event *event, double *account) {
    event->device->backend->stream_wait(stream, event, account);
}
double stream_wait_seconds(Stream *stream) {
    return stream->device->backend->stream_wait_seconds(stream);
}
Status event_sync(Event *event) {
    return event->device->backend->event_sync(event);
}
bool event_done(const Event *event) {
    return event->device->backend->event_done(event);
}
