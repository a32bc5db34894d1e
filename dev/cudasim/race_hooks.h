// race_hooks: the way from the compiler's hooks into race.cpp.
#ifndef DEV_CUDASIM_RACE_HOOKS_H
#define DEV_CUDASIM_RACE_HOOKS_H

#include <cstddef>

namespace cudasim {
void race_hook(const void *memory, size_t bytes, bool write, void *pc);
}

#endif
