#include "zero/plan.h"

#include <string.h>

#include "zero/options.h"
#include "zero/plan_advice.h"
#include "zero/plan_offload.h"
#include "zero/plan_text.h"

// ---- arithmetic ----

size_t plan_optimizer_bytes(const PlanInput *in) {
    size_t moments = in->optimizer == OPTIMIZER_SGD ? 4 : 8;  // fp32: SGD keeps momentum, Adam m and v
    return moments + (in->dtype == DTYPE_FP32 ? 0 : 4);  // and master weights, which fp32 parameters are themselves
}

void plan_state_bytes(const PlanInput *in, double *params, double *grads, double *optimizer) {
    *params = (double)dtype_bytes(in->dtype);
    *grads = (double)dtype_bytes(in->grad_dtype);
    *optimizer = (double)plan_optimizer_bytes(in);
}

PlanInput plan_input(const Config *config, const Layout *layout, int n_ranks) {
    return (PlanInput){
        .layout = layout,
        .n_params = layout ? layout->n_params : (int64_t)config->plan_params,
        .n_ranks = n_ranks,
        .group = config->shard_group > 0 ? config->shard_group : n_ranks,
        .stage = config->zero_stage,
        .dtype = config->dtype,
        .grad_dtype = config->grad_dtype == STATE_FP32 ? DTYPE_FP32 : config->dtype,
        .optimizer = config->optimizer,
        .offload = options_offload(config, 0),
        .device_memory = config->device_memory,
    };
}

// auto: where a fifth of the memory still stays free. What is not known has room.
static bool saves_async(const PlanInput *in, const PlanBytes *bytes) {
    size_t memory = in->device_is_host ? in->device_memory : in->host_memory, used = in->snapshot_bytes;
    for (int c = 0; c < MEM_CATEGORIES; c++)
        used += bytes->host[c] + (in->device_is_host ? bytes->device[c] : 0);
    bool has_room = memory == 0 || (double)used <= (1 - PLAN_MARGIN) * (double)memory;
    return in->async == CHOICE_ON || (in->async == CHOICE_AUTO && has_room);
}

void plan_compute(const PlanInput *in, Plan *plan) {
    double psi = (double)in->n_params, shard = psi / in->group;
    double p, g, o;
    plan_state_bytes(in, &p, &g, &o);
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        plan->total[stage] = plan_stage(in, stage, in->n_choices ? &in->choices[0] : NULL, &plan->bytes[stage]);
        plan->async[stage] = saves_async(in, &plan->bytes[stage]);
        plan->snapshot[stage] = plan->async[stage] ? in->snapshot_bytes : 0;
        plan->textbook[stage] =
            p * (stage >= 3 ? shard : psi) + g * (stage >= 2 ? shard : psi) + o * (stage >= 1 ? shard : psi);
    }
}

// ---- what to change when it does not fit ----

// About how much of a step's time a stage costs against stage 0: stage 2 reduces with every micro-batch, stage 3
// gathers each unit twice and so sends half as much again.
static const double stage_cost[PLAN_STAGES] = {0, 0, 0.01, 0.1};

typedef struct Change {
    int stage;
    const PlanChoice *choice;
    const PlanWay *way;    // NULL: as given
    size_t total;
} Change;

static double cost_of(const Change *c) {
    return stage_cost[c->stage] + (c->choice ? c->choice->cost : 0) + (c->way ? c->way->cost : 0);
}

// The cheapest change that fits in device_memory: false, and the smallest one, when none does. Offload is looked at where
// none was asked for.
static bool find_change(const PlanInput *in, Change *found) {
    bool fits = false, first = true;
    int n_ways = in->offload.optimizer == OFFLOAD_NONE ? PLAN_WAYS : 1;
    for (int i = 0; i < (in->n_choices ? in->n_choices : 1); i++) {
        for (int w = 0; w < n_ways; w++) {
            const PlanWay *way = w > 0 ? &plan_ways[w] : NULL;
            PlanInput other = way ? plan_with_way(in, way) : *in;
            for (int stage = in->stage; stage < PLAN_STAGES; stage++) {
                PlanBytes bytes;
                if (way && !plan_way_fits_stage(in, way, stage))
                    continue;
                Change now = {.stage = stage, .choice = in->n_choices ? &in->choices[i] : NULL, .way = way};
                now.total = plan_stage(&other, stage, now.choice, &bytes);
                bool now_fits = now.total <= in->device_memory;
                if (first || (now_fits && (!fits || cost_of(&now) < cost_of(found))) ||
                    (!now_fits && !fits && now.total < found->total)) {
                    *found = now;
                    fits |= now_fits;
                }
                first = false;
            }
        }
    }
    return fits;
}

