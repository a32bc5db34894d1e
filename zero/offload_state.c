#include "zero/offload_state.h"

#include <stdlib.h>
#include <string.h>

#include "zero/comm.h"
#include "zero/nvme_file.h"

// Where a walk, or its reading ahead, stands.
typedef struct Cursor {
    int u;           // n_units: at the end
    int64_t begin;   // in the unit's shard
    int64_t offset;  // in the file
    int number;
} Cursor;

// A record in memory. Its request is the last one that read or wrote it.
typedef struct Buffer {
    float *memory;
    NvmeRequest request;
} Buffer;

struct OffloadState {
    Offload *offload;
    const Layout *layout;
    int n_kinds;  // the first so many of StateKind: master, m, and v but for SGD
    int64_t tile_len;
    float *memory[STATE_KINDS];  // cpu: (shard_len) of the layout
    NvmeFile *file;              // nvme, like the rest
    NvmeQueue *queue;
    int64_t *unit_offset;  // (n_units) of a unit's first record in the file
    Buffer buffers[OFFLOAD_BUFFERS];
    Cursor next, ahead;  // the tile that is handed out next, and the one that is read next
};

static int64_t round_up(int64_t x, int64_t multiple) {
    return (x + multiple - 1) / multiple * multiple;
}

static int64_t min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// ---- arithmetic ----

int64_t offload_tile_len(const Layout *layout, const OffloadOptions *options) {
    int64_t len = OFFLOAD_TILE_LEN;
    if (options->optimizer == OFFLOAD_NVME)
        len =
            (int64_t)(options->nvme_buffer / sizeof(float)) / options->state_kinds / OFFLOAD_PAD_LEN * OFFLOAD_PAD_LEN;
    return min_i64(len, round_up(layout_longest_shard(layout), OFFLOAD_PAD_LEN));
}

static int64_t tile_len(const Layout *layout, int u, int64_t begin, int64_t longest) {
    return min_i64(longest, layout->units[u].shard_len - begin);
}

static int64_t record_bytes(int64_t len, int n_kinds) {
    return round_up(len, OFFLOAD_PAD_LEN) * n_kinds * (int64_t)sizeof(float);
}

// Bytes of all records of a unit.
static int64_t unit_bytes(const Layout *layout, int u, int64_t longest, int n_kinds) {
    int64_t len = layout->units[u].shard_len;
    return len / longest * record_bytes(longest, n_kinds) + record_bytes(len % longest, n_kinds);
}

int64_t offload_state_unit_bytes(const Layout *layout, const OffloadOptions *options, int u) {
    return unit_bytes(layout, u, offload_tile_len(layout, options), options->state_kinds);
}

void offload_state_plan(const Layout *layout, const OffloadOptions *options, size_t host[MEM_CATEGORIES],
                        size_t *nvme) {
    int64_t longest = offload_tile_len(layout, options);
    int kinds = options->state_kinds;
    if (options->optimizer == OFFLOAD_CPU)
        host[MEM_OPTIMIZER] += (size_t)layout->shard_len * sizeof(float) * (size_t)kinds;
    if (options->optimizer != OFFLOAD_NVME)
        return;
    host[MEM_STAGING] += OFFLOAD_BUFFERS * (size_t)record_bytes(longest, kinds);
    for (int u = 0; u < layout->n_units; u++)
        *nvme += (size_t)offload_state_unit_bytes(layout, options, u);
}

static void advance(const OffloadState *s, Cursor *c) {
    int64_t len = tile_len(s->layout, c->u, c->begin, s->tile_len);
    c->offset += record_bytes(len, s->n_kinds);
    c->begin += len;
    c->number++;
    if (c->begin == s->layout->units[c->u].shard_len) {
        c->begin = 0;
        c->u++;
    }
}

// ---- open and close ----

