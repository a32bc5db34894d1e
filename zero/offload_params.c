#include "zero/offload_params.h"

#include <stdlib.h>

#include "zero/nvme_file.h"
#include "zero/offload_state.h"
#include "zero/trace.h"

enum {
    READERS = 4,  // pieces of a shard that are read at a time (nvme)
    WRITERS = 4,  // updated tiles that are written at a time (nvme)
};

typedef struct Staging {
    void *memory;     // device: the longest shard
    int unit;         // what it holds, or will hold once `ready` is reached; -1: nothing of use
    Event *ready;     // (fetch stream)
    Event *released;  // (gather stream)
} Staging;

typedef struct Piece {
    void *memory;  // host
    NvmeRequest request;
} Piece;

struct OffloadParams {
    Offload *offload;
    const Layout *layout;
    Dtype dtype;
    Staging stagings[OFFLOAD_STAGINGS];
    int next;      // the staging buffer that is used next
    char *memory;  // cpu: the shards, as in the layout's shard array
    // nvme
    NvmeFile *file;
    NvmeQueue *reads, *writes;  // of the fetch stream's thread, and of the caller's
    int64_t *unit_offset;       // (n_units) of a shard in the file
    size_t piece_bytes;         // longest request of the fetch stream
    Piece readers[READERS];
    Piece writers[WRITERS];
    int writer;  // the one that is filled next
};

// ---- sizes ----

static size_t round_up(size_t x, size_t multiple) {
    return (x + multiple - 1) / multiple * multiple;
}

static size_t shard_bytes(const Layout *layout, int u, Dtype dtype) {
    return (size_t)layout->units[u].shard_len * dtype_bytes(dtype);
}

static size_t longest_bytes(const Layout *layout, Dtype dtype) {
    return (size_t)layout_longest_shard(layout) * dtype_bytes(dtype);
}

static size_t file_bytes(const Layout *layout, Dtype dtype, int64_t *unit_offset) {
    size_t bytes = 0;
    for (int u = 0; u < layout->n_units; u++) {
        if (unit_offset)
            unit_offset[u] = (int64_t)bytes;
        bytes += round_up(shard_bytes(layout, u, dtype), NVME_ALIGN);
    }
    return bytes;
}

static size_t reader_bytes(const Layout *layout, const OffloadOptions *options, Dtype dtype) {
    size_t most = round_up(longest_bytes(layout, dtype), NVME_ALIGN),
           piece = options->nvme_buffer / NVME_ALIGN * NVME_ALIGN;
    return piece < most ? piece : most;
}

static size_t writer_bytes(const Layout *layout, const OffloadOptions *options, Dtype dtype) {
    return (size_t)offload_tile_len(layout, options) * dtype_bytes(dtype);
}

void offload_params_plan(const Layout *layout, const OffloadOptions *options, Dtype dtype,
                         size_t device[MEM_CATEGORIES], size_t host[MEM_CATEGORIES], size_t *nvme) {
    device[MEM_STAGING] += OFFLOAD_STAGINGS * longest_bytes(layout, dtype);
    if (options->params == OFFLOAD_CPU) {
        host[MEM_PARAMETERS] += (size_t)layout->shard_len * dtype_bytes(dtype);
    } else {
        host[MEM_STAGING] +=
            READERS * reader_bytes(layout, options, dtype) + WRITERS * writer_bytes(layout, options, dtype);
        *nvme += file_bytes(layout, dtype, NULL);
    }
}

// ---- open and close ----

static Status open_pieces(OffloadParams *p, Piece *pieces, int n, const char *name, size_t bytes) {
    for (int i = 0; i < n; i++)
        TRY(device_offload_alloc(p->offload->device, MEM_STAGING, name, bytes, &pieces[i].memory));
    return OK;
}

