#include "llm/cpu/linear.h"
const Ops cpu_ops = {.name = "cpu"};
