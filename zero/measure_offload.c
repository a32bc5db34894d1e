// What a host can do for offload: copies, the update, and requests to a disk, for --plan --measure.
#include <stdlib.h>

#include "llm/host_ops.h"
#include "zero/comm.h"
#include "zero/measure.h"
#include "zero/nvme_file.h"
#include "zero/offload_state.h"

enum { ROUNDS = 5, COPY_BYTES = 64 << 20, UPDATE_LEN = 4 << 20, NVME_PIECES = 64, NVME_ROUNDS = 2 };

static Status copies(Device *device, Stream *stream, double *bytes_per_s) {
    void *host = NULL, *memory = NULL;
    Status status = OK;
    TRY_GOTO(device_host_alloc(device, "measured copy", COPY_BYTES, &host), done);
    TRY_GOTO(device_alloc(device, MEM_STAGING, "measured copy", COPY_BYTES, &memory), done);
    for (int i = 0; i < ROUNDS; i++) {
        double start = comm_clock();
        stream_copy(stream, i % 2 ? host : memory, i % 2 ? memory : host, COPY_BYTES);
        TRY_GOTO(stream_sync(stream), done);
        double rate = COPY_BYTES / (comm_clock() - start);
        *bytes_per_s = rate > *bytes_per_s ? rate : *bytes_per_s;
    }
done:
    device_free(device, memory);
    device_host_free(device, host);
    return status;
}

static Status updates(Device *device, Dtype dtype, double *len_per_s) {
    float *state[STATE_KINDS + 2] = {0};  // and gradient and parameters
    Status status = OK;
    for (size_t k = 0; k < sizeof state / sizeof *state; k++)
        TRY_GOTO(device_host_alloc(device, "measured update", UPDATE_LEN * sizeof(float), (void **)&state[k]), done);
    const AdamwArgs args = {.len = UPDATE_LEN,
                            .master = state[STATE_MASTER],
                            .m = state[STATE_M],
                            .v = state[STATE_V],
                            .grad = state[STATE_KINDS],
                            .param = state[STATE_KINDS + 1],
                            .param_dtype = dtype,
                            .grad_dtype = DTYPE_FP32,
                            .grad_divisor = 1,
                            .grad_factor = 1,
                            .lr = 1e-3f,
                            .beta1 = 0.9f,
                            .beta2 = 0.95f,
                            .eps = 1e-8f,
                            .bias_correction1 = 1,
                            .bias_correction2 = 1,
                            .kind = OPT_ADAMW,
                            .n_ranges = 1,
                            .range_end = {UPDATE_LEN},
                            .range_decay = {true}};
    for (int i = 0; i < ROUNDS; i++) {
        double start = comm_clock();
        host_adamw(&args, device_host_threads(device));
        double rate = UPDATE_LEN / (comm_clock() - start);
        *len_per_s = rate > *len_per_s ? rate : *len_per_s;
    }
done:
    for (size_t k = 0; k < sizeof state / sizeof *state; k++)
        device_host_free(device, state[k]);
    return status;
}

// Pieces are read and written in turn, as the update does it.
static Status requests(NvmeQueue *queue, char *memory, size_t bytes, bool write_only) {
    NvmeRequest all[OFFLOAD_BUFFERS] = {{.memory = NULL}};
    for (int i = 0; i < NVME_PIECES; i++) {
        NvmeRequest *r = &all[i % OFFLOAD_BUFFERS];
        TRY(nvme_wait(queue, r));
        *r = (NvmeRequest){.memory = memory + (size_t)(i % OFFLOAD_BUFFERS) * bytes,
                           .offset = (int64_t)i * (int64_t)bytes,
                           .bytes = bytes,
                           .write = write_only || i % 2};
        TRY(nvme_start(queue, r));
    }
    for (int i = 0; i < OFFLOAD_BUFFERS; i++)
        TRY(nvme_wait(queue, &all[i]));
    return OK;
}

static Status disk(Device *device, const Config *config, double *bytes_per_s) {
    size_t bytes = config->nvme_buffer / NVME_ALIGN * NVME_ALIGN;
    char *memory = NULL;
    NvmeFile *file = NULL;
    NvmeQueue *queue = NULL;
    Status status = OK;
    TRY_GOTO(device_host_alloc(device, "measured requests", OFFLOAD_BUFFERS * bytes, (void **)&memory), done);
    TRY_GOTO(nvme_open(config->nvme_path, "measured requests", 0, (int64_t)bytes * NVME_PIECES, &file), done);
    TRY_GOTO(nvme_queue_open(file, OFFLOAD_BUFFERS, &queue), done);
    for (int i = 0; i <= NVME_ROUNDS; i++) {
        double start = comm_clock();
        TRY_GOTO(requests(queue, memory, bytes, i == 0), done);  // first, what is read later is written
        double rate = (double)bytes * NVME_PIECES / (comm_clock() - start);
        if (i > 0)
            *bytes_per_s = rate > *bytes_per_s ? rate : *bytes_per_s;
    }
done:
    nvme_queue_close(queue);
    nvme_close(file);
    device_host_free(device, memory);
    return status;
}

Status measure_offload(Device *device, Stream *stream, const Config *config, ClusterSpeed *speed) {
    TRY(copies(device, stream, &speed->copy_bytes_per_s));
    TRY(updates(device, config->dtype, &speed->update_len_per_s));
    return config->nvme_path ? disk(device, config, &speed->nvme_bytes_per_s) : OK;
}
