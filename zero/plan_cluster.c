#include "zero/plan_cluster.h"

#include <string.h>

#include "zero/options.h"
#include "zero/plan_advice.h"
#include "zero/plan_offload.h"
#include "zero/plan_text.h"
#include "zero/traffic.h"

typedef struct Cluster {
    const Config *config;
    Device *device;
    ClusterSpeed speed;
    FILE *file;
} Cluster;

// ---- one cluster size and batch ----

static CommShape shape_of(const Config *c, int n_ranks) {
    int group = c->shard_group > 0 ? c->shard_group : n_ranks;
    return (CommShape){n_ranks, group, group};
}

// Bytes of a rank in every stage, with N ranks and a micro-batch.
static Status size_of(const Cluster *cluster, int n_ranks, int micro_batch, size_t total[PLAN_STAGES]) {
    Config config = *cluster->config;
    config.micro_batch = micro_batch;
    Plan plan;
    if (config.plan_params > 0) {
        PlanInput input = plan_input(&config, NULL, n_ranks);
        plan_compute(&input, &plan);
    } else {
        Layout layout = {0};
        PlanChoice choices[PLAN_CHOICES];
        PlanInput input;
        TRY(layout_make(&config.model, n_ranks, config.shard_group, 0, &layout));
        Status status =
            plan_model(&config, cluster->device, &layout, shape_of(&config, n_ranks), false, choices, &input);
        if (status == OK)
            plan_compute(&input, &plan);
        layout_free(&layout);
        TRY(status);
    }
    memcpy(total, plan.total, sizeof plan.total);
    return OK;
}

static TrafficInput traffic_input(const Cluster *cluster, const Layout *layout, int stage, int micro_batch,
                                  int grad_accum) {
    const Config *c = cluster->config;
    const ClusterSpeed *speed = &cluster->speed;
    TrafficInput input = {.layout = layout,
                          .shape = shape_of(c, layout->n_ranks),
                          .zero = options_zero(c),
                          .input_bytes = options_input_bytes(c),
                          .grad_accum = grad_accum,
                          .overlap = c->overlap,
                          .bytes_per_s = speed->bytes_per_s,
                          .copy_bytes_per_s = speed->copy_bytes_per_s,
                          .nvme_bytes_per_s = speed->nvme_bytes_per_s,
                          .update_len_per_s = speed->update_len_per_s};
    input.zero.stage = stage;
    if (stage > 0 || layout->n_ranks == 1)
        input.offload = options_offload(c, 0);
    if (stage < 3)
        input.offload.params = OFFLOAD_NONE;
    if (speed->flops > 0) {
        double tokens = (double)micro_batch * c->seq_len, all = model_flops_per_token(&c->model, c->seq_len);
        double head = 6.0 * (double)c->model.vocab_size * c->model.channels, block = (all - head) / c->model.layers;
        double repeated = c->recompute == RECOMPUTE_FULL ? 1.0 / 3 : 0;  // norms and activations are no matmuls
        input.block_forward_s = block / 3 * tokens / speed->flops;
        input.block_backward_s = block * (2.0 / 3 + repeated) * tokens / speed->flops;
        input.loss_s = head * tokens / speed->flops;
    }
    return input;
}

// What a step of a stage sends and how long it takes.
static Status time_of(const Cluster *cluster, const Layout *layout, int stage, int micro_batch, int grad_accum,
                      Traffic *traffic, double *textbook) {
    TrafficInput input = traffic_input(cluster, layout, stage, micro_batch, grad_accum);
    *textbook = traffic_textbook(&input);
    return traffic_predict(&input, traffic);
}

// ---- the largest micro-batch ----

enum { MAX_SEARCH = 64 };  // sizes that a search looks at

