// device: memory, streams, events and copies of one accelerator. One interface; llm/cpu and llm/cuda implement it.
//
// Memory. Every byte that this program asks of a device comes from device_alloc, which counts it under a category, so that
// the table the planner predicts and the table the run measures can be compared byte for byte. Memory is zero when it is
// handed out and aligned to 256 bytes. Nothing is allocated after the first step; device_seal() makes a later allocation
// an error. Host memory for staging comes from device_host_alloc (pinned, where that means something) and is counted apart;
// what is offloaded from the device comes from device_offload_alloc, a second set of accounts with the same categories.
//
// Streams. Work on one stream happens in the order it was enqueued; work on different streams is ordered only by events.
// The functions that enqueue return nothing: the first error of a stream sticks to it, turns later work on it into
// no-ops, and comes back from stream_sync. This keeps the model's code readable and is how CUDA behaves anyway.
//
//     event_record(ready, gather);      // marks the work enqueued on `gather` so far
//     stream_wait(compute, ready);      // `compute` goes on only when that work is done
//
// An event that was never recorded counts as done. Recording again moves the mark. A stream_wait refers to the mark at
// the time of the call.
//
// On the CPU a stream of kind STREAM_COMPUTE runs its work at once, in the thread that enqueues it (a stream_wait blocks
// there); other streams are worker threads with queues. Both obey the rules above.
//
// Threads: a device and its streams are driven by one host thread.
#ifndef LLM_DEVICE_H
#define LLM_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "llm/dtype.h"
#include "llm/status.h"

typedef enum DeviceKind { DEVICE_CPU, DEVICE_CUDA } DeviceKind;

typedef enum MemoryCategory {
    MEM_PARAMETERS,   // model parameters in the compute dtype that stay on the device
    MEM_GRADIENTS,    // gradients that stay on the device
    MEM_OPTIMIZER,    // master weights and moments
    MEM_ACTIVATIONS,  // what forward keeps for backward, and the buffers that flow between blocks
    MEM_SLOTS,        // gathered units and full gradients of one unit (zero/)
    MEM_WORKSPACE,    // scratch of operations, logits of one chunk, the KV cache
    MEM_STAGING,      // buffers of collectives, checkpoints, offload
    MEM_DATA,         // tokens and targets of a micro-batch
    MEM_CATEGORIES
} MemoryCategory;

extern const char *const memory_category_names[MEM_CATEGORIES];  // "parameters", "gradients", …

typedef struct Device Device;
typedef struct Stream Stream;
typedef struct Event Event;
struct Ops;  // llm/ops.h

typedef struct DeviceOptions {
    DeviceKind kind;
    int local_rank;       // which of the host's devices (CUDA)
    int local_size;       // processes of this run that share the host's cores; 0: this one alone
    int threads;          // compute threads (CPU); 0: its share of the cores this process may use
    size_t memory_limit;  // bytes of all categories together; 0: no limit of ours
    bool tf32;            // matmuls of fp32 may round their operands to TF32 (CUDA)
} DeviceOptions;

Status device_open(const DeviceOptions *options, Device **device);
void device_close(Device *device);  // NULL is fine. Everything allocated must have been freed.

const char *device_name(const Device *device);         // "AMD EPYC (2 threads, AVX512-BF16)", "NVIDIA H100 …"
DeviceKind device_kind(const Device *device);
int device_threads(const Device *device);              // compute threads; 1 on CUDA
const struct Ops *device_ops(const Device *device);    // the arithmetic of this device

// Zeroed memory, aligned to 256 bytes. `name` must outlive the allocation (a literal). 0 bytes give NULL.
// Fails, naming the tensor, the bytes asked and the table so far, when the device or --device-memory has no room.
Status device_alloc(Device *device, MemoryCategory category, const char *name, size_t bytes, void **memory);
void device_free(Device *device, void *memory);  // NULL is fine
// Zeroed host memory, aligned to 4096 bytes, so that files can be read into it directly (O_DIRECT).
Status device_host_alloc(Device *device, const char *name, size_t bytes, void **memory);
Status device_offload_alloc(Device *device, MemoryCategory category, const char *name, size_t bytes, void **memory);
void device_host_free(Device *device, void *memory);  // of either

size_t device_bytes(const Device *device, MemoryCategory category);       // allocated now
size_t device_peak_bytes(const Device *device, MemoryCategory category);  // the most there ever was
size_t device_host_bytes(const Device *device);                              // of device_host_alloc
size_t device_offload_bytes(const Device *device, MemoryCategory category);  // of device_offload_alloc
size_t device_file_bytes(const Device *device);  // of files that hold what is offloaded, as told by device_count_file
void device_count_file(Device *device, int64_t bytes);                       // a file grows or (negative) goes
int device_host_threads(const Device *device);  // that this rank may use for arithmetic on the host
size_t device_host_bytes_of(const Device *device, const char *name);  // of that name
size_t device_host_size(const Device *device);  // this rank's share of the memory of its host (or cgroup); 0: not known
size_t device_memory_size(const Device *device);  // bytes it has for this rank: its share of the host's, on the CPU; 0: not known
void device_seal(Device *device, bool sealed);  // while sealed, device_alloc fails: "allocation after the first step"

// The compute stream's scratch arena (MEM_WORKSPACE "scratch"): operations on the compute stream run one after another,
// so they share one buffer, as large as the neediest of them (Ops.…_scratch). Grows only before the seal.
Status device_reserve_scratch(Device *device, size_t bytes);
void device_release_scratch(Device *device);
void *device_scratch(const Device *device, size_t *bytes);

typedef enum StreamKind { STREAM_COMPUTE, STREAM_BACKGROUND } StreamKind;

Status stream_create(Device *device, StreamKind kind, const char *name, Stream **stream);
void stream_destroy(Stream *stream);  // waits for its work; NULL is fine
Device *stream_device(const Stream *stream);
const char *stream_name(const Stream *stream);
Status stream_sync(Stream *stream);   // wait for everything enqueued; returns the stream's first error

// Enqueue: copy (either side may be device or host memory of device_host_alloc), zero-fill, host call.
// `arguments` (at most STREAM_CALL_BYTES) are copied, so they may live on the caller's stack. A call that fails makes the stream fail.
enum { STREAM_CALL_BYTES = 512 };
void stream_copy(Stream *stream, void *to, const void *from, size_t bytes);
void stream_zero(Stream *stream, void *memory, size_t bytes);
void stream_call(Stream *stream, Status (*function)(void *arguments), const void *arguments, size_t arguments_bytes);
void stream_fail(Stream *stream, Status status);  // for ops: the calling thread's message becomes the stream's error

Status event_create(Device *device, Event **event);
void event_destroy(Event *event);  // NULL is fine
void event_record(Event *event, Stream *stream);
void stream_wait(Stream *stream, Event *event);
double stream_wait_seconds(Stream *stream);  // that a compute stream stood still in stream_wait since the last call; 0 for others
// stream_wait whose seconds are added to *account instead, at the latest by the first stream_wait_seconds after it is over.
void stream_wait_on_account(Stream *stream, Event *event, double *account);
Status event_sync(Event *event);    // the host waits
bool event_done(const Event *event);

// Whether the hardware multiplies this dtype itself; otherwise operands are converted to fp32 tile by tile and the run says so.
bool device_has_native(const Device *device, Dtype dtype);

#endif