static Status open_memory(OffloadState *s) {
    static const char *const names[STATE_KINDS] = {"master weights", "first moment", "second moment"};
    for (int k = 0; k < s->n_kinds; k++)
        TRY(device_offload_alloc(s->offload->device, MEM_OPTIMIZER, names[k],
                                 (size_t)s->layout->shard_len * sizeof(float), (void **)&s->memory[k]));
    return OK;
}

static Status open_file(OffloadState *s) {
    const OffloadOptions *options = &s->offload->options;
    s->unit_offset = calloc((size_t)s->layout->n_units, sizeof *s->unit_offset);
    if (!s->unit_offset)
        return fail("out of host memory");
    int64_t bytes = 0;
    for (int u = 0; u < s->layout->n_units; u++) {
        s->unit_offset[u] = bytes;
        bytes += unit_bytes(s->layout, u, s->tile_len, s->n_kinds);
    }
    for (int i = 0; i < OFFLOAD_BUFFERS; i++)
        TRY(device_offload_alloc(s->offload->device, MEM_STAGING, "optimizer state in flight",
                                 (size_t)record_bytes(s->tile_len, s->n_kinds), (void **)&s->buffers[i].memory));
    TRY(nvme_open(options->nvme_path, "optimizer state", options->rank, bytes, &s->file));
    device_count_file(s->offload->device, bytes);
    TRY(nvme_queue_open(s->file, OFFLOAD_BUFFERS, &s->queue));
    s->offload->requests = nvme_describe(s->queue);
    return OK;
}

Status offload_state_open(Offload *offload, const Layout *layout, OffloadState **state) {
    *state = NULL;
    OffloadState *s = calloc(1, sizeof *s);
    if (!s)
        return fail("out of host memory");
    s->offload = offload;
    s->layout = layout;
    s->n_kinds = offload->options.state_kinds;
    s->tile_len = offload_tile_len(layout, &offload->options);
    Status status = offload->options.optimizer == OFFLOAD_NVME ? open_file(s) : open_memory(s);
    if (status == OK)
        *state = s;
    else
        offload_state_close(s);
    return status;
}

void offload_state_close(OffloadState *s) {
    if (!s)
        return;
    nvme_queue_close(s->queue);  // first: what is in flight uses the buffers
    nvme_close(s->file);
    for (int i = 0; i < OFFLOAD_BUFFERS; i++)
        device_host_free(s->offload->device, s->buffers[i].memory);
    for (int k = 0; k < STATE_KINDS; k++)
        device_host_free(s->offload->device, s->memory[k]);
    free(s->unit_offset);
    free(s);
}

// ---- requests ----

static Status start(OffloadState *s, Buffer *buffer, float *memory, int64_t offset, int64_t bytes, bool write) {
    OffloadStats *stats = &s->offload->stats;
    *(write ? &stats->bytes_written : &stats->bytes_read) += bytes;
    buffer->request = (NvmeRequest){.memory = memory, .offset = offset, .bytes = (size_t)bytes, .write = write};
    return nvme_start(s->queue, &buffer->request);
}

static Status wait(OffloadState *s, Buffer *buffer) {
    double begin = comm_clock();
    Status status = nvme_wait(s->queue, &buffer->request);
    s->offload->stats.nvme_wait_s += comm_clock() - begin;
    return status;
}

// ---- the walk ----

Status offload_state_begin(OffloadState *s) {
    s->next = s->ahead = (Cursor){0};
    return OK;
}

static Status read_ahead(OffloadState *s) {
    while (s->ahead.u < s->layout->n_units && s->ahead.number <= s->next.number + OFFLOAD_READ_AHEAD) {
        Buffer *buffer = &s->buffers[s->ahead.number % OFFLOAD_BUFFERS];
        TRY(wait(s, buffer));  // an earlier tile is written from it
        int64_t len = tile_len(s->layout, s->ahead.u, s->ahead.begin, s->tile_len);
        TRY(start(s, buffer, buffer->memory, s->ahead.offset, record_bytes(len, s->n_kinds), false));
        advance(s, &s->ahead);
    }
    return OK;
}