// The largest micro-batch up to `most` whose bytes stay within `memory` in a stage; 0: none. Bytes grow about linearly: a
// guess by the last two sizes, then steps of bisection.
static Status largest_micro_batch(const Cluster *cluster, int stage, double memory, int most, int *found) {
    size_t total[PLAN_STAGES], at_one[PLAN_STAGES];
    *found = 0;
    TRY(size_of(cluster, cluster->config->ranks, 1, at_one));
    if ((double)at_one[stage] > memory)
        return OK;
    int low = 1, high = most + 1, next = 2;  // low fits, high does not
    double low_bytes = (double)at_one[stage], slope = 0;
    for (int i = 0; i < MAX_SEARCH && low + 1 < high; i++) {
        int guess = slope > 0 ? low + (int)((memory - low_bytes) / slope) : next;
        if (i % 2 == 1 && slope > 0)
            guess++;  // is the guess before the last one that fits?
        if (guess <= low)
            guess = low + 1;
        if (guess >= high)
            guess = high - 1;
        TRY(size_of(cluster, cluster->config->ranks, guess, total));
        if ((double)total[stage] <= memory) {
            slope = ((double)total[stage] - low_bytes) / (guess - low);
            low = guess;
            low_bytes = (double)total[stage];
        } else {
            high = guess;
        }
    }
    *found = low;
    return OK;
}

static int max_micro_batch(const Config *c) {
    int most = 1 << 20;  // as --micro-batch
    return c->seq_len > (1 << 30) / most ? (1 << 30) / c->seq_len : most;
}

// ---- the tables ----

static void print_label(FILE *file, const char *label) {
    fprintf(file, "%-*s", LABEL_WIDTH, label);
}

static void print_times(const Cluster *cluster, const Traffic t[PLAN_STAGES], const double textbook[PLAN_STAGES]) {
    const Config *c = cluster->config;
    FILE *file = cluster->file;
    char text[TEXT_BYTES];
    double row[PLAN_STAGES];
    fprintf(file, "\nA step of %d sequences = micro %d · grad_accum %d · ranks %d, of %d tokens", c->global_batch,
            c->micro_batch, c->grad_accum, c->ranks, c->seq_len);
    bool tera = cluster->speed.flops >= 1e12;
    if (cluster->speed.flops > 0)
        fprintf(file, "; a rank computes at %.4g %sFLOP/s", cluster->speed.flops / (tera ? 1e12 : 1e9), tera ? "T" : "G");
    if (cluster->speed.bytes_per_s > 0)
        fprintf(file, "; it sends %.4g Gbit/s", cluster->speed.bytes_per_s * 8 / 1e9);
    if (cluster->speed.update_len_per_s > 0)
        fprintf(file, "; its host copies %.3g GB/s and updates %.3g G parameters/s", cluster->speed.copy_bytes_per_s / 1e9,
                cluster->speed.update_len_per_s / 1e9);
    if (cluster->speed.nvme_bytes_per_s > 0)
        fprintf(file, "; its disk moves %.3g GB/s, half of it read", cluster->speed.nvme_bytes_per_s / 1e9);
    fputs("\n", file);
    print_stages(file);
    for (int s = 0; s < PLAN_STAGES; s++)
        row[s] = (double)t[s].total_bytes;
    print_bytes_row(file, "a rank sends", row);
    print_bytes_row(file, "  textbook", textbook);

    const struct {
        const char *label;
        bool known;
    } rows[] = {{"compute", cluster->speed.flops > 0},
                {"communication", cluster->speed.bytes_per_s > 0},
                {"a step", cluster->speed.flops > 0 && cluster->speed.bytes_per_s > 0}};
    for (int i = 0; i < 3; i++) {
        if (!rows[i].known)
            continue;
        print_label(file, rows[i].label);
        for (int s = 0; s < PLAN_STAGES; s++)
            print_cell(file, short_seconds(i == 0 ? t[s].compute_s : i == 1 ? t[s].comm_s : t[s].step_s, text));
        fputc('\n', file);
    }
    if (rows[2].known) {
        print_label(file, "tokens/s");
        for (int s = 0; s < PLAN_STAGES; s++)
            print_cell(file, grouped((uint64_t)((double)c->global_batch * c->seq_len / t[s].step_s), text));
        fputc('\n', file);
    } else {
        fputs("Seconds need --flops and --bandwidth; mpirun with --measure finds those of its hosts.\n", file);
    }
}

static Status print_largest(const Cluster *cluster) {
    const Config *c = cluster->config;
    print_label(cluster->file, "largest --micro-batch");
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        int largest;
        char text[TEXT_BYTES];
        TRY(largest_micro_batch(cluster, stage, (double)c->device_memory, max_micro_batch(c), &largest));
        print_cell(cluster->file, largest ? grouped((uint64_t)largest, text) : "none");
    }
    fputc('\n', cluster->file);
    return OK;
}

