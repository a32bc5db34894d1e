// A plan's input from a model: what model_plan and the collectives would ask a device for.
#include "zero/options.h"
#include "zero/plan.h"
#include "zero/saver.h"

// About how much of a step's time recompute costs: forward is a third of a step.
static const PlanChoice recomputes[] = {[RECOMPUTE_SELECTIVE] = {.change = "--recompute selective", .cost = 0.05},
                                        [RECOMPUTE_FULL] = {.change = "--recompute full", .cost = 0.33}};
static const PlanChoice full_offloaded = {.change = "--recompute full --offload-activations", .cost = 0.36};

Status plan_model(const Config *config, Device *device, const Layout *layout, CommShape shape, bool others,
                  PlanChoice choices[PLAN_CHOICES], PlanInput *input) {
    ModelOptions model = options_model(config);
    CommOptions comm = options_comm(config, layout, shape, device_kind(device));
    *input = plan_input(config, layout, layout->n_ranks);
    input->staging_bytes = comm_staging_bytes(&comm);
    bool has[STATE_KINDS] = {true, true, config->optimizer != OPTIMIZER_SGD};
    bool saves = config->checkpoint_every > 0 && (config->plan || config->out);  // signals alone are worth no snapshot
    input->snapshot_bytes = saver_snapshot_bytes(layout, has);
    input->async = saves ? config->checkpoint_async : CHOICE_OFF;
    input->host_memory = config->plan ? 0 : device_host_size(device);
    input->device_is_host = config->device != CHOOSE_CUDA && device_kind(device) == DEVICE_CPU;
    input->choices = choices;
    input->n_choices = 1;
    choices[0] = (PlanChoice){.host_bytes = model_host_bytes(&model)};
    TRY(model_plan(device, &model, choices[0].bytes));
    for (int r = (int)config->recompute + 1; others && r <= RECOMPUTE_FULL; r++) {
        model.recompute = (Recompute)r;
        PlanChoice *choice = &choices[input->n_choices++];
        *choice = recomputes[r];
        TRY(model_plan(device, &model, choice->bytes));
    }
    if (others && !config->offload_activations) {
        model.recompute = RECOMPUTE_FULL;
        model.offload_inputs = true;
        PlanChoice *choice = &choices[input->n_choices++];
        *choice = full_offloaded;
        choice->host_bytes = model_host_bytes(&model);
        TRY(model_plan(device, &model, choice->bytes));
    }
    return OK;
}