// ---- text ----

// "4Ψ + 12Ψ/N" for what a rank keeps whole and what it shares; S instead of N under --shard-group.
static const char *formula(const PlanInput *in, int stage, char text[TEXT_BYTES]) {
    int p = (int)dtype_bytes(in->dtype), g = (int)dtype_bytes(in->grad_dtype), o = (int)plan_optimizer_bytes(in);
    int whole = (stage < 3 ? p : 0) + (stage < 2 ? g : 0) + (stage < 1 ? o : 0), shared = p + g + o - whole;
    char over = in->group == in->n_ranks ? 'N' : 'S';
    if (shared == 0)
        snprintf(text, TEXT_BYTES, "%dΨ", whole);
    else if (whole == 0)
        snprintf(text, TEXT_BYTES, "%dΨ/%c", shared, over);
    else
        snprintf(text, TEXT_BYTES, "%dΨ + %dΨ/%c", whole, shared, over);
    return text;
}

// The options of a change, in the words of the command line.
static const char *options_of(const PlanInput *in, const Change *c, char text[256]) {
    const char *const parts[] = {c->choice && c->choice->change ? c->choice->change : "", c->way ? c->way->options : ""};
    int used = 0;
    text[0] = '\0';
    if (c->stage != in->stage)
        used = snprintf(text, 256, "--zero %d", c->stage);
    for (int i = 0; i < 2; i++)
        if (*parts[i])
            used += snprintf(text + used, 256 - (size_t)used, "%s%s", used ? " " : "", parts[i]);
    return text;
}

static void advice(const PlanInput *in, const Plan *plan, char *text, size_t text_bytes) {
    char need[TEXT_BYTES], limit[TEXT_BYTES], less[TEXT_BYTES], options[256];
    Change change = {0};
    bool fits = find_change(in, &change);
    options_of(in, &change, options);

    const char *has = !in->limit_is_found  ? "--device-memory"
                      : in->device_is_host ? "a rank's share of this host's memory"
                                           : "a rank's share of the device's memory";
    int used = snprintf(text, text_bytes, "--zero %d needs %s%s, and %s is %s; ", in->stage,
                        in->layout ? "" : "at least ", decimal_bytes((double)plan->total[in->stage], need), has,
                        decimal_bytes((double)in->device_memory, limit));
    text += used;
    text_bytes -= (size_t)used;
    decimal_bytes((double)change.total, less);
    const char *more = "take more ranks, a smaller --micro-batch, --seq-len or model, or more memory";
    if (fits)
        snprintf(text, text_bytes, "the cheapest change that fits: %s (%s)", options, less);
    else if (*options)
        snprintf(text, text_bytes, "the least is %s with %s: %s", less, options, more);
    else
        snprintf(text, text_bytes, "nothing here needs less: %s", more);
}

void plan_describe_saves(const PlanInput *in, const Plan *plan, int stage, char *text, size_t text_bytes) {
    char bytes[TEXT_BYTES];
    decimal_bytes((double)in->snapshot_bytes, bytes);
    const char *why = in->async == CHOICE_AUTO ? "auto" : in->async == CHOICE_ON ? "on" : "off";
    if (plan->async[stage])
        snprintf(text, text_bytes, "asynchronous: a step waits for a copy of %s to host memory (--checkpoint-async %s)",
                 bytes, why);
    else if (in->async == CHOICE_AUTO)
        snprintf(text, text_bytes, "streamed while the step waits: a copy of %s would leave less than %d%% of the host's "
                 "memory free (--checkpoint-async auto)", bytes, (int)(100 * PLAN_MARGIN));
    else
        snprintf(text, text_bytes, "streamed while the step waits (--checkpoint-async %s)", why);
}