// ---- how many ranks ----

// plan_smallest_ranks does not know the padding and the staging of N ranks: go on from there while they are too much.
static Status smallest_ranks(const Cluster *cluster, int stage, int64_t *n, size_t *total) {
    const Config *c = cluster->config;
    PlanChoice choices[PLAN_CHOICES];
    PlanInput input = plan_input(c, NULL, 1);
    Layout layout = {0};
    Status status = OK;
    if (c->plan_params == 0) {
        TRY(layout_make(&c->model, 1, 0, 0, &layout));
        status = plan_model(c, cluster->device, &layout, shape_of(c, 1), false, choices, &input);
    }
    *n = status == OK ? plan_smallest_ranks(&input, stage) : 0;
    layout_free(&layout);
    TRY(status);
    enum { MAX_RANKS = 1 << 24, MAX_MORE = 32 };
    for (int64_t last = *n + MAX_MORE; *n > 0 && *n <= MAX_RANKS; ++*n) {
        size_t totals[PLAN_STAGES];
        TRY(size_of(cluster, (int)*n, c->micro_batch, totals));
        *total = totals[stage];
        if ((double)totals[stage] <= (1 - PLAN_MARGIN) * (double)c->device_memory)
            return OK;
        if (stage == 0 || *n == last)
            break;
    }
    *n = 0;
    return OK;
}

// ---- the recommendation ----

// The same share of the global batch in smaller micro-batches, the largest that leave the margin free; 0: none.
static Status smaller_micro_batch(const Cluster *cluster, int stage, int *micro_batch) {
    const Config *c = cluster->config;
    int share = c->micro_batch * c->grad_accum;
    TRY(largest_micro_batch(cluster, stage, (1 - PLAN_MARGIN) * (double)c->device_memory, c->micro_batch - 1,
                            micro_batch));
    while (*micro_batch > 0 && share % *micro_batch != 0)
        --*micro_batch;
    return OK;
}

static Status recommend(const Cluster *cluster, const Layout *layout, const PlanInput *plan,
                        const Traffic given[PLAN_STAGES]) {
    const Config *c = cluster->config;
    bool timed = cluster->speed.flops > 0 && cluster->speed.bytes_per_s > 0;
    PlanCase cases[2 * PLAN_STAGES];
    int n = PLAN_STAGES;
    size_t total[PLAN_STAGES];
    TRY(size_of(cluster, c->ranks, c->micro_batch, total));
    for (int s = 0; s < PLAN_STAGES; s++)
        cases[s] = (PlanCase){s, c->micro_batch, c->grad_accum, true, total[s], timed ? given[s].step_s : 0};
    for (int s = 0; layout && s < PLAN_STAGES; s++) {
        int micro_batch = 0;
        if ((double)total[s] > (1 - PLAN_MARGIN) * (double)c->device_memory && c->micro_batch > 1)
            TRY(smaller_micro_batch(cluster, s, &micro_batch));
        if (micro_batch == 0)
            continue;
        int accum = c->micro_batch * c->grad_accum / micro_batch;
        Traffic traffic;
        double textbook;
        size_t smaller[PLAN_STAGES];
        TRY(size_of(cluster, c->ranks, micro_batch, smaller));
        TRY(time_of(cluster, layout, s, micro_batch, accum, &traffic, &textbook));
        cases[n++] = (PlanCase){s, micro_batch, accum, false, smaller[s], timed ? traffic.step_s : 0};
    }
    char sentence[512];
    int chosen = plan_recommend(cases, n, c->device_memory, sentence, sizeof sentence);
    fprintf(cluster->file, "\n%s\n", sentence);
    if (chosen >= 0 && (double)cases[chosen].total <= (1 - PLAN_MARGIN) * (double)c->device_memory)
        return OK;
    if (c->offload_optimizer == OFFLOAD_NONE) {
        bool found;
        TrafficInput traffic = {.layout = layout};
        if (layout)
            traffic = traffic_input(cluster, layout, 0, c->micro_batch, c->grad_accum);
        TRY(plan_offload_recommend(plan, layout ? &traffic : NULL, PLAN_MARGIN, cluster->file, &found));
    }
    int64_t ranks;
    TRY(smallest_ranks(cluster, PLAN_STAGES - 1, &ranks, total));
    if (ranks > 0)
        fprintf(cluster->file, "With %lld ranks --zero 3 leaves that much free.\n", (long long)ranks);
    else
        fputs("No number of ranks is enough: take a smaller --micro-batch or --seq-len, or --recompute full.\n",
              cluster->file);
    return OK;
}