static Status open_file(OffloadParams *p) {
    const OffloadOptions *options = &p->offload->options;
    p->unit_offset = calloc((size_t)p->layout->n_units, sizeof *p->unit_offset);
    if (!p->unit_offset)
        return fail("out of host memory");
    p->piece_bytes = reader_bytes(p->layout, options, p->dtype);
    TRY(open_pieces(p, p->readers, READERS, "parameters that are read", p->piece_bytes));
    TRY(open_pieces(p, p->writers, WRITERS, "updated parameters", writer_bytes(p->layout, options, p->dtype)));
    int64_t bytes = (int64_t)file_bytes(p->layout, p->dtype, p->unit_offset);
    TRY(nvme_open(options->nvme_path, "parameters", options->rank, bytes, &p->file));
    device_count_file(p->offload->device, bytes);
    TRY(nvme_queue_open(p->file, READERS, &p->reads));
    TRY(nvme_queue_open(p->file, WRITERS, &p->writes));
    p->offload->requests = nvme_describe(p->writes);
    return OK;
}

static Status open_all(OffloadParams *p) {
    Device *device = p->offload->device;
    for (int i = 0; i < OFFLOAD_STAGINGS; i++) {
        Staging *s = &p->stagings[i];
        s->unit = -1;
        TRY(device_alloc(device, MEM_STAGING, "fetched shard", longest_bytes(p->layout, p->dtype), &s->memory));
        TRY(event_create(device, &s->ready));
        TRY(event_create(device, &s->released));
    }
    if (p->offload->options.params == OFFLOAD_NVME)
        return open_file(p);
    return device_offload_alloc(device, MEM_PARAMETERS, "parameter shards",
                                (size_t)p->layout->shard_len * dtype_bytes(p->dtype), (void **)&p->memory);
}

Status offload_params_open(Offload *offload, const Layout *layout, Dtype dtype, OffloadParams **params) {
    *params = NULL;
    OffloadParams *p = calloc(1, sizeof *p);
    if (!p)
        return fail("out of host memory");
    *p = (OffloadParams){.offload = offload, .layout = layout, .dtype = dtype};
    Status status = open_all(p);
    if (status == OK)
        *params = p;
    else
        offload_params_close(p);
    return status;
}

void offload_params_close(OffloadParams *p) {
    if (!p)
        return;
    Device *device = p->offload->device;
    nvme_queue_close(p->reads);
    nvme_queue_close(p->writes);
    nvme_close(p->file);
    for (int i = 0; i < READERS; i++)
        device_host_free(device, p->readers[i].memory);
    for (int i = 0; i < WRITERS; i++)
        device_host_free(device, p->writers[i].memory);
    for (int i = 0; i < OFFLOAD_STAGINGS; i++) {
        event_destroy(p->stagings[i].ready);
        event_destroy(p->stagings[i].released);
        device_free(device, p->stagings[i].memory);
    }
    device_host_free(device, p->memory);
    free(p->unit_offset);
    free(p);
}

// ---- fetching ----

typedef struct ReadArguments {
    OffloadParams *params;
    int u, piece, n_pieces;
} ReadArguments;

static Status start_read(OffloadParams *p, int u, int piece) {
    Piece *reader = &p->readers[piece % READERS];
    size_t begin = (size_t)piece * p->piece_bytes, all = round_up(shard_bytes(p->layout, u, p->dtype), NVME_ALIGN);
    reader->request = (NvmeRequest){.memory = reader->memory,
                                    .offset = p->unit_offset[u] + (int64_t)begin,
                                    .bytes = all - begin < p->piece_bytes ? all - begin : p->piece_bytes};
    return nvme_start(p->reads, &reader->request);
}

// In the fetch stream's thread: piece `piece` of a shard arrives in its buffer. When this runs, the pieces before it have been
// copied on, so that their buffers are free.
static Status read_piece(void *arguments) {
    const ReadArguments *a = arguments;
    OffloadParams *p = a->params;
    int first = a->piece == 0 ? 0 : a->piece + READERS - 1, last = a->piece + READERS - 1;
    for (int i = first; i <= last && i < a->n_pieces; i++)
        TRY(start_read(p, a->u, i));
    return nvme_wait(p->reads, &p->readers[a->piece % READERS].request);
}

static void copy_up(OffloadParams *p, void *to, const void *from, size_t bytes) {
    p->offload->stats.bytes_up += (int64_t)bytes;
    stream_copy(p->offload->fetch, to, from, bytes);
}

