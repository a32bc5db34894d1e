// Attention's division of labour: which thread does which block, and where its tiles lie in the scratch arena.
//
// No sum depends on the division (attention_isa.c keeps each in one order), so the bits are the same for every thread
// count. Blocks late in a sequence see more keys than early ones: they are handed out first, one at a time.
#include "llm/cpu/attention.h"

#include <string.h>

#include "llm/cpu/attention_kernels.h"

static int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static bool use_pairs(Dtype dt) {
    return dt == DTYPE_BF16 && cpu_has_avx512_bf16();
}

// Backward in one pass does 5 products a tile but has only batch·kv_heads independent pieces; in two passes it does 7
// (scores and their gradients twice), in pieces as small as a block. One pass, unless that leaves too many threads
// idle.
static bool one_pass(AttentionShape s, int threads) {
    int64_t pieces = (int64_t)s.batch * s.kv_heads;
    return 5 * divide_up(pieces, threads) * threads <= 7 * pieces;
}

// Hands out one thread's scratch from `base`, array by array; with base NULL only the bytes are counted.
typedef struct Carver {
    char *base;
    size_t bytes;
} Carver;

static void *carve(Carver *carver, int64_t words) {
    void *array = carver->base ? carver->base + carver->bytes : NULL;
    carver->bytes += (size_t)divide_up(words, 16) * 64;
    return array;
}

static size_t lay_out(char *base, AttentionShape s, bool pairs, int threads, AttentionTiles *t) {
    Carver c = {base, 0};
    int64_t ld = divide_up(s.head_dim, 16) * 16, row = pairs ? ld / 2 : ld, word = pairs ? 2 : 1;
    int64_t steps = divide_up(row, 16) * 16, slack = 16;  // tiles are transposed in squares of 16 words
    int64_t kv_rows = one_pass(s, threads) ? divide_up(s.seq_len, BLOCK_K) * BLOCK_K : BLOCK_K;
    t->scores = carve(&c, STRIP * BLOCK_K);
    t->dprobs = carve(&c, STRIP * BLOCK_K);
    t->probs_rows = carve(&c, STRIP * BLOCK_K / word);
    t->row_max = carve(&c, BLOCK_Q);
    t->row_sum = carve(&c, BLOCK_Q * 16);
    t->lse2 = carve(&c, BLOCK_Q);
    t->delta = carve(&c, BLOCK_Q);
    t->q_rows = carve(&c, BLOCK_Q * row);
    t->dout_rows = carve(&c, BLOCK_Q * row);
    t->k_rows = carve(&c, BLOCK_K * row + slack);
    t->v_rows = carve(&c, BLOCK_K * row + slack);
    t->k_across = carve(&c, steps * BLOCK_K);
    t->v_across = carve(&c, steps * BLOCK_K);
    t->q_down = pairs ? carve(&c, BLOCK_Q * row) : t->q_rows;
    t->dout_down = pairs ? carve(&c, BLOCK_Q * row) : t->dout_rows;
    t->k_down = pairs ? carve(&c, BLOCK_K * row) : t->k_rows;
    t->v_down = pairs ? t->v_across : t->v_rows;  // one of the two is used at a time; both hold BLOCK_K·row words
    t->probs_down = carve(&c, BLOCK_Q * BLOCK_K / word);
    t->dscores_down = carve(&c, BLOCK_Q * BLOCK_K / word);
    t->out = carve(&c, BLOCK_Q * ld);
    t->dk = carve(&c, kv_rows * ld);
    t->dv = carve(&c, kv_rows * ld);
    return (size_t)divide_up((int64_t)c.bytes, 256) * 256;
}

size_t cpu_attention_scratch(Device *device, Dtype dt, AttentionShape shape) {
    AttentionTiles tiles;
    return (size_t)device->threads * lay_out(NULL, shape, use_pairs(dt), device->threads, &tiles);
}

// The tiles of the calling thread of a parallel region.
static AttentionTiles my_tiles(const AttentionJob *job, char *scratch, int threads) {
    AttentionTiles tiles;
    size_t bytes = lay_out(NULL, job->shape, job->pairs, threads, &tiles);
    lay_out(scratch + (size_t)omp_get_thread_num() * bytes, job->shape, job->pairs, threads, &tiles);
    return tiles;
}

