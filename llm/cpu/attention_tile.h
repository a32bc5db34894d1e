// attention_tile: the inner loops of attention on tiles of 32-bit words (attention_kernels.h says what a word is):
// products, layouts, powers of two. For attention_isa.c only.
//
// Vectors here are as wide as the instruction set's registers (`vec`), not f32x16: products live from accumulators that
// stay in registers. The layouts of tiles do not depend on that width.
#ifndef LLM_CPU_ATTENTION_TILE_H
#define LLM_CPU_ATTENTION_TILE_H

#include "llm/cpu/attention_kernels.h"
#include "llm/cpu/simd.h"

#if defined(__AVX512F__)
enum { LANES = 16, PANEL = 4 };  // PANEL vectors of columns at once: STRIP·PANEL accumulators
#elif defined(__AVX2__)
enum { LANES = 8, PANEL = 2 };
#else
enum { LANES = 4, PANEL = 2 };
#endif
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));

SIMD vec vec_word(uint32_t word) {  // in every lane
    return (vec)((int32_t)word + (ivec){0});
}
SIMD vec vec_set(float x) {
    return vec_word(fp32_bits(x));
}
SIMD vec vec_load(const void *p) {
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}
SIMD void vec_store(void *p, vec v) {
    memcpy(p, &v, sizeof v);
}
SIMD vec vec_fma(vec a, vec b, vec c) {
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}
SIMD vec vec_select(ivec mask, vec yes, vec no) {  // mask lanes are 0 or -1
    return (vec)((mask & (ivec)yes) | (~mask & (ivec)no));
}
SIMD vec vec_max(vec a, vec b) {  // b where one of the two is NaN
#if defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vec_select(a > b, a, b);
#endif
}
SIMD float vec_max_lane(vec a) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)a);
#else
    float m = a[0];
    for (int i = 1; i < LANES; i++)
        m = a[i] > m ? a[i] : m;
    return m;
#endif
}

// 2^x for x < 127, to 1 ulp; 0 below -126.5 (also for -inf). NaN stays NaN. x = n + f with |f| <= 1/2, and a polynomial
// for 2^f (the best one in relative error that is 1 at 0).
SIMD vec vec_exp2(vec x) {
    x = vec_max(vec_set(-127.0f), x);
    vec shifted = x + vec_set(12582912.0f);  // 1.5·2^23: the sum's last bits are n
    vec f = x - (shifted - vec_set(12582912.0f));
    vec p = vec_set(1.53533620e-4f);
    p = vec_fma(p, f, vec_set(1.33988739e-3f));
    p = vec_fma(p, f, vec_set(9.61843692e-3f));
    p = vec_fma(p, f, vec_set(5.55033237e-2f));
    p = vec_fma(p, f, vec_set(2.40226477e-1f));
    p = vec_fma(p, f, vec_set(6.93147182e-1f));
    p = vec_fma(p, f, vec_set(1.0f));
    return p * (vec)(((ivec)shifted << 23) + (127 << 23));  // 2^n; n = -127 gives 0
}

// ---- products ----

// One step of sixteen dot products: fp32, or two bf16 numbers a lane. vdpbf16ps treats subnormals as zero and rounds
// its two sums in its own way; both are below what rounding the operands to bf16 did.
SIMD vec multiply_add(bool pairs, vec a, vec b, vec c) {
#if defined(__AVX512BF16__)
    if (pairs)
        return (vec)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#endif
    (void)pairs;
    return vec_fma(a, b, c);
}

// C(STRIP, cols) = diag(scale)·C + A(STRIP, steps)·B(steps, cols), or just A·B if scale is NULL. cols is a multiple
// of 16.
typedef struct Product {
    float *c;
    const float *scale;
    const uint32_t *a, *b;
    int ld_c, ld_b;
    int a_row, a_step;  // word (row, step) of A is a[row·a_row + step·a_step]
    int cols, steps;
} Product;

