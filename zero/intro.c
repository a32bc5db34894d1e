#include "zero/intro.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "llm/model.h"
#include "zero/options.h"
#include "zero/saver.h"
#include "zero/traffic.h"

// The bytes that a rank will send in a step, by our formula and by the textbook's, for the log.
static Status predict_traffic(const Intro *r, cJSON *fields) {
    TrafficInput input = {.layout = r->layout, .shape = comm_shape(r->comm), .zero = r->zero,
                          .grad_accum = r->config->grad_accum, .overlap = r->config->overlap,
                          .offload = options_offload(r->config, 0),
                          .input_bytes = options_input_bytes(r->config)};
    Traffic traffic;
    TRY(traffic_predict(&input, &traffic));
    cJSON *sent = cJSON_AddObjectToObject(fields, "predicted_bytes_sent");
    for (int k = 0; k < COMM_HOST_VALUES; k++)
        cJSON_AddNumberToObject(sent, collective_names[k], (double)traffic.bytes[k]);
    cJSON *moved = cJSON_AddObjectToObject(fields, "predicted_offload");
    cJSON_AddNumberToObject(moved, "bytes_down", (double)traffic.offload.bytes_down);
    cJSON_AddNumberToObject(moved, "bytes_up", (double)traffic.offload.bytes_up);
    cJSON_AddNumberToObject(moved, "nvme_bytes_read", (double)traffic.offload.bytes_read);
    cJSON_AddNumberToObject(moved, "nvme_bytes_written", (double)traffic.offload.bytes_written);
    cJSON_AddNumberToObject(fields, "textbook_bytes_sent", traffic_textbook(&input));
    return OK;
}

static void introduce_offload(const Intro *r, RunLog *log) {
    const Config *c = r->config;
    static const char *const places[] = {"on the device", "in host memory", "in a file"};
    if (!r->offload)
        return;
    log_line(log, "offload  optimizer state %s, parameters %s, block inputs %s", places[c->offload_optimizer],
             places[c->offload_params], places[c->offload_activations ? OFFLOAD_CPU : OFFLOAD_NONE]);
    if (r->predicted.nvme > 0)
        log_line(log, "         %.1f MB a rank in %s, which go with the run; requests of %.1f MB by %s",
                 (double)r->predicted.nvme / 1e6, c->nvme_path, (double)c->nvme_buffer / 1e6, r->offload->requests);
    if (device_kind(r->device) == DEVICE_CPU)
        log_line(log, "         device and host memory are the same chips here: what is in host memory saves nothing");
}

Status introduce(const Intro *r, RunLog *log) {
    const Config *c = r->config;
    int n_ranks = comm_size(r->comm);
    double flops = model_flops_per_token(&c->model, c->seq_len);
    log_line(log, "model    %s: %.1f M parameters (%d layers, %d channels, %d heads, vocabulary %lld), %s", c->model_name,
             (double)r->layout->n_params / 1e6, c->model.layers, c->model.channels, c->model.heads,
             (long long)c->model.vocab_size, c->tf32 ? "fp32, matmuls in TF32" : dtype_name(c->dtype));
    if (c->model.had_dropout)
        log_line(log, "         the config.json asks for dropout; this program trains without it");
    log_line(log, "device   %s%s", device_name(r->device),
             device_has_native(r->device, c->dtype) ? "" : "; it has no arithmetic of this dtype: operands are converted to fp32 tile by tile");
    if (*r->device_why)
        log_line(log, "         --device auto: %s", r->device_why);
    if (isfinite(r->peak_flops))
        log_line(log, "         matmul peak %.1f GFLOP/s, measured; %.1f MFLOP a token", r->peak_flops / 1e9, flops / 1e6);
    log_line(log, "batch    global %d = micro %d · grad_accum %d · ranks %d, of %d tokens", c->global_batch,
             c->micro_batch, c->grad_accum, n_ranks, c->seq_len);
    if (!c->deterministic)
        log_line(log, "sums     of gradients over ranks in an order of NCCL's choice (--deterministic off): runs do not "
                      "repeat bit for bit");
    double epochs = (double)c->steps * c->global_batch / (double)r->n_windows;
    introduce_offload(r, log);
    log_line(log, "data     %lld tokens in %d shard%s, %.2f epochs in %lld steps", (long long)r->n_tokens,
             r->n_shards, r->n_shards == 1 ? "" : "s", epochs, (long long)c->steps);
    PlanBytes measured = plan_measured(r->device);
    measured.snapshot = device_host_bytes_of(r->device, SNAPSHOT_NAME);
    if (comm_rank(r->comm) == 0)
        plan_print_measured(&r->predicted, &measured, stdout);
    double as_predicted = memcmp(&measured, &r->predicted, sizeof measured) == 0;
    TRY(comm_sum(r->comm, "memory as predicted", &as_predicted, 1));
    if (as_predicted < n_ranks)
        log_line(log, "memory   %d of %d ranks have other bytes than predicted: a bug in zero.c, without harm to the run",
                 n_ranks - (int)as_predicted, n_ranks);
    if (r->saves)
        log_line(log, "saves    %s", r->saves);

    cJSON *fields = config_to_json(c);
    cJSON_AddNumberToObject(fields, "n_params", (double)r->layout->n_params);
    cJSON_AddNumberToObject(fields, "ranks", n_ranks);
    cJSON_AddNumberToObject(fields, "flops_per_token", flops);
    cJSON_AddNumberToObject(fields, "peak_flops", r->peak_flops);
    cJSON_AddStringToObject(fields, "device", device_name(r->device));
    cJSON_AddNumberToObject(fields, "ranks_as_predicted", as_predicted);
    cJSON *bytes = cJSON_AddObjectToObject(fields, "predicted_bytes");
    for (int k = 0; k < MEM_CATEGORIES; k++)
        cJSON_AddNumberToObject(bytes, memory_category_names[k], (double)r->predicted.device[k]);
    cJSON *host = cJSON_AddObjectToObject(fields, "predicted_host_bytes");
    for (int k = 0; k < MEM_CATEGORIES; k++)
        cJSON_AddNumberToObject(host, memory_category_names[k], (double)r->predicted.host[k]);
    cJSON_AddNumberToObject(fields, "predicted_nvme_bytes", (double)r->predicted.nvme);
    cJSON_AddNumberToObject(fields, "predicted_snapshot_bytes", (double)r->predicted.snapshot);
    cJSON_AddNumberToObject(fields, "snapshot_bytes", (double)measured.snapshot);
    TRY(predict_traffic(r, fields));
    log_event(log, "start", fields);
    return OK;
}