void cpu_attention_forward(Stream *stream, Dtype dt, void *out, float *lse, const void *qkv, AttentionShape s) {
    if (!cpu_compute(stream))
        return;
    char *scratch = cpu_scratch(stream, cpu_attention_scratch(stream->device, dt, s));
    if (!scratch)
        return;
    const AttentionKernels *kernels = CPU_PICK(attention_kernels);
    AttentionJob job = {.dt = dt, .shape = s, .pairs = use_pairs(dt), .qkv = qkv, .out = out, .lse = lse};
    int threads = cpu_threads(stream);
    int64_t heads = (int64_t)s.batch * s.heads, blocks = divide_up(s.seq_len, BLOCK_Q);
#pragma omp parallel num_threads(threads)
    {
        AttentionTiles tiles = my_tiles(&job, scratch, threads);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < heads * blocks; i++) {
            int64_t block = blocks - 1 - i % blocks, head = i / blocks;
            kernels->forward(&job, &tiles, (int)(head / s.heads), (int)(head % s.heads), (int)block * BLOCK_Q);
        }
    }
}

static void backward_two_passes(const AttentionJob *job, const AttentionKernels *kernels, char *scratch, int threads) {
    AttentionShape s = job->shape;
    int64_t heads = (int64_t)s.batch * s.heads, blocks = divide_up(s.seq_len, BLOCK_Q);
    int64_t kv_heads = (int64_t)s.batch * s.kv_heads, tiles_k = divide_up(s.seq_len, BLOCK_K);
#pragma omp parallel num_threads(threads)
    {
        AttentionTiles tiles = my_tiles(job, scratch, threads);
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t i = 0; i < kv_heads * tiles_k; i++) {
            int64_t tile = i % tiles_k, kv = i / tiles_k;
            kernels->backward_keys(job, &tiles, (int)(kv / s.kv_heads), (int)(kv % s.kv_heads), (int)tile * BLOCK_K);
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < heads * blocks; i++) {
            int64_t block = blocks - 1 - i % blocks, head = i / blocks;
            kernels->backward_queries(job, &tiles, (int)(head / s.heads), (int)(head % s.heads), (int)block * BLOCK_Q);
        }
    }
}

void cpu_attention_backward(Stream *stream, Dtype dt, void *dqkv, const void *dout, const void *qkv, const void *out,
                            const float *lse, AttentionShape s) {
    if (!cpu_compute(stream))
        return;
    char *scratch = cpu_scratch(stream, cpu_attention_scratch(stream->device, dt, s));
    if (!scratch)
        return;
    const AttentionKernels *kernels = CPU_PICK(attention_kernels);
    AttentionJob job = {.dt = dt,
                        .shape = s,
                        .pairs = use_pairs(dt),
                        .qkv = qkv,
                        .out = (void *)out,
                        .lse = (float *)lse,
                        .dout = dout,
                        .dqkv = dqkv};
    int threads = cpu_threads(stream);
    if (!one_pass(s, threads)) {
        backward_two_passes(&job, kernels, scratch, threads);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        AttentionTiles tiles = my_tiles(&job, scratch, threads);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < (int64_t)s.batch * s.kv_heads; i++)
            kernels->backward(&job, &tiles, (int)(i / s.kv_heads), (int)(i % s.kv_heads));
    }
}

void cpu_attention_decode(Stream *stream, Dtype dt, void *out, void *k_cache, void *v_cache, const void *qkv,
                          AttentionShape s, int position, int max_positions) {
    if (!cpu_compute(stream))
        return;
    int threads = cpu_threads(stream);
    s.seq_len = 1;  // whatever it is, decode needs the tiles alone
    char *scratch = cpu_scratch(stream, cpu_attention_scratch(stream->device, dt, s));
    if (!scratch)
        return;
    size_t row = (size_t)s.head_dim * dtype_bytes(dt);
    for (int h = 0; h < s.kv_heads; h++) {
        size_t at = ((size_t)h * (size_t)max_positions + (size_t)position) * row;
        memcpy((char *)k_cache + at, (const char *)qkv + (size_t)(s.heads + h) * row, row);
        memcpy((char *)v_cache + at, (const char *)qkv + (size_t)(s.heads + s.kv_heads + h) * row, row);
    }
    AttentionJob job = {.dt = dt,
                        .shape = s,
                        .pairs = use_pairs(dt),
                        .qkv = qkv,
                        .out = out,
                        .k_cache = k_cache,
                        .v_cache = v_cache,
                        .position = position,
                        .max_positions = max_positions};
    const AttentionKernels *kernels = CPU_PICK(attention_kernels);
    bool worth_it = (int64_t)s.heads * s.head_dim * position > 1 << 17;  // else waking the threads takes longer
#pragma omp parallel num_threads(threads) if (worth_it)
    {
        AttentionTiles tiles = my_tiles(&job, scratch, threads);
#pragma omp for schedule(static)
        for (int h = 0; h < s.heads; h++)
            kernels->decode(&job, &tiles, h);
    }
}
