// hooks: faults that tests put into a run, to see it hold. They exist in train_gpt_hooks alone, which `make tests` builds
// beside train_gpt from the same sources with -DTEST_HOOKS; in every other program the calls below are empty.
//
// Always on: memory that nobody may read holds NaN (all bytes 0xff), and all ranks compare after each step which
// collectives they have issued. By environment variable, for all ranks alike:
//
//     ZERO_HOOK_DELAY_US=N                                   work on any stream starts up to N µs late, at random
//     ZERO_HOOK_GRADIENT="rank unit step steps element x"    the local gradient's element is x in `steps` steps from
//                                                            `step` on, in each of their micro-batches
//     ZERO_HOOK_FLIP="rank unit step element"                the lowest bit of one parameter is flipped after a step
//     ZERO_HOOK_IO="rank read|write number fault"            that request to a file of offloaded state fails with the error
//                                                            number `fault`, or moves half of its bytes where it is 0
//     ZERO_HOOK_IO_THREADS=1                                 there is no io_uring
//     ZERO_HOOK_HOST_GROUP=G                                 the order of sums is that of hosts of G ranks
#ifndef LLM_HOOKS_H
#define LLM_HOOKS_H

#include "llm/model.h"

#ifdef TEST_HOOKS
enum { HOOKS = 1 };

void hook_delay(void);

// On the stream: fill with NaN all of `memory`, the tensors of a unit, or what lies between and after them.
void hook_poison(Stream *stream, void *memory, size_t bytes);
void hook_poison_tensors(Stream *stream, const UnitSpec *unit, void *memory, Dtype dtype);
void hook_poison_gaps(Stream *stream, const UnitSpec *unit, int64_t full_len, void *memory, Dtype dtype);

// On the stream, if the environment asks for it at this place: the two faults above.
void hook_gradient(Stream *stream, int rank, int unit, int64_t step, float *gradient);
void hook_flip(Stream *stream, int rank, int unit, int64_t step, void *parameters, Dtype dtype);

// What a request to a file of offloaded state moved (or -errno), or what the environment says instead; and whether to do
// without io_uring.
int64_t hook_io(int rank, bool write, int64_t result);
bool hook_io_threads(void);
int hook_host_group(int ranks);  // what to take for the ranks of each host
#else
enum { HOOKS = 0 };

static inline void hook_delay(void) {
}
static inline void hook_poison(Stream *stream, void *memory, size_t bytes) {
    (void)stream, (void)memory, (void)bytes;
}
static inline void hook_poison_tensors(Stream *stream, const UnitSpec *unit, void *memory, Dtype dtype) {
    (void)stream, (void)unit, (void)memory, (void)dtype;
}
static inline void hook_poison_gaps(Stream *stream, const UnitSpec *unit, int64_t full_len, void *memory, Dtype dtype) {
    (void)stream, (void)unit, (void)full_len, (void)memory, (void)dtype;
}
static inline void hook_gradient(Stream *stream, int rank, int unit, int64_t step, float *gradient) {
    (void)stream, (void)rank, (void)unit, (void)step, (void)gradient;
}
static inline void hook_flip(Stream *stream, int rank, int unit, int64_t step, void *parameters, Dtype dtype) {
    (void)stream, (void)rank, (void)unit, (void)step, (void)parameters, (void)dtype;
}
static inline int64_t hook_io(int rank, bool write, int64_t result) {
    (void)rank, (void)write;
    return result;
}
static inline bool hook_io_threads(void) {
    return false;
}
static inline int hook_host_group(int ranks) {
    return ranks;
}
#endif

#endif