SIMD void product_panel(bool pairs, int width, const Product *p, int col) {
    vec acc[STRIP][PANEL];
    for (int r = 0; r < STRIP; r++)
        for (int n = 0; n < width; n++)
            acc[r][n] = p->scale ? vec_load(p->c + r * p->ld_c + col + n * LANES) * p->scale[r] : vec_set(0.0f);
    const uint32_t *a = p->a, *b = p->b + col;
    for (int s = 0; s < p->steps; s++, a += p->a_step, b += p->ld_b) {
        vec bn[PANEL];
        for (int n = 0; n < width; n++)
            bn[n] = vec_load(b + n * LANES);
        for (int r = 0; r < STRIP; r++) {
            vec ar = vec_word(a[r * p->a_row]);
            for (int n = 0; n < width; n++)
                acc[r][n] = multiply_add(pairs, ar, bn[n], acc[r][n]);
        }
    }
    for (int r = 0; r < STRIP; r++)
        for (int n = 0; n < width; n++)
            vec_store(p->c + r * p->ld_c + col + n * LANES, acc[r][n]);
}

SIMD void product_any(bool pairs, const Product *p) {
    int col = 0;
    for (; col + PANEL * LANES <= p->cols; col += PANEL * LANES)
        product_panel(pairs, PANEL, p, col);
#if defined(__AVX512F__)  // narrower panels divide 16
    switch ((p->cols - col) / LANES) {
        case 3: product_panel(pairs, 3, p, col); break;
        case 2: product_panel(pairs, 2, p, col); break;
        case 1: product_panel(pairs, 1, p, col); break;
    }
#endif
}

static __attribute__((noinline)) void product_fp32(const Product *p) {
    product_any(false, p);
}
#if defined(__AVX512BF16__)
static __attribute__((noinline)) void product_pairs(const Product *p) {
    product_any(true, p);
}
#else
#define product_pairs product_fp32
#endif
SIMD void product(bool pairs, const Product *p) {
    if (pairs)
        product_pairs(p);
    else
        product_fp32(p);
}

// ---- layouts ----

// Sixteen elements (fewer at the end of a row) of a row of head_dim.
SIMD f32x16 load_part(Dtype dt, const void *p, int64_t at, int c, int head_dim) {
    return head_dim - c >= 16 ? v_load(dt, p, at + c) : v_load_n(dt, p, at + c, head_dim - c);
}

// rows: `n` rows of head_dim elements, `stride` elements apart, as words, zero-padded to `ld` columns and `padded`
// rows.
SIMD void load_rows(bool pairs, Dtype dt, uint32_t *to, int ld, const void *from, int64_t at, int64_t stride,
                    int head_dim, int n, int padded) {
    size_t row_bytes = pairs ? 2 * (size_t)ld : 4 * (size_t)ld;
    size_t head_bytes = (size_t)head_dim * dtype_bytes(dt), tile_bytes = (size_t)n * (size_t)stride * dtype_bytes(dt);
    for (int r = 0; r < n; r++, at += stride) {
        // Rows lie far apart, so no hardware prefetcher sees the pattern: ask for the same row of the next tile.
        uintptr_t next = (uintptr_t)from + (size_t)at * dtype_bytes(dt) + tile_bytes;
        for (size_t line = 0; line < head_bytes; line += 64)
            __builtin_prefetch((const void *)(next + line));
        char *row = (char *)to + (size_t)r * row_bytes;
        for (int c = 0; c < ld; c += 16) {
            int left = head_dim - c;
            if (pairs && left >= 16)
                memcpy(row + 2 * c, (const uint16_t *)from + at + c, 32);
            else if (pairs)
                memcpy(memset(row + 2 * c, 0, 32), (const uint16_t *)from + at + c, 2 * (size_t)left);
            else
                v_store_fp32((float *)row + c, load_part(dt, from, at, c, head_dim));
        }
    }
    memset((char *)to + (size_t)n * row_bytes, 0, (size_t)(padded - n) * row_bytes);
}