static void print_heading(FILE *file, const PlanInput *in) {
    static const char *const optimizers[] = {"AdamW", "Adam", "SGD"};
    char text[TEXT_BYTES];
    fprintf(file, "Memory of one rank of N = %d", in->n_ranks);
    if (in->group != in->n_ranks)
        fprintf(file, ", sharded over S = %d", in->group);
    fprintf(file, ": Ψ = %s parameters in %s, gradients in %s, %s (GB = 10^9 bytes)\n",
            grouped((uint64_t)in->n_params, text), dtype_name(in->dtype), dtype_name(in->grad_dtype),
            optimizers[in->optimizer]);
    print_stages(file);
}

// What is offloaded under the options as given.
static void print_other_levels(const Plan *plan, FILE *file) {
    double host[PLAN_STAGES] = {0}, nvme[PLAN_STAGES] = {0}, sum_host = 0, sum_nvme = 0;
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        for (int c = 0; c < MEM_CATEGORIES; c++)
            host[stage] += (double)plan->bytes[stage].host[c];
        sum_host += host[stage];
        sum_nvme += nvme[stage] = (double)plan->bytes[stage].nvme;
    }
    if (sum_host > 0)
        print_bytes_row(file, "host memory", host);
    if (sum_nvme > 0)
        print_bytes_row(file, "NVMe", nvme);
}

// One sentence, if the stage is chosen or all are alike; else the row above says it.
static void print_saves(const PlanInput *in, const Plan *plan, FILE *file) {
    bool alike = true;
    for (int stage = 1; stage < PLAN_STAGES; stage++)
        alike &= plan->async[stage] == plan->async[0];
    if (in->stage == PLAN_NO_STAGE && !alike)
        return;
    char text[256];
    plan_describe_saves(in, plan, in->stage == PLAN_NO_STAGE ? 0 : in->stage, text, sizeof text);
    fprintf(file, "saves: %s\n", text);
}

void plan_print(const PlanInput *in, const Plan *plan, FILE *file) {
    static const MemoryCategory states[] = {MEM_PARAMETERS, MEM_GRADIENTS, MEM_OPTIMIZER};
    static const MemoryCategory others[] = {MEM_SLOTS, MEM_ACTIVATIONS, MEM_WORKSPACE, MEM_STAGING, MEM_DATA};
    enum { N_STATES = sizeof states / sizeof *states, N_OTHERS = sizeof others / sizeof *others };
    double row[PLAN_STAGES], model_states[PLAN_STAGES] = {0};
    char text[TEXT_BYTES];

    print_heading(file, in);
    for (int i = 0; i < N_STATES; i++) {
        for (int stage = 0; stage < PLAN_STAGES; stage++)
            model_states[stage] += row[stage] = (double)plan->bytes[stage].device[states[i]];
        print_bytes_row(file, memory_category_names[states[i]], row);
    }
    print_bytes_row(file, "model states", model_states);
    print_bytes_row(file, "  textbook", plan->textbook);
    fprintf(file, "%-*s", LABEL_WIDTH, "");
    for (int stage = 0; stage < PLAN_STAGES; stage++)
        print_cell(file, formula(in, stage, text));
    fputc('\n', file);

    if (in->layout) {
        for (int i = 0; i < N_OTHERS; i++) {
            for (int stage = 0; stage < PLAN_STAGES; stage++)
                row[stage] = (double)plan->bytes[stage].device[others[i]];
            print_bytes_row(file, memory_category_names[others[i]], row);
        }
        for (int stage = 0; stage < PLAN_STAGES; stage++)
            row[stage] = (double)plan->total[stage];
        print_bytes_row(file, "total", row);
        for (int stage = 0; stage < PLAN_STAGES; stage++)
            row[stage] = (double)plan->snapshot[stage];
        print_bytes_row(file, "host: snapshot of a save", row);
        print_saves(in, plan, file);
    } else {
        fprintf(file,
                "Padding, slots, activations and workspace depend on the model: plan with --model to see them.\n");
    }

    print_other_levels(plan, file);
    if (in->device_memory > 0) {
        char label[TEXT_BYTES + 16];
        snprintf(label, sizeof label, "%s %s", in->layout ? "fits in" : "states fit in",
                 decimal_bytes((double)in->device_memory, text));
        fprintf(file, "%-*s", LABEL_WIDTH, label);
        for (int stage = 0; stage < PLAN_STAGES; stage++) {
            char cell[TEXT_BYTES + 8] = "yes";
            if (plan->total[stage] > in->device_memory)
                snprintf(cell, sizeof cell, "%s short",
                         decimal_bytes((double)(plan->total[stage] - in->device_memory), text));
            print_cell(file, cell);
        }
        fputc('\n', file);
        if (in->stage != PLAN_NO_STAGE && plan->total[in->stage] > in->device_memory) {
            char sentence[512];
            advice(in, plan, sentence, sizeof sentence);
            fprintf(file, "%s\n", sentence);
        }
    }
}

