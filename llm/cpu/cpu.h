// cpu: what the files of the CPU backend share. Reached from outside only through device.h and ops.h.
//
// Kernels that live from vector instructions are in files named …_isa.c, which the Makefile compiles once per instruction
// set (base, avx2, avx512) with ISA defined to its name. Such a file exports one table of function pointers under
// ISA_NAME(table); CPU_PICK(table) is the one for this machine:
//
//     norm_isa.c:   const NormKernels ISA_NAME(norm_kernels) = { … };          // norm_kernels_avx512, …
//     norm.h:       ISA_DECLARE(NormKernels, norm_kernels);
//     ops_cpu.c:    CPU_PICK(norm_kernels)->forward(…)
//
// A …_isa.c file must not define non-static inline functions or include headers that do: the linker could pick the
// copy compiled for a newer machine.
#ifndef LLM_CPU_CPU_H
#define LLM_CPU_CPU_H

#include <omp.h>

#include "llm/device_backend.h"

typedef enum CpuIsa { ISA_BASE, ISA_AVX2, ISA_AVX512 } CpuIsa;

// The best instruction set this machine has; ZERO_ISA=base|avx2|avx512 in the environment asks for a lower one (tests).
CpuIsa cpu_isa(void);
bool cpu_has_avx512_bf16(void);  // also false when ZERO_ISA asks for less than avx512

#define ISA_JOIN2(a, b) a##_##b
#define ISA_JOIN(a, b) ISA_JOIN2(a, b)
#define ISA_NAME(name) ISA_JOIN(name, ISA)
#if defined(__x86_64__)
#define ISA_DECLARE(type, table) extern const type table##_base, table##_avx2, table##_avx512
#define CPU_PICK(table) \
    (cpu_isa() == ISA_AVX512 ? &table##_avx512 : cpu_isa() == ISA_AVX2 ? &table##_avx2 : &table##_base)
#else
#define ISA_DECLARE(type, table) extern const type table##_base
#define CPU_PICK(table) (&table##_base)
#endif

// Run function(stream, arguments) in stream order: at once on a compute stream, else on the stream's thread (arguments, at
// most STREAM_CALL_BYTES, are copied). Work on a stream that has failed is dropped.
// The large ops (matmul, attention, norms, …) are called on the compute stream only, and simply run: they start with
// `if (!cpu_compute(stream)) return;`. The flat ones (convert, add, adamw, sums) may be called on any stream.
typedef void (*CpuFunction)(Stream *stream, void *arguments);
void cpu_launch(Stream *stream, CpuFunction function, const void *arguments, size_t bytes);
bool cpu_compute(Stream *stream);  // true if the stream has not failed; aborts if it is not a compute stream

// Threads for a parallel region of an op on this stream: the device's on the compute stream, one on the others.
static inline int cpu_threads(const Stream *stream) {
    return stream->kind == STREAM_COMPUTE ? stream->device->threads : 1;
}

// [begin, end) of part `index` of `n` parts of `len` items, cut at multiples of `align`: for OpenMP regions.
static inline void cpu_cut(int64_t len, int64_t align, int n, int index, int64_t *begin, int64_t *end) {
    int64_t blocks = (len + align - 1) / align;
    int64_t b = blocks * index / n * align, e = blocks * (index + 1) / n * align;
    *begin = b < len ? b : len;
    *end = e < len ? e : len;
}

// The device's scratch arena, which must hold `bytes`; NULL after failing the stream if it does not.
void *cpu_scratch(Stream *stream, size_t bytes);

#endif
