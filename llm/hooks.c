#ifdef TEST_HOOKS
#include "llm/hooks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// ---- delays ----

void hook_delay(void) {
    static _Thread_local uint64_t state;
    const char *text = getenv("ZERO_HOOK_DELAY_US");
    if (!text)
        return;
    if (state == 0) {  // each thread of each process has its own sequence, and each run others
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        state = (uint64_t)t.tv_nsec * 2 + (uint64_t)(uintptr_t)&state;
    }
    state = state * 6364136223846793005u + 1442695040888963407u;
    if (state >> 61 == 0)  // one in eight
        nanosleep(&(struct timespec){.tv_nsec = (long)(state >> 40 & 0xffff) * atoi(text) * 1000 / 0x10000}, NULL);
}

// ---- poison ----

enum { POISON_BYTES = 1 << 16 };

void hook_poison(Stream *stream, void *memory, size_t bytes) {
    static unsigned char nan_bytes[POISON_BYTES];  // 0xffff and 0xffffffff are NaN in every dtype
    if (nan_bytes[0] == 0)
        memset(nan_bytes, 0xff, sizeof nan_bytes);
    for (size_t at = 0; at < bytes; at += POISON_BYTES)
        stream_copy(stream, (char *)memory + at, nan_bytes, bytes - at < POISON_BYTES ? bytes - at : POISON_BYTES);
}

void hook_poison_tensors(Stream *stream, const UnitSpec *unit, void *memory, Dtype dtype) {
    size_t e = dtype_bytes(dtype);
    for (int i = 0; i < unit->n_tensors; i++)
        hook_poison(stream, (char *)memory + (size_t)unit->tensors[i].offset * e, (size_t)unit->tensors[i].len * e);
}

void hook_poison_gaps(Stream *stream, const UnitSpec *unit, int64_t full_len, void *memory, Dtype dtype) {
    size_t e = dtype_bytes(dtype);
    for (int i = 0; i < unit->n_tensors; i++) {
        const TensorSpec *t = &unit->tensors[i];
        int64_t end = t->offset + t->len, next = i + 1 < unit->n_tensors ? t[1].offset : full_len;
        hook_poison(stream, (char *)memory + (size_t)end * e, (size_t)(next - end) * e);
    }
}

// ---- faults ----

void hook_gradient(Stream *stream, int rank, int unit, int64_t step, float *gradient) {
    static float value;
    const char *text = getenv("ZERO_HOOK_GRADIENT");
    int at_rank, at_unit;
    long long first, steps, element;
    if (text && sscanf(text, "%d %d %lld %lld %lld %f", &at_rank, &at_unit, &first, &steps, &element, &value) == 6 &&
        rank == at_rank && unit == at_unit && step >= first && step < first + steps)
        stream_copy(stream, gradient + element, &value, sizeof value);
}

static Status flip(void *arguments) {
    unsigned char *lowest_byte = *(unsigned char **)arguments;
    *lowest_byte ^= 1;
    return OK;
}

void hook_flip(Stream *stream, int rank, int unit, int64_t step, void *parameters, Dtype dtype) {
    const char *text = getenv("ZERO_HOOK_FLIP");
    int at_rank, at_unit;
    long long at_step, element;
    if (!text || sscanf(text, "%d %d %lld %lld", &at_rank, &at_unit, &at_step, &element) != 4 || rank != at_rank ||
        unit != at_unit || step != at_step)
        return;
    char *address = (char *)parameters + (size_t)element * dtype_bytes(dtype);
    stream_call(stream, flip, &address, sizeof address);
}

int64_t hook_io(int rank, bool write, int64_t result) {
    static _Atomic long long counts[2];  // reads, writes
    const char *text = getenv("ZERO_HOOK_IO");
    int at_rank, fault;
    char way[8];
    long long number, now = ++counts[write];
    if (!text || sscanf(text, "%d %7s %lld %d", &at_rank, way, &number, &fault) != 4 || rank != at_rank ||
        write != (strcmp(way, "write") == 0) || now != number)
        return result;
    return fault ? -fault : result / 2;
}

bool hook_io_threads(void) {
    return getenv("ZERO_HOOK_IO_THREADS") != NULL;
}

int hook_host_group(int ranks) {
    const char *text = getenv("ZERO_HOOK_HOST_GROUP");
    return text ? atoi(text) : ranks;
}
#endif