// --checkpoint-async on, where the state and its copy share a memory that is too small for both.
static Status check_snapshot(const PlanInput *in, const Plan *plan) {
    size_t memory = in->device_is_host ? in->device_memory : in->host_memory;
    size_t used = plan->snapshot[in->stage] + (in->device_is_host ? plan->total[in->stage] : 0);
    char need[TEXT_BYTES], have[TEXT_BYTES];
    if (memory == 0 || !plan->async[in->stage] || used <= memory)
        return OK;
    return fail("the run does not fit: with the copy of the state for --checkpoint-async on it needs %s of host memory, of "
                "which this rank has %s; leave the option out, and saves are streamed",
                decimal_bytes((double)used, need), decimal_bytes((double)memory, have));
}

Status plan_check(const PlanInput *in, const Plan *plan) {
    if (in->device_memory == 0 || plan->total[in->stage] <= in->device_memory)
        return check_snapshot(in, plan);
    char sentence[512];
    advice(in, plan, sentence, sizeof sentence);
    return fail("the run does not fit: %s", sentence);
}

PlanBytes plan_measured(const Device *device) {
    PlanBytes bytes = {.nvme = device_file_bytes(device)};
    for (int c = 0; c < MEM_CATEGORIES; c++) {
        bytes.device[c] = device_bytes(device, (MemoryCategory)c);
        bytes.host[c] = device_offload_bytes(device, (MemoryCategory)c);
    }
    return bytes;
}

static bool print_measured_row(FILE *file, const char *level, const char *name, size_t predicted, size_t measured) {
    char label[TEXT_BYTES], text[TEXT_BYTES];
    snprintf(label, sizeof label, "%s%s", level, name);
    fprintf(file, "%-*s", LABEL_WIDTH, label);
    print_cell(file, grouped(predicted, text));
    print_cell(file, grouped(measured, text));
    if (predicted != measured)
        fprintf(file, "  %s%s", predicted < measured ? "+" : "-",
                grouped(predicted < measured ? measured - predicted : predicted - measured, text));
    fputc('\n', file);
    return predicted == measured;
}

bool plan_print_measured(const PlanBytes *predicted, const PlanBytes *measured, FILE *file) {
    size_t total_predicted = 0, total_measured = 0;
    bool equal = true;
    fprintf(file, "%-*s", LABEL_WIDTH, "memory, bytes");
    print_cell(file, "predicted");
    print_cell(file, "measured");
    fputc('\n', file);
    for (int c = 0; c < MEM_CATEGORIES; c++) {
        equal &= print_measured_row(file, "", memory_category_names[c], predicted->device[c], measured->device[c]);
        total_predicted += predicted->device[c];
        total_measured += measured->device[c];
    }
    equal &= print_measured_row(file, "", "total", total_predicted, total_measured);
    for (int c = 0; c < MEM_CATEGORIES; c++)
        if (predicted->host[c] || measured->host[c])
            equal &= print_measured_row(file, "host: ", memory_category_names[c], predicted->host[c], measured->host[c]);
    if (predicted->nvme || measured->nvme)
        equal &= print_measured_row(file, "", "NVMe", predicted->nvme, measured->nvme);
    equal &= print_measured_row(file, "host: ", "snapshot of a save", predicted->snapshot, measured->snapshot);
    return equal;
}