static void fetch_from_file(OffloadParams *p, int u, char *to) {
    size_t bytes = shard_bytes(p->layout, u, p->dtype);
    int n_pieces = (int)((bytes + p->piece_bytes - 1) / p->piece_bytes);
    p->offload->stats.bytes_read += (int64_t)round_up(bytes, NVME_ALIGN);
    for (int i = 0; i < n_pieces; i++) {
        ReadArguments arguments = {p, u, i, n_pieces};
        size_t begin = (size_t)i * p->piece_bytes, n = bytes - begin < p->piece_bytes ? bytes - begin : p->piece_bytes;
        stream_call(p->offload->fetch, read_piece, &arguments, sizeof arguments);
        copy_up(p, to + begin, p->readers[i % READERS].memory, n);
    }
}

static Staging *find(OffloadParams *p, int u) {
    for (int i = 0; i < OFFLOAD_STAGINGS; i++)
        if (p->stagings[i].unit == u)
            return &p->stagings[i];
    return NULL;
}

static Staging *fetch(OffloadParams *p, int u) {
    Staging *s = find(p, u);
    if (s)
        return s;
    s = &p->stagings[p->next];
    p->next = (p->next + 1) % OFFLOAD_STAGINGS;
    s->unit = u;
    stream_wait(p->offload->fetch, s->released);
    trace_begin(p->offload->fetch, "fetch unit", u);
    if (p->file)
        fetch_from_file(p, u, s->memory);
    else
        copy_up(p, s->memory, p->memory + (size_t)p->layout->units[u].shard_offset * dtype_bytes(p->dtype),
                shard_bytes(p->layout, u, p->dtype));
    trace_end(p->offload->fetch);
    event_record(s->ready, p->offload->fetch);
    return s;
}

void offload_params_fetch(OffloadParams *p, int u) {
    fetch(p, u);
}

const void *offload_params_use(OffloadParams *p, int u, Stream *gather) {
    Staging *s = fetch(p, u);
    stream_wait(gather, s->ready);
    return s->memory;
}

void offload_params_used(OffloadParams *p, int u, Stream *gather) {
    Staging *s = find(p, u);
    event_record(s->released, gather);
}

void offload_params_wait(OffloadParams *p, int u) {
    Staging *s = find(p, u);
    if (s)
        stream_wait_on_account(p->offload->compute, s->ready,
                               p->file ? &p->offload->stats.nvme_wait_s : &p->offload->stats.copy_wait_s);
}

// ---- the optimizer's side ----

static Status wait_written(OffloadParams *p, Piece *writer) {
    double start = comm_clock();
    Status status = nvme_wait(p->writes, &writer->request);
    p->offload->stats.nvme_wait_s += comm_clock() - start;
    return status;
}

Status offload_params_room(OffloadParams *p, int u, int64_t begin, void **room) {
    *room = p->memory + (size_t)(p->layout->units[u].shard_offset + begin) * dtype_bytes(p->dtype);
    if (!p->file)
        return OK;
    Piece *writer = &p->writers[p->writer];
    *room = writer->memory;
    return wait_written(p, writer);
}

Status offload_params_put(OffloadParams *p, int u, int64_t begin, int64_t len) {
    Staging *s = find(p, u);
    if (s)
        s->unit = -1;  // what was fetched is out of date
    if (!p->file)
        return OK;
    Piece *writer = &p->writers[p->writer];
    p->writer = (p->writer + 1) % WRITERS;
    size_t e = dtype_bytes(p->dtype), bytes = round_up((size_t)len * e, NVME_ALIGN);
    writer->request = (NvmeRequest){
        .memory = writer->memory, .offset = p->unit_offset[u] + begin * (int64_t)e, .bytes = bytes, .write = true};
    p->offload->stats.bytes_written += (int64_t)bytes;
    return nvme_start(p->writes, &writer->request);
}

Status offload_params_flush(OffloadParams *p) {
    for (int i = 0; i < WRITERS; i++)
        TRY(wait_written(p, &p->writers[i]));
    return OK;
}
