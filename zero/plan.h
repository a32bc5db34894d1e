// plan: the bytes one rank needs, by category, for every ZeRO stage, from arithmetic alone.
//
// The same numbers serve three readers: `--plan` prints them for all four stages without allocating anything; a run
// stops before its first step when its stage does not fit in --device-memory; and a run prints them beside what
// device_alloc counted, where they must agree to the byte.
//
// Model states follow Rajbhandari et al. 2020 (ZeRO, section 5): with P, G and O bytes a parameter for the parameters,
// the gradients and the optimizer, stages 0-3 need (P+G+O)Ψ, (P+G)Ψ + OΨ/N, PΨ + (G+O)Ψ/N and (P+G+O)Ψ/N. In bf16 or
// fp16 with --grad-dtype param and Adam these are the textbook's 16Ψ, 4Ψ + 12Ψ/N, 2Ψ + 14Ψ/N, 16Ψ/N. What we allocate
// is more by the padding of the layout and the slots, and the table shows both.
#ifndef ZERO_PLAN_H
#define ZERO_PLAN_H

#include <stdio.h>

#include "llm/config.h"
#include "zero/comm.h"
#include "zero/layout.h"
#include "zero/offload.h"

enum { PLAN_STAGES = 4, PLAN_NO_STAGE = -1 };

// What model_plan asks for under the options as given, or under other ones that may need less.
typedef struct PlanChoice {
    const char *change;            // how a user asks for it: "--recompute selective"; NULL: the options as given
    double cost;                   // about how much of a step's time it costs: selective 0.05, full 0.33
    size_t bytes[MEM_CATEGORIES];  // activations, workspace, data
    size_t host_bytes;             // activations that are offloaded
} PlanChoice;

typedef struct PlanInput {
    const Layout *layout;  // NULL (--params): model states alone, from n_params
    int64_t n_params;      // Ψ
    int n_ranks;           // N
    int group;             // S, ranks that share one copy; N without --shard-group
    int stage;             // of the run; PLAN_NO_STAGE: to be chosen
    Dtype dtype;           // parameters
    Dtype grad_dtype;      // gradients that a rank keeps
    Optimizer optimizer;
    OffloadOptions offload;     // of stages that it goes with; others keep everything on the device
    size_t staging_bytes;       // buffers of collectives and checkpoints; 0 for one rank
    size_t device_memory;       // the most a rank may use; 0: no limit
    bool limit_is_found;        // the device has no more; the limit is not --device-memory
    const PlanChoice *choices;  // choices[0]: the options as given. None (n_choices 0) with layout NULL
    int n_choices;
    Choice async;               // --checkpoint-async; CHOICE_OFF also where nothing is ever saved
    size_t snapshot_bytes;      // what asynchronous saves take of the host's memory (saver_snapshot_bytes)
    size_t host_memory;         // of the host for this rank; 0: not known
    bool device_is_host;        // then a snapshot, and what is offloaded to the host, shares the memory that was found
} PlanInput;

// What one rank asks for on every level.
typedef struct PlanBytes {
    size_t device[MEM_CATEGORIES];
    size_t host[MEM_CATEGORIES];  // device_offload_alloc
    size_t nvme;                  // of files
    size_t snapshot;              // host memory of asynchronous saves; not filled by plan_stage
} PlanBytes;

typedef struct Plan {
    PlanBytes bytes[PLAN_STAGES];  // under choices[0]
    size_t total[PLAN_STAGES];     // that counts against device_memory, without snapshots
    bool async[PLAN_STAGES];       // saves are asynchronous
    size_t snapshot[PLAN_STAGES];  // then their host memory
    double textbook[PLAN_STAGES];  // model states by the formulas above
} Plan;

// The fields that follow from a resolved config: everything but staging_bytes and choices. layout NULL: --params.
PlanInput plan_input(const Config *config, const Layout *layout, int n_ranks);

// All fields, for a model on this kind of device: the options as given, and where `others`, other ones that may need
// less. The input points into `choices`. Allocates nothing on the device.
enum { PLAN_CHOICES = 4 };
Status plan_model(const Config *config, Device *device, const Layout *layout, CommShape shape, bool others,
                  PlanChoice choices[PLAN_CHOICES], PlanInput *input);

size_t plan_optimizer_bytes(const PlanInput *input);  // of a parameter, on the device
// Bytes of a parameter's copy, gradient and optimizer state, each on a rank that holds it.
void plan_state_bytes(const PlanInput *input, double *params, double *grads, double *optimizer);

void plan_compute(const PlanInput *input, Plan *plan);
// One stage under one choice (NULL: model states alone). Returns the total that counts against device_memory.
size_t plan_stage(const PlanInput *input, int stage, const PlanChoice *choice, PlanBytes *bytes);

// How saves are made in a stage, for people.
void plan_describe_saves(const PlanInput *input, const Plan *plan, int stage, char *text, size_t text_bytes);

// The table: a column a stage, a row a category; formulas, what fits, and the cheapest change that fits if the run does
// not.
void plan_print(const PlanInput *input, const Plan *plan, FILE *file);

// Fails when the run's stage needs more than device_memory, with what is short and the cheapest change that fits.
Status plan_check(const PlanInput *input, const Plan *plan);

// What a device has counted, to compare with the plan.
PlanBytes plan_measured(const Device *device);
// Predicted beside measured, to the byte. Returns whether they are equal.
bool plan_print_measured(const PlanBytes *predicted, const PlanBytes *measured, FILE *file);

#endif
