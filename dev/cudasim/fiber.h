// fiber: stacks that one host thread switches between. Fibers are kept for reuse and never destroyed: a stack that a
// sanitizer has seen must not come back as other memory.
#ifndef DEV_CUDASIM_FIBER_H
#define DEV_CUDASIM_FIBER_H

namespace cudasim {

struct Fiber;

// A fiber that is not in use. A new one calls `entry`, which never returns; one that was given back goes on where it
// switched away.
Fiber *fiber_take(void (*entry)());
void fiber_give_back(Fiber *fiber);  // may be the running one, which then switches away
void fiber_switch(Fiber *to);
Fiber *fiber_running();
Fiber *fiber_host();   // the host's own stack
void fiber_entered();  // the first thing that `entry` calls

}  // namespace cudasim

#endif