Status offload_state_next(OffloadState *s, StateTile *tile) {
    *tile = (StateTile){.u = s->next.u, .begin = s->next.begin, .number = s->next.number};
    if (tile->u == s->layout->n_units)
        return OK;
    tile->len = tile_len(s->layout, tile->u, tile->begin, s->tile_len);
    Buffer *buffer = &s->buffers[tile->number % OFFLOAD_BUFFERS];
    if (s->file) {
        TRY(read_ahead(s));
        TRY(wait(s, buffer));
    }
    for (int k = 0; k < s->n_kinds; k++)
        tile->state[k] = s->file ? buffer->memory + k * round_up(tile->len, OFFLOAD_PAD_LEN)
                                 : s->memory[k] + s->layout->units[tile->u].shard_offset + tile->begin;
    advance(s, &s->next);
    return OK;
}

Status offload_state_release(OffloadState *s, const StateTile *tile, bool changed) {
    Buffer *buffer = &s->buffers[tile->number % OFFLOAD_BUFFERS];
    if (!s->file || !changed)
        return OK;
    const NvmeRequest read = buffer->request;
    return start(s, buffer, read.memory, read.offset, (int64_t)read.bytes, true);
}

Status offload_state_end(OffloadState *s) {
    for (int i = 0; s->file && i < OFFLOAD_BUFFERS; i++)
        TRY(wait(s, &s->buffers[i]));
    return OK;
}

// ---- any part ----

// One tile's part [from, from + len) of a kind, through the first buffer: whole blocks of the file around it.
static Status move_part(OffloadState *s, StateKind kind, int u, int64_t tile_begin, int64_t from, int64_t len,
                        float *host, bool write) {
    enum { BLOCK_LEN = NVME_ALIGN / sizeof(float) };
    int64_t record_len = round_up(tile_len(s->layout, u, tile_begin, s->tile_len), OFFLOAD_PAD_LEN);
    int64_t first = from / BLOCK_LEN * BLOCK_LEN, end = round_up(from + len, BLOCK_LEN);
    int64_t record = s->unit_offset[u] + tile_begin / s->tile_len * record_bytes(s->tile_len, s->n_kinds);
    int64_t offset = record + ((int64_t)kind * record_len + first) * (int64_t)sizeof(float);
    Buffer *buffer = &s->buffers[0];
    float *values = buffer->memory + (from - first);
    TRY(start(s, buffer, buffer->memory, offset, (end - first) * (int64_t)sizeof(float), false));
    TRY(wait(s, buffer));
    if (!write) {
        memcpy(host, values, (size_t)len * sizeof *host);
        return OK;
    }
    memcpy(values, host, (size_t)len * sizeof *host);
    TRY(start(s, buffer, buffer->memory, offset, (end - first) * (int64_t)sizeof(float), true));
    return wait(s, buffer);
}

static Status move(OffloadState *s, StateKind kind, int u, int64_t begin, int64_t len, float *host, bool write) {
    if (!s->file) {
        float *at = s->memory[kind] + s->layout->units[u].shard_offset + begin;
        memcpy(write ? at : host, write ? host : at, (size_t)len * sizeof *host);
        return OK;
    }
    while (len > 0) {
        int64_t from = begin % s->tile_len, part = min_i64(len, s->tile_len - from);
        TRY(move_part(s, kind, u, begin - from, from, part, host, write));
        begin += part;
        host += part;
        len -= part;
    }
    return OK;
}

Status offload_state_read(OffloadState *s, StateKind kind, int u, int64_t begin, int64_t len, float *to) {
    return move(s, kind, u, begin, len, to, false);
}

Status offload_state_write(OffloadState *s, StateKind kind, int u, int64_t begin, int64_t len, const float *from) {
    return move(s, kind, u, begin, len, (float *)(uintptr_t)from, true);
}
