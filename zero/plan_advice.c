#include "zero/plan_advice.h"

#include <math.h>

#include "zero/plan_text.h"

// A step must be this much faster to be worth the smaller micro-batches, whose matmuls are less efficient.
static const double WORTH_ACCUMULATING = 1.1;

static bool roomy(const PlanCase *c, size_t device_memory) {
    return (double)c->total <= (1 - PLAN_MARGIN) * (double)device_memory;
}

// "--zero 2", or with the batch that it needs: "--zero 1 --micro-batch 2 --grad-accum 4".
static const char *options_of(const PlanCase *c, char text[TEXT_BYTES]) {
    if (c->as_given)
        snprintf(text, TEXT_BYTES, "--zero %d", c->stage);
    else
        snprintf(text, TEXT_BYTES, "--zero %d --micro-batch %d --grad-accum %d", c->stage, c->micro_batch,
                 c->grad_accum);
    return text;
}

int plan_recommend(const PlanCase *cases, int n, size_t device_memory, char *sentence, size_t bytes) {
    int lowest = -1, least = 0, fits = -1, fastest = -1;
    for (int i = 0; i < n; i++) {
        const PlanCase *c = &cases[i];
        if (c->as_given && lowest < 0 && roomy(c, device_memory))
            lowest = i;
        if (c->as_given && fits < 0 && c->total <= device_memory)
            fits = i;
        if (c->total < cases[least].total)
            least = i;
        bool faster = fastest < 0 || c->step_s < cases[fastest].step_s;  // unknown: the first, which is the lowest stage
        if (!c->as_given && roomy(c, device_memory) && faster)
            fastest = i;
    }
    char options[TEXT_BYTES], other[TEXT_BYTES], memory[TEXT_BYTES], total[TEXT_BYTES], seconds[TEXT_BYTES],
        more[TEXT_BYTES];
    decimal_bytes((double)device_memory, memory);
    const int percent = (int)(100 * PLAN_MARGIN);

    if (lowest >= 0 && fastest >= 0 && cases[fastest].step_s > 0 &&
        cases[fastest].step_s * WORTH_ACCUMULATING < cases[lowest].step_s) {
        snprintf(sentence, bytes,
                 "Recommended: %s, because a step takes %s on this network, where %s, the lowest stage that leaves %d%% "
                 "of %s free with the micro-batch as given, takes %s.",
                 options_of(&cases[fastest], options), short_seconds(cases[fastest].step_s, seconds),
                 options_of(&cases[lowest], other), percent, memory, short_seconds(cases[lowest].step_s, more));
        return fastest;
    }
    if (lowest >= 0) {
        int used = snprintf(sentence, bytes, "Recommended: --zero %d, the lowest stage that leaves %d%% of %s free: it needs %s",
                            cases[lowest].stage, percent, memory, decimal_bytes((double)cases[lowest].total, total));
        if (lowest > 0)
            snprintf(sentence + used, bytes - (size_t)used, ", and --zero %d %s.", cases[lowest - 1].stage,
                     decimal_bytes((double)cases[lowest - 1].total, more));
        else
            snprintf(sentence + used, bytes - (size_t)used, ".");
        return lowest;
    }
    if (fastest >= 0) {
        snprintf(sentence, bytes,
                 "Recommended: %s, because no stage leaves %d%% of %s free with the micro-batch as given; this needs %s.",
                 options_of(&cases[fastest], options), percent, memory,
                 decimal_bytes((double)cases[fastest].total, total));
        return fastest;
    }
    if (fits >= 0) {
        snprintf(sentence, bytes, "Recommended: more ranks, because no stage leaves %d%% of %s free; --zero %d fits without "
                 "that margin, with %s.", percent, memory, cases[fits].stage,
                 decimal_bytes((double)cases[fits].total, total));
        return fits;
    }
    snprintf(sentence, bytes, "Nothing fits in %s: the least is %s with %s.", memory,
             options_of(&cases[least], options), decimal_bytes((double)cases[least].total, total));
    return -1;
}

int64_t plan_smallest_ranks(const PlanInput *in, int stage) {
    double per_param[3];  // what shrinks with N comes last: optimizer, then gradients, then parameters
    plan_state_bytes(in, &per_param[2], &per_param[1], &per_param[0]);
    double len = in->layout ? (double)in->layout->full_len : (double)in->n_params, sharded = 0, room = 0;
    for (int i = 0; i < 3; i++)
        sharded += stage > i ? per_param[i] * len : 0;
    PlanInput one = *in;  // a group of one: everything is whole
    one.group = 1;
    Plan plan;
    plan_compute(&one, &plan);
    room = (1 - PLAN_MARGIN) * (double)in->device_memory - ((double)plan.total[stage] - sharded);
    if (room < 0 || (room == 0 && sharded > 0))
        return 0;
    return sharded > 0 ? (int64_t)ceil(sharded / room) : 1;
}