// across: to[word][row] = from[row][word] for BLOCK_K rows, in squares of sixteen.
#if defined(__AVX512F__)
// Exchange the off-diagonal blocks of `s` lanes of rows i and i + s: four such rounds transpose a square.
#define EXCHANGE(s, first, second)                                    \
    for (int i = 0; i < 16; i++) {                                    \
        if (!(i & s)) {                                               \
            u32x16 x = m[i], y = m[i + s];                            \
            m[i] = (u32x16)__builtin_shufflevector(x, y, first);      \
            m[i + s] = (u32x16)__builtin_shufflevector(x, y, second); \
        }                                                             \
    }
SIMD void transpose_square(uint32_t *to, const uint32_t *from, int ld) {
    u32x16 m[16];
    for (int i = 0; i < 16; i++)
        memcpy(&m[i], from + i * ld, sizeof m[i]);
#define LANES_OF(...) __VA_ARGS__
    EXCHANGE(1, LANES_OF(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
             LANES_OF(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
    EXCHANGE(2, LANES_OF(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
             LANES_OF(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
    EXCHANGE(4, LANES_OF(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
             LANES_OF(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
    EXCHANGE(8, LANES_OF(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
             LANES_OF(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
#undef LANES_OF
    for (int i = 0; i < 16; i++)
        memcpy(to + i * BLOCK_K, &m[i], sizeof m[i]);
}
#undef EXCHANGE
#else
SIMD void transpose_square(uint32_t *to, const uint32_t *from, int ld) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++)
            to[i * BLOCK_K + j] = from[j * ld + i];
}
#endif

static inline void transpose_rows(uint32_t *to, const uint32_t *from, int words) {
    for (int w = 0; w < words; w += 16)
        for (int r = 0; r < BLOCK_K; r += 16)
            transpose_square(to + w * BLOCK_K + r, from + r * words + w, words);
}

// down: words (row r, row r + 1) of two neighbours, for an even number of rows of bf16.
#if defined(__AVX512BF16__)
typedef uint16_t u16x32 __attribute__((vector_size(64)));
SIMD u16x32 interleave(u16x32 both) {  // sixteen of one row, then sixteen of the next
    return __builtin_shufflevector(both, both, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10,
                                   26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
static inline void interleave_rows(uint32_t *to, const uint32_t *from, int ld, int rows) {
    for (int r = 0; r < rows; r += 2)
        for (int c = 0; c < ld; c += 16) {
            u16x32 both;
            memcpy(&both, (const uint16_t *)from + r * ld + c, 32);
            memcpy((char *)&both + 32, (const uint16_t *)from + (r + 1) * ld + c, 32);
            both = interleave(both);
            memcpy(to + r / 2 * ld + c, &both, 64);
        }
}
#endif

// Sixteen columns of fp32 results, rounded into a tile of `rows` (BLOCK_K columns)…
SIMD void store_rows(bool pairs, uint32_t *tile, int row, int col, vec v) {
#if defined(__AVX512BF16__)
    if (pairs) {
        __m256bh h = _mm512_cvtneps_pbh((__m512)v);
        memcpy((uint16_t *)tile + row * BLOCK_K + col, &h, sizeof h);
        return;
    }
#endif
    (void)pairs;
    vec_store(tile + row * BLOCK_K + col, v);
}
// … and those of rows `row` (even) and row + 1 into a tile of `down`.
SIMD void store_down(bool pairs, uint32_t *tile, int row, int col, vec v0, vec v1) {
#if defined(__AVX512BF16__)
    if (pairs) {
        u16x32 both = interleave((u16x32)_mm512_cvtne2ps_pbh((__m512)v1, (__m512)v0));
        memcpy(tile + row / 2 * BLOCK_K + col, &both, sizeof both);
        return;
    }
#endif
    (void)pairs;
    vec_store(tile + row * BLOCK_K + col, v0);
    vec_store(tile + (row + 1) * BLOCK_K + col, v1);
}

#endif
