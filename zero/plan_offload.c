#include "zero/plan_offload.h"

#include "zero/plan_text.h"

// Rough shares of a step: the host's update and its copies; shards that are fetched; a disk that is slower than memory.
const PlanWay plan_ways[PLAN_WAYS] = {
    {OFFLOAD_NONE, OFFLOAD_NONE, "", 0},
    {OFFLOAD_CPU, OFFLOAD_NONE, "--offload-optimizer cpu", 0.15},
    {OFFLOAD_CPU, OFFLOAD_CPU, "--offload-optimizer cpu --offload-params cpu", 0.25},
    {OFFLOAD_CPU, OFFLOAD_NVME, "--offload-optimizer cpu --offload-params nvme", 0.5},
    {OFFLOAD_NVME, OFFLOAD_NONE, "--offload-optimizer nvme", 0.8},
    {OFFLOAD_NVME, OFFLOAD_CPU, "--offload-optimizer nvme --offload-params cpu", 0.9},
    {OFFLOAD_NVME, OFFLOAD_NVME, "--offload-optimizer nvme --offload-params nvme", 1.2},
};

PlanInput plan_with_way(const PlanInput *in, const PlanWay *way) {
    PlanInput other = *in;
    other.offload.optimizer = way->optimizer;
    other.offload.params = way->params;
    other.offload.state_kinds = in->optimizer == OPTIMIZER_SGD ? 2 : 3;
    return other;
}

bool plan_way_fits_stage(const PlanInput *in, const PlanWay *way, int stage) {
    return way->optimizer == OFFLOAD_NONE ||
           ((stage > 0 || in->n_ranks == 1) && (stage == 3 || way->params == OFFLOAD_NONE));
}

// One way in one stage.
typedef struct Case {
    double device, host, nvme;
    Traffic traffic;
    bool fits_stage;
} Case;

static Status make_case(const PlanInput *in, const TrafficInput *traffic, const PlanWay *way, int stage, Case *c) {
    PlanInput other = plan_with_way(in, way);
    PlanBytes bytes;
    *c = (Case){.fits_stage = plan_way_fits_stage(in, way, stage)};
    if (!c->fits_stage)
        return OK;
    c->device = (double)plan_stage(&other, stage, in->n_choices ? &in->choices[0] : NULL, &bytes);
    for (int k = 0; k < MEM_CATEGORIES; k++)
        c->host += (double)bytes.host[k];
    c->nvme = (double)bytes.nvme;
    if (!traffic)
        return OK;
    TrafficInput moved = *traffic;
    moved.zero.stage = stage;
    moved.offload = other.offload;
    return traffic_predict(&moved, &c->traffic);
}

static bool knows_seconds(const TrafficInput *t, const PlanWay *way) {
    bool nvme = way->optimizer == OFFLOAD_NVME || way->params == OFFLOAD_NVME;
    return t && t->loss_s > 0 && t->update_len_per_s > 0 && (!nvme || t->nvme_bytes_per_s > 0) &&
           (t->shape.n_ranks == 1 || t->bytes_per_s > 0);
}

typedef struct Row {
    const char *label;
    double value[PLAN_STAGES];
    bool seconds;
} Row;

static void print_row(const Row *row, const Case cases[PLAN_STAGES], FILE *file) {
    char text[TEXT_BYTES];
    double sum = 0;
    for (int s = 0; s < PLAN_STAGES; s++)
        sum += row->value[s];
    if (sum == 0)
        return;
    fprintf(file, "%-*s", LABEL_WIDTH, row->label);
    for (int s = 0; s < PLAN_STAGES; s++)
        print_cell(file, !cases[s].fits_stage ? "-"
                         : row->seconds       ? short_seconds(row->value[s], text)
                                              : decimal_bytes(row->value[s], text));
    fputc('\n', file);
}

Status plan_offload_print(const PlanInput *in, const TrafficInput *traffic, FILE *file) {
    fprintf(file, "\nOffload: bytes of one rank%s\n", traffic ? ", and moved in a step" : "");
    print_stages(file);
    for (int i = 1; i < PLAN_WAYS; i++) {
        const PlanWay *way = &plan_ways[i];
        Case cases[PLAN_STAGES];
        Row rows[] = {{.label = "  device"},        {.label = "  host"},
                      {.label = "  NVMe"},          {.label = "  to the host"},
                      {.label = "  to the device"}, {.label = "  NVMe read"},
                      {.label = "  NVMe written"},  {.label = "  a step", .seconds = true}};
        for (int s = 0; s < PLAN_STAGES; s++) {
            Case *c = &cases[s];
            TRY(make_case(in, traffic, way, s, c));
            const OffloadStats *moved = &c->traffic.offload;
            const double values[] = {c->device,
                                     c->host,
                                     c->nvme,
                                     (double)moved->bytes_down,
                                     (double)moved->bytes_up,
                                     (double)moved->bytes_read,
                                     (double)moved->bytes_written,
                                     knows_seconds(traffic, way) ? c->traffic.step_s : 0};
            for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
                rows[k].value[s] = values[k];
        }
        fprintf(file, "%s\n", way->options);
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
            print_row(&rows[k], cases, file);
    }
    return OK;
}

Status plan_offload_recommend(const PlanInput *in, const TrafficInput *traffic, double margin, FILE *file,
                              bool *found) {
    char device[TEXT_BYTES], host[TEXT_BYTES], nvme[TEXT_BYTES], with[TEXT_BYTES], without[TEXT_BYTES];
    for (int i = 1; i < PLAN_WAYS; i++) {
        const PlanWay *way = &plan_ways[i];
        for (int s = 0; s < PLAN_STAGES; s++) {
            Case c, plain;
            TRY(make_case(in, traffic, way, s, &c));
            if (!c.fits_stage || c.device > (1 - margin) * (double)in->device_memory)
                continue;
            TRY(make_case(in, traffic, &plan_ways[0], s, &plain));
            fprintf(file, "With offload: --zero %d %s needs %s of the device, %s of host memory", s, way->options,
                    decimal_bytes(c.device, device), decimal_bytes(c.host, host));
            if (c.nvme > 0)
                fprintf(file, " and %s of a disk (--nvme-path)", decimal_bytes(c.nvme, nvme));
            if (knows_seconds(traffic, way))
                fprintf(file, "; a step takes %s, where it would take %s if all fitted on the device.\n",
                        short_seconds(c.traffic.step_s, with), short_seconds(plain.traffic.step_s, without));
            else
                fprintf(file, "; it costs about %.0f%% of a step's time (--measure finds what it costs here).\n",
                        100 * way->cost);
            *found = true;
            return OK;
        }
    }
    *found = false;
    return OK;
}
