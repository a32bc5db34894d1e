// bench_attention: how fast attention is, beside the most this machine's vector units can do (a loop of independent
// multiply-adds on registers, on every thread). FLOPs as the training bench counts them: causal, 2 products forward and
// 4 backward (it does 5: scores are formed again), so "of peak" in backward cannot exceed 80%.
//
//     make build/release/dev/bench_attention && build/release/dev/bench_attention [threads]
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "llm/cpu/cpu.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- peak: FLOPs of one thread's loop ----

enum { PEAK_STEPS = 2000000, CHAINS = 12 };
static volatile float sink;

#if defined(__x86_64__)
#define PEAK_LOOP(name, isa, type, zero, one, step, flops)                           \
    static __attribute__((target(isa))) double name(void) {                          \
        type acc[CHAINS], x = one;                                                   \
        for (int i = 0; i < CHAINS; i++)                                             \
            acc[i] = zero;                                                           \
        for (int s = 0; s < PEAK_STEPS; s++) {                                       \
            _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) acc[i] = step; \
            __asm__ volatile("" : "+v"(x));                                          \
        }                                                                            \
        for (int i = 0; i < CHAINS; i++)                                             \
            sink = ((float *)&acc[i])[0];                                            \
        return (double)PEAK_STEPS * CHAINS * flops;                                  \
    }
PEAK_LOOP(peak_bf16, "avx512f,avx512bf16", __m512, _mm512_setzero_ps(), _mm512_set1_ps(1.0f),
          _mm512_dpbf16_ps(acc[i], (__m512bh)x, (__m512bh)x), 64.0)
PEAK_LOOP(peak_avx512, "avx512f", __m512, _mm512_setzero_ps(), _mm512_set1_ps(1.0f), _mm512_fmadd_ps(x, x, acc[i]),
          32.0)
PEAK_LOOP(peak_avx2, "avx2,fma", __m256, _mm256_setzero_ps(), _mm256_set1_ps(1.0f), _mm256_fmadd_ps(x, x, acc[i]), 16.0)
PEAK_LOOP(peak_base, "sse2", __m128, _mm_setzero_ps(), _mm_set1_ps(1.0f), _mm_add_ps(_mm_mul_ps(x, x), acc[i]), 8.0)

static double peak_flops(Dtype dt) {
    if (dt == DTYPE_BF16 && cpu_has_avx512_bf16())
        return peak_bf16();
    return cpu_isa() == ISA_AVX512 ? peak_avx512() : cpu_isa() == ISA_AVX2 ? peak_avx2() : peak_base();
}
#else
static double peak_flops(Dtype dt) {
    (void)dt;
    return 0.0;
}
#endif

static double peak(Dtype dt, int threads) {
    double best = 0.0;
    for (int i = 0; i < 5; i++) {
        double start = now(), flops = 0.0;
#pragma omp parallel num_threads(threads) reduction(+ : flops)
        flops += peak_flops(dt);
        double rate = flops / (now() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

// ---- attention ----

static void *array(Device *device, Dtype dt, int64_t len, unsigned seed) {
    void *memory;
    if (device_alloc(device, MEM_ACTIVATIONS, "bench", (size_t)len * dtype_bytes(dt), &memory) != OK) {
        fprintf(stderr, "%s\n", status_message());
        exit(1);
    }
    for (int64_t i = 0; i < len; i++) {
        seed = seed * 1664525u + 1013904223u;
        dtype_store(dt, memory, (size_t)i, (float)(seed >> 8) / 8388608.0f - 1.0f);
    }
    return memory;
}

static void bench(Device *device, Stream *stream, Dtype dt, const char *name, AttentionShape s) {
    const Ops *ops = device_ops(device);
    int64_t rows = (int64_t)s.batch * s.seq_len, q_len = rows * s.heads * s.head_dim;
    int64_t qkv_len = rows * (s.heads + 2 * s.kv_heads) * s.head_dim;
    void *qkv = array(device, dt, qkv_len, 1), *out = array(device, dt, q_len, 2), *dout = array(device, dt, q_len, 3);
    void *dqkv = array(device, dt, qkv_len, 4), *lse = array(device, DTYPE_FP32, rows * s.heads, 5);
    if (device_reserve_scratch(device, ops->attention_scratch(device, dt, s)) != OK) {
        fprintf(stderr, "%s\n", status_message());
        exit(1);
    }
    int threads = device_threads(device);
    double forward = 1e9, backward = 1e9, top = peak(dt, threads), begin = now();
    for (int i = 0; i < 40 && (i < 3 || now() - begin < 1.5); i++) {
        double t0 = now();
        ops->attention_forward(stream, dt, out, lse, qkv, s);
        double t1 = now();
        ops->attention_backward(stream, dt, dqkv, dout, qkv, out, lse, s);
        double t2 = now();
        forward = t1 - t0 < forward ? t1 - t0 : forward;
        backward = t2 - t1 < backward ? t2 - t1 : backward;
    }
    double again = peak(dt, threads);
    top = again > top ? again : top;
    double flops = 4.0 * s.batch * s.heads * s.head_dim * s.seq_len * (s.seq_len + 1) / 2.0;
    printf("%-5s %-30s %7.0f | %8.2f %7.0f %4.0f%% | %8.2f %7.0f %4.0f%% | %4.0f%%\n", dtype_name(dt), name, top / 1e9,
           forward * 1e3, flops / forward / 1e9, 100 * flops / forward / top, backward * 1e3,
           2 * flops / backward / 1e9, 200 * flops / backward / top, 300 * flops / (forward + backward) / top);
    fflush(stdout);
    device_free(device, qkv), device_free(device, out), device_free(device, dout);
    device_free(device, dqkv), device_free(device, lse);
}

int main(int argc, char **argv) {
    Device *device;
    Stream *stream;
    DeviceOptions options = {.kind = DEVICE_CPU, .threads = argc > 1 ? atoi(argv[1]) : 0};
    if (device_open(&options, &device) != OK || stream_create(device, STREAM_COMPUTE, "compute", &stream) != OK) {
        fprintf(stderr, "%s\n", status_message());
        return 1;
    }
    static const struct {
        const char *name;
        AttentionShape shape;
    } cases[] = {
        {"gpt2-124m B=4 T=256 12x64", {4, 256, 12, 12, 64}},
        {"gpt2, llama-110m T=1024 12x64", {4, 1024, 12, 12, 64}},
        {"llama3 B=1 T=1024 32/8x128", {1, 1024, 32, 8, 128}},
    };
    printf("%s\n%-5s %-30s %7s | %8s %7s %5s | %8s %7s %5s | %s\n", device_name(device), "", "", "GFLOP/s", "forward",
           "", "of", "backward", "", "of", "both");
    printf("%-5s %-30s %7s | %8s %7s %5s | %8s %7s %5s | %s\n", "", "", "peak", "ms", "GFLOP/s", "peak", "ms",
           "GFLOP/s", "peak", "of peak");
    for (Dtype dt = DTYPE_FP32; dt <= DTYPE_FP16; dt++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            bench(device, stream, dt, cases[i].name, cases[i].shape);
    stream_destroy(stream);
    device_close(device);
    return 0;
}
