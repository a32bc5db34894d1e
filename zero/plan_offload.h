// plan_offload: what each way to offload leaves on the device, needs elsewhere, moves in a step and costs, for --plan and for
// the advice of a run that does not fit.
#ifndef ZERO_PLAN_OFFLOAD_H
#define ZERO_PLAN_OFFLOAD_H

#include <stdio.h>

#include "zero/plan.h"
#include "zero/traffic.h"

typedef struct PlanWay {
    OffloadLevel optimizer, params;
    const char *options;  // how a user asks for it; "" for none
    double cost;          // about how much of a step's time it costs, where speeds are not known
} PlanWay;

enum { PLAN_WAYS = 7 };
extern const PlanWay plan_ways[PLAN_WAYS];  // [0]: nothing is offloaded; then from what costs least

// The input with another way, and whether that way goes with a stage.
PlanInput plan_with_way(const PlanInput *input, const PlanWay *way);
bool plan_way_fits_stage(const PlanInput *input, const PlanWay *way, int stage);

// The table of all ways and stages. traffic: of the run without offload; NULL: model states alone.
Status plan_offload_print(const PlanInput *input, const TrafficInput *traffic, FILE *file);

// What offload would do where no stage fits without: a sentence with the way of least cost that leaves `margin` of
// device_memory free, in the lowest stage, and what it costs. *found: there is one.
Status plan_offload_recommend(const PlanInput *input, const TrafficInput *traffic, double margin, FILE *file,
                              bool *found);

#endif