static Status print_smallest_ranks(const Cluster *cluster) {
    const Config *c = cluster->config;
    FILE *file = cluster->file;
    char text[TEXT_BYTES], cells[2][PLAN_STAGES][TEXT_BYTES];
    fprintf(file, "Fewest ranks that leave %d%% of %s free", (int)(100 * PLAN_MARGIN),
            decimal_bytes((double)c->device_memory, text));
    if (c->plan_params > 0)
        fprintf(file, " (model states of %s parameters alone)\n", grouped((uint64_t)c->plan_params, text));
    else
        fprintf(file, " (%s, micro-batch %d of %d tokens)\n", c->model_name, c->micro_batch, c->seq_len);
    print_stages(file);
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        int64_t n;
        size_t total = 0;
        TRY(smallest_ranks(cluster, stage, &n, &total));
        snprintf(cells[0][stage], TEXT_BYTES, "%s", n == 0 ? "too large" : stage == 0 ? "any" : grouped((uint64_t)n, text));
        snprintf(cells[1][stage], TEXT_BYTES, "%s", n == 0 ? "" : decimal_bytes((double)total, text));
    }
    static const char *const labels[] = {"--ranks", "bytes of a rank"};
    for (int row = 0; row < 2; row++) {
        print_label(file, labels[row]);
        for (int stage = 0; stage < PLAN_STAGES; stage++)
            print_cell(file, cells[row][stage]);
        fputc('\n', file);
    }
    return OK;
}

// ---- all of it ----

static Status print_model(const Cluster *cluster, const Layout *layout) {
    const Config *c = cluster->config;
    PlanChoice choices[PLAN_CHOICES];
    PlanInput input;
    Plan plan;
    Traffic traffic[PLAN_STAGES];
    double textbook[PLAN_STAGES];
    TRY(plan_model(c, cluster->device, layout, shape_of(c, c->ranks), true, choices, &input));
    if (!config_given(c, "zero"))
        input.stage = PLAN_NO_STAGE;
    plan_compute(&input, &plan);
    plan_print(&input, &plan, cluster->file);
    for (int s = 0; s < PLAN_STAGES; s++)
        TRY(time_of(cluster, layout, s, c->micro_batch, c->grad_accum, &traffic[s], &textbook[s]));
    print_times(cluster, traffic, textbook);
    TrafficInput plain = traffic_input(cluster, layout, 0, c->micro_batch, c->grad_accum);
    TRY(plan_offload_print(&input, &plain, cluster->file));
    if (c->device_memory == 0)
        return OK;
    TRY(print_largest(cluster));
    return recommend(cluster, layout, &input, traffic);
}

static Status print_params(const Cluster *cluster) {
    const Config *c = cluster->config;
    PlanInput input = plan_input(c, NULL, c->ranks);
    Plan plan;
    if (!config_given(c, "zero"))
        input.stage = PLAN_NO_STAGE;
    plan_compute(&input, &plan);
    plan_print(&input, &plan, cluster->file);
    static const Traffic unknown[PLAN_STAGES];
    TRY(plan_offload_print(&input, NULL, cluster->file));
    return c->device_memory > 0 ? recommend(cluster, NULL, &input, unknown) : OK;
}

Status plan_cluster(const Config *c, Device *device, ClusterSpeed speed, FILE *file) {
    Cluster cluster = {c, device, speed, file};
    if (!config_given(c, "ranks") && c->device_memory > 0)
        return print_smallest_ranks(&cluster);
    if (c->plan_params > 0)
        return print_params(&cluster);
    Layout layout = {0};
    TRY(layout_make(&c->model, c->ranks, c->shard_group, 0, &layout));
    Status status = print_model(&cluster, &layout);
    layout_free(&layout);
    return status;
}
