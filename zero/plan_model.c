// A plan's input from a model: what model_plan and the collectives would ask a device for.
#include "zero/options.h"
#include "zero/plan.h"

// About how much of a step's time recompute costs: forward is a third of a step.
static const PlanChoice recomputes[] = {[RECOMPUTE_SELECTIVE] = {.change = "--recompute selective", .cost = 0.05},
                                        [RECOMPUTE_FULL] = {.change = "--recompute full", .cost = 0.33}};

Status plan_model(const Config *config, Device *device, const Layout *layout, CommShape shape, bool others,
                  PlanChoice choices[PLAN_CHOICES], PlanInput *input) {
    ModelOptions model = options_model(config);
    CommOptions comm = options_comm(config, layout, shape);
    *input = plan_input(config, layout, layout->n_ranks);
    input->staging_bytes = comm_staging_bytes(&comm);
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
    return OK;
}
