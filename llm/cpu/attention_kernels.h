// attention_kernels: what attention.c (who does which block, where scratch lies) and attention_isa.c (the arithmetic of
// a block) share.
//
// A block is BLOCK_Q queries of one head against tiles of BLOCK_K keys; scores exist for one tile at a time. Tiles are
// kept as arrays of 32-bit words, and a word is what one step of a dot product consumes: one fp32 number, or a pair of
// bf16 numbers for vdpbf16ps, which multiplies pairs ("pairs" below, when the machine has it and the dtype is bf16). A
// product C += A·B broadcasts words of A and loads vectors of words of B, so the operands come in three layouts:
//
//     rows    [row][word of head_dim]      A, or B's source, when the sum runs over head_dim
//     across  [word of head_dim][row]      B when the sum runs over head_dim: the transpose of rows
//     down    [row (or pair of rows)][head_dim]   A (transposed) or B when the sum runs over rows
//
// In fp32 `down` is `rows`; the pointers are then equal.
#ifndef LLM_CPU_ATTENTION_KERNELS_H
#define LLM_CPU_ATTENTION_KERNELS_H

#include "llm/cpu/cpu.h"

enum {
    BLOCK_Q = 128,  // queries in a block
    BLOCK_K = 64,   // keys in a tile; divides BLOCK_Q, so that only tiles on the diagonal need a mask
    STRIP = 4,      // rows of a product that are computed at once; divides BLOCK_K, even
};

// One call of forward, backward or decode.
typedef struct AttentionJob {
    Dtype dt;
    AttentionShape shape;
    bool pairs;                   // multiply with vdpbf16ps
    const void *qkv;              // (B, T, heads + 2·kv_heads, head_dim)
    void *out;                    // (B, T, heads, head_dim); only read in backward
    float *lse;                   // (B, heads, T); only read in backward
    const void *dout;             // as out
    void *dqkv;                   // as qkv
    void *k_cache, *v_cache;      // (kv_heads, max_positions, head_dim)
    int position, max_positions;  // decode
} AttentionJob;

// The scratch of one thread. `ld` is head_dim rounded up to whole vectors: the row length of fp32 tiles.
typedef struct AttentionTiles {
    uint32_t *q_rows, *q_down, *dout_rows, *dout_down;  // of the block
    uint32_t *k_rows, *k_across, *k_down;               // of the tile
    uint32_t *v_rows, *v_across, *v_down;
    float *out;                // (BLOCK_Q, ld) output of the block before division by its row sums; in backward dq
    float *row_max, *row_sum;  // (BLOCK_Q), (BLOCK_Q, 16): running maximum of scores and sums of exponentials by lane
    float *lse2, *delta;       // (BLOCK_Q): lse in base 2; Σ dout·out
    float *scores, *dprobs;    // (STRIP, BLOCK_K): scores; gradient of the probabilities
    uint32_t *probs_rows;      // (STRIP, BLOCK_K): probabilities, in backward gradients of scores
    uint32_t *probs_down, *dscores_down;  // (BLOCK_Q, BLOCK_K)
    float *dk, *dv;                       // (BLOCK_K or T rounded up to BLOCK_K, ld)
} AttentionTiles;

typedef struct AttentionKernels {
    // Queries q0 … q0+BLOCK_Q-1 of head h of sequence b.
    void (*forward)(const AttentionJob *job, const AttentionTiles *tiles, int b, int h, int q0);
    // All of dq, dk, dv for the heads that share kv head `kv` (tiles->dk, dv hold T rows).
    void (*backward)(const AttentionJob *job, const AttentionTiles *tiles, int b, int kv);
    // The same bits in smaller pieces, at the price of forming scores twice: dq of a block; dk and dv of a tile.
    void (*backward_queries)(const AttentionJob *job, const AttentionTiles *tiles, int b, int h, int q0);
    void (*backward_keys)(const AttentionJob *job, const AttentionTiles *tiles, int b, int kv, int k0);
    // One query of head h against the caches.
    void (*decode)(const AttentionJob *job, const AttentionTiles *tiles, int h);
} AttentionKernels;

ISA_DECLARE(AttentionKernels, attention_kernels);

#endif
