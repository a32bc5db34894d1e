// device_backend: what llm/cpu and llm/cuda implement behind device.h. device.c keeps the accounts and calls these.
#ifndef LLM_DEVICE_BACKEND_H
#define LLM_DEVICE_BACKEND_H

#include "llm/device.h"
#include "llm/ops.h"

typedef struct DeviceBackend {
    Status (*open)(Device *device, const DeviceOptions *options);  // fills name, threads, memory_size, native, ops, impl
    void (*close)(Device *device);
    void *(*memory_alloc)(Device *device, size_t bytes);           // zeroed, aligned to 256 bytes; NULL: no room
    void (*memory_free)(Device *device, void *memory, size_t bytes);
    void *(*host_alloc)(Device *device, size_t bytes);             // zeroed, aligned to 4096 bytes
    void (*host_free)(Device *device, void *memory, size_t bytes);
    Status (*stream_create)(Device *device, StreamKind kind, const char *name, Stream **stream);
    void (*stream_destroy)(Stream *stream);
    Status (*stream_sync)(Stream *stream);
    void (*stream_copy)(Stream *stream, void *to, const void *from, size_t bytes);
    void (*stream_zero)(Stream *stream, void *memory, size_t bytes);
    void (*stream_call)(Stream *stream, Status (*function)(void *), const void *arguments, size_t bytes);
    void (*stream_fail)(Stream *stream, Status status);
    Status (*event_create)(Device *device, Event **event);
    void (*event_destroy)(Event *event);
    void (*event_record)(Event *event, Stream *stream);
    void (*stream_wait)(Stream *stream, Event *event, double *account);  // NULL: stream_wait_seconds
    double (*stream_wait_seconds)(Stream *stream);
    Status (*event_sync)(Event *event);
    bool (*event_done)(const Event *event);
} DeviceBackend;

extern const DeviceBackend cpu_backend, cuda_backend;

typedef struct Allocation {
    void *memory;
    size_t bytes;
    MemoryCategory category;
    const char *name;
    bool host;                   // by device_host_alloc or device_offload_alloc
    bool offloaded;              // by the latter
} Allocation;

struct Device {
    const DeviceBackend *backend;
    const Ops *ops;
    DeviceKind kind;
    char name[160];
    int threads, host_threads;
    bool native[3];              // by Dtype
    size_t memory_limit, memory_size, host_size;
    bool sealed;
    size_t bytes[MEM_CATEGORIES], peak_bytes[MEM_CATEGORIES], host_bytes, offload_bytes[MEM_CATEGORIES];
    size_t file_bytes;
    Allocation *allocations;
    int n_allocations, allocations_room;
    void *scratch;
    size_t scratch_bytes;
    void *impl;                  // the backend's own
};

// The common head of a backend's streams and events.
struct Stream {
    Device *device;
    StreamKind kind;
    const char *name;
};
struct Event {
    Device *device;
};

#endif
