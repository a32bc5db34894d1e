// Flash attention for one block of queries or keys: FlashAttention-2's algorithms 1 and 2 (Dao 2023) on tiles of words.
//
// Every sum has one order, whoever computes it: a query's over key tiles from the first to the diagonal, a key's over
// the heads of its group and then over query blocks. So `backward` and its two halves give the same bits.
#include "llm/cpu/attention_tile.h"

static const float LOG2E = 1.44269504f;
static const float ONES[STRIP] = {1.0f, 1.0f, 1.0f, 1.0f};

SIMD int min_int(int a, int b) {
    return a < b ? a : b;
}
SIMD int round_up(int n, int to) {
    return (n + to - 1) / to * to;
}

// Where things lie. Element indices are 64-bit: B·T·heads·head_dim may exceed 2^31.
SIMD int64_t qkv_stride(const AttentionShape *s) {
    return (int64_t)(s->heads + 2 * s->kv_heads) * s->head_dim;
}
SIMD int64_t qkv_at(const AttentionShape *s, int b, int t, int head) {  // heads: queries, then keys, then values
    return ((int64_t)b * s->seq_len + t) * qkv_stride(s) + (int64_t)head * s->head_dim;
}
SIMD int64_t out_at(const AttentionShape *s, int b, int t, int head) {
    return (((int64_t)b * s->seq_len + t) * s->heads + head) * s->head_dim;
}
SIMD int64_t lse_at(const AttentionShape *s, int b, int t, int head) {
    return ((int64_t)b * s->heads + head) * s->seq_len + t;
}

SIMD float score_scale(const AttentionShape *s) {
    return 1.0f / sqrtf((float)s->head_dim);
}
SIMD int row_words(bool pairs, int head_dim) {  // steps of a sum over head_dim
    return pairs ? (head_dim + 1) / 2 : head_dim;
}

// ---- pieces that forward and backward share ----

SIMD void load_down(bool pairs, uint32_t *down, const uint32_t *rows, int ld, int n) {
#if defined(__AVX512BF16__)
    if (pairs)
        interleave_rows(down, rows, ld, n);
#endif
    (void)pairs, (void)down, (void)rows, (void)ld, (void)n;  // in fp32 `down` is `rows`
}

// scores of the strip that starts at row r, against the first `cols` keys of the tile
SIMD void strip_product(bool pairs, float *c, const uint32_t *rows, int r, const uint32_t *across, int head_dim,
                        int cols) {
    int words = round_up(head_dim, 16) / (pairs ? 2 : 1);
    product(pairs, &(Product){.c = c,
                              .ld_c = BLOCK_K,
                              .a = rows + r * words,
                              .a_row = words,
                              .a_step = 1,
                              .b = across,
                              .ld_b = BLOCK_K,
                              .cols = cols,
                              .steps = row_words(pairs, head_dim)});
}

// Row i of the strip sees `visible + i` keys of the tile; the scores of the others become -inf.
SIMD void mask_strip(float *scores, int visible, int cols) {
    ivec lane;
    for (int i = 0; i < LANES; i++)
        lane[i] = i;
    for (int i = 0; i < STRIP; i++)
        for (int col = visible / LANES * LANES; col < cols; col += LANES) {
            float *s = scores + i * BLOCK_K + col;
            vec_store(s, vec_select(lane < visible + i - col, vec_load(s), vec_set(-INFINITY)));
        }
}

// Rows of fp32 results, multiplied by factor[r], rounded once.
SIMD void store_result(Dtype dt, void *to, int64_t at, int64_t stride, const float *from, int ld, int head_dim,
                       const float *factor, int n) {
    for (int r = 0; r < n; r++, at += stride, from += ld) {
        f32x16 f = v_set(factor[r]);
        int c = 0;
        for (; c + 16 <= head_dim; c += 16)
            v_store(dt, to, at + c, v_load_fp32(from + c) * f);
        if (c < head_dim)
            v_store_n(dt, to, at + c, v_load_fp32(from + c) * f, head_dim - c);
    }
}

// ---- forward ----

// Online softmax: scores become probabilities relative to the new running maximum; old sums count `decay` times.
SIMD void softmax_strip(bool pairs, const AttentionTiles *t, int r, int cols, float scale2, float *decay) {
    vec offset[STRIP], sum[STRIP];
    for (int i = 0; i < STRIP; i++) {
        const float *s = t->scores + i * BLOCK_K;
        vec m = vec_load(s);
        for (int col = LANES; col < cols; col += LANES)
            m = vec_max(m, vec_load(s + col));
        float old = t->row_max[r + i], max = vec_max_lane(m);
        max = max > old ? max : old;
        t->row_max[r + i] = max;
        decay[i] = (old - max) * scale2;
        offset[i] = vec_set(-max * scale2);
        sum[i] = vec_set(0.0f);
    }
    vec d = vec_set(0.0f);
    memcpy(&d, decay, sizeof(float[STRIP]));
    d = vec_exp2(d);
    memcpy(decay, &d, sizeof(float[STRIP]));
    for (int col = 0; col < cols; col += LANES)
        for (int i = 0; i < STRIP; i++) {
            vec p = vec_exp2(vec_fma(vec_load(t->scores + i * BLOCK_K + col), vec_set(scale2), offset[i]));
            sum[i] += p;
            store_rows(pairs, t->probs_rows, i, col, p);
        }
    for (int i = 0; i < STRIP; i++) {
        float *s = t->row_sum + (r + i) * LANES;
        vec_store(s, vec_fma(vec_load(s), vec_set(decay[i]), sum[i]));
    }
}

SIMD void forward_block(bool pairs, const AttentionJob *job, const AttentionTiles *t, int b, int h, int q0) {
    const AttentionShape *s = &job->shape;
    int hd = s->head_dim, ld = round_up(hd, 16), kv = s->heads + h / (s->heads / s->kv_heads);
    int rows = min_int(BLOCK_Q, s->seq_len - q0), padded = round_up(rows, STRIP), word = pairs ? 2 : 1;
    float scale2 = score_scale(s) * LOG2E;

    load_rows(pairs, job->dt, t->q_rows, ld, job->qkv, qkv_at(s, b, q0, h), qkv_stride(s), hd, rows, padded);
    memset(t->out, 0, sizeof(float) * (size_t)(padded * ld));
    memset(t->row_sum, 0, sizeof(float) * (size_t)(padded * LANES));
    for (int r = 0; r < padded; r++)
        t->row_max[r] = -INFINITY;

    for (int k0 = 0; k0 < q0 + rows; k0 += BLOCK_K) {
        int keys = min_int(BLOCK_K, s->seq_len - k0);
        load_rows(pairs, job->dt, t->k_rows, ld, job->qkv, qkv_at(s, b, k0, kv), qkv_stride(s), hd, keys, BLOCK_K);
        transpose_rows(t->k_across, t->k_rows, ld / word);
        load_rows(pairs, job->dt, t->v_rows, ld, job->qkv, qkv_at(s, b, k0, kv + s->kv_heads), qkv_stride(s), hd, keys,
                  BLOCK_K);
        load_down(pairs, t->v_down, t->v_rows, ld, BLOCK_K);
        for (int r = k0 > q0 ? k0 - q0 : 0; r < padded; r += STRIP) {
            int visible = q0 + r + 1 - k0;                      // keys that the strip's first row sees
            int depth = min_int(BLOCK_K, visible + STRIP - 1);  // and its last
            int cols = round_up(depth, 16);
            float decay[STRIP];
            strip_product(pairs, t->scores, t->q_rows, r, t->k_across, hd, cols);
            if (visible < BLOCK_K)
                mask_strip(t->scores, visible, cols);
            softmax_strip(pairs, t, r, cols, scale2, decay);
            product(pairs, &(Product){.c = t->out + r * ld,
                                      .ld_c = ld,
                                      .scale = decay,
                                      .a = t->probs_rows,
                                      .a_row = BLOCK_K / word,
                                      .a_step = 1,
                                      .b = t->v_down,
                                      .ld_b = ld,
                                      .cols = ld,
                                      .steps = depth / word});
        }
    }
    float factor[BLOCK_Q];
    for (int r = 0; r < rows; r++) {
        float sum = 0.0f;
        for (int i = 0; i < LANES; i++)
            sum += t->row_sum[r * LANES + i];
        factor[r] = 1.0f / sum;
        job->lse[lse_at(s, b, q0 + r, h)] = t->row_max[r] * score_scale(s) + logf(sum);
    }
    store_result(job->dt, job->out, out_at(s, b, q0, h), (int64_t)s->heads * hd, t->out, ld, hd, factor, rows);
}

// ---- backward ----

SIMD void load_queries(bool pairs, const AttentionJob *job, const AttentionTiles *t, int b, int h, int q0) {
    const AttentionShape *s = &job->shape;
    int hd = s->head_dim, ld = round_up(hd, 16), rows = min_int(BLOCK_Q, s->seq_len - q0);
    int padded = round_up(rows, STRIP);
    int64_t at = out_at(s, b, q0, h), stride = (int64_t)s->heads * hd;
    load_rows(pairs, job->dt, t->q_rows, ld, job->qkv, qkv_at(s, b, q0, h), qkv_stride(s), hd, rows, padded);
    load_down(pairs, t->q_down, t->q_rows, ld, padded);
    load_rows(pairs, job->dt, t->dout_rows, ld, job->dout, at, stride, hd, rows, padded);
    load_down(pairs, t->dout_down, t->dout_rows, ld, padded);
    for (int r = 0; r < rows; r++, at += stride) {
        f32x16 sum = v_zero();
        for (int c = 0; c < hd; c += 16)
            sum = v_fma(load_part(job->dt, job->dout, at, c, hd), load_part(job->dt, job->out, at, c, hd), sum);
        t->delta[r] = v_sum(sum);
        t->lse2[r] = job->lse[lse_at(s, b, q0 + r, h)] * LOG2E;
    }
    for (int r = rows; r < padded; r++) {  // rows past the end: probability 0
        t->delta[r] = 0.0f;
        t->lse2[r] = INFINITY;
    }
}

SIMD void load_keys(bool pairs, const AttentionJob *job, const AttentionTiles *t, int b, int kv, int k0) {
    const AttentionShape *s = &job->shape;
    int hd = s->head_dim, ld = round_up(hd, 16), keys = min_int(BLOCK_K, s->seq_len - k0), words = ld / (pairs ? 2 : 1);
    int64_t at = qkv_at(s, b, k0, s->heads + kv);
    load_rows(pairs, job->dt, t->k_rows, ld, job->qkv, at, qkv_stride(s), hd, keys, BLOCK_K);
    transpose_rows(t->k_across, t->k_rows, words);
    load_down(pairs, t->k_down, t->k_rows, ld, BLOCK_K);
    load_rows(pairs, job->dt, t->v_rows, ld, job->qkv, at + (int64_t)s->kv_heads * hd, qkv_stride(s), hd, keys,
              BLOCK_K);
    transpose_rows(t->v_across, t->v_rows, words);
}

// Probabilities p = exp(score - lse) and gradients of scores p·(dp - delta), both `down`, the latter also as rows (in
// fp32 they are the same).
SIMD void gradient_strip(bool pairs, const AttentionTiles *t, int r, int cols, float scale2) {
    for (int i = 0; i < STRIP; i += 2) {
        vec lse0 = vec_set(-t->lse2[r + i]), lse1 = vec_set(-t->lse2[r + i + 1]);
        vec delta0 = vec_set(t->delta[r + i]), delta1 = vec_set(t->delta[r + i + 1]);
        for (int col = 0; col < cols; col += LANES) {
            const float *s = t->scores + i * BLOCK_K + col, *dp = t->dprobs + i * BLOCK_K + col;
            vec p0 = vec_exp2(vec_fma(vec_load(s), vec_set(scale2), lse0));
            vec p1 = vec_exp2(vec_fma(vec_load(s + BLOCK_K), vec_set(scale2), lse1));
            vec ds0 = p0 * (vec_load(dp) - delta0), ds1 = p1 * (vec_load(dp + BLOCK_K) - delta1);
            store_down(pairs, t->probs_down, r + i, col, p0, p1);
            store_down(pairs, t->dscores_down, r + i, col, ds0, ds1);
            if (pairs) {
                store_rows(pairs, t->probs_rows, i, col, ds0);
                store_rows(pairs, t->probs_rows, i + 1, col, ds1);
            }
        }
    }
}

// Adds what the loaded block of queries and the loaded tile of keys give to dq and to dk, dv; dq, or dk and dv, may be
// NULL.
SIMD void backward_tile(bool pairs, const AttentionJob *job, const AttentionTiles *t, int q0, int k0, float *dq,
                        float *dk, float *dv) {
    const AttentionShape *s = &job->shape;
    int hd = s->head_dim, ld = round_up(hd, 16), rows = round_up(min_int(BLOCK_Q, s->seq_len - q0), STRIP);
    int word = pairs ? 2 : 1;
    float scale2 = score_scale(s) * LOG2E;
    for (int r = k0 > q0 ? k0 - q0 : 0; r < rows; r += STRIP) {
        int visible = q0 + r + 1 - k0, depth = min_int(BLOCK_K, visible + STRIP - 1), cols = round_up(depth, 16);
        strip_product(pairs, t->scores, t->q_rows, r, t->k_across, hd, cols);
        if (visible < BLOCK_K)
            mask_strip(t->scores, visible, cols);
        strip_product(pairs, t->dprobs, t->dout_rows, r, t->v_across, hd, cols);
        gradient_strip(pairs, t, r, cols, scale2);
        if (dq)
            product(pairs, &(Product){.c = dq + r * ld,
                                      .ld_c = ld,
                                      .scale = ONES,
                                      .a = pairs ? t->probs_rows : t->dscores_down + r * BLOCK_K,
                                      .a_row = BLOCK_K / word,
                                      .a_step = 1,
                                      .b = t->k_down,
                                      .ld_b = ld,
                                      .cols = ld,
                                      .steps = depth / word});
    }
    if (!dk)
        return;
    int keys = min_int(BLOCK_K, s->seq_len - k0);
    for (int k = 0; k < keys; k += STRIP) {
        int first = k0 + k > q0 ? k0 + k - q0 : 0;  // the first row that sees key k; a multiple of STRIP
        Product p = {.ld_c = ld,
                     .scale = ONES,
                     .a_row = 1,
                     .a_step = BLOCK_K,
                     .ld_b = ld,
                     .cols = ld,
                     .steps = (rows - first) / word};
        p.c = dv + k * ld, p.a = t->probs_down + first / word * BLOCK_K + k, p.b = t->dout_down + first / word * ld;
        product(pairs, &p);
        p.c = dk + k * ld, p.a = t->dscores_down + first / word * BLOCK_K + k, p.b = t->q_down + first / word * ld;
        product(pairs, &p);
    }
}

SIMD void store_dqkv(const AttentionJob *job, int b, int t0, int head, const float *from, float factor, int n) {
    const AttentionShape *s = &job->shape;
    float factors[BLOCK_Q];
    for (int r = 0; r < n; r++)
        factors[r] = factor;
    store_result(job->dt, job->dqkv, qkv_at(s, b, t0, head), qkv_stride(s), from, round_up(s->head_dim, 16),
                 s->head_dim, factors, n);
}

SIMD void backward_heads(bool pairs, const AttentionJob *job, const AttentionTiles *t, int b, int kv) {
    const AttentionShape *s = &job->shape;
    int ld = round_up(s->head_dim, 16), group = s->heads / s->kv_heads, T = s->seq_len;
    size_t all = sizeof(float) * (size_t)round_up(T, BLOCK_K) * (size_t)ld;
    memset(t->dk, 0, all);
    memset(t->dv, 0, all);
    for (int h = kv * group; h < (kv + 1) * group; h++) {
        for (int q0 = 0; q0 < T; q0 += BLOCK_Q) {
            int rows = min_int(BLOCK_Q, T - q0);
            load_queries(pairs, job, t, b, h, q0);
            memset(t->out, 0, sizeof(float) * (size_t)(BLOCK_Q * ld));
            for (int k0 = 0; k0 < q0 + rows; k0 += BLOCK_K) {
                load_keys(pairs, job, t, b, kv, k0);
                backward_tile(pairs, job, t, q0, k0, t->out, t->dk + (int64_t)k0 * ld, t->dv + (int64_t)k0 * ld);
            }
            store_dqkv(job, b, q0, h, t->out, score_scale(s), rows);
        }
    }
    for (int k0 = 0; k0 < T; k0 += BLOCK_K) {
        int keys = min_int(BLOCK_K, T - k0);
        store_dqkv(job, b, k0, s->heads + kv, t->dk + (int64_t)k0 * ld, score_scale(s), keys);
        store_dqkv(job, b, k0, s->heads + s->kv_heads + kv, t->dv + (int64_t)k0 * ld, 1.0f, keys);
    }
}

SIMD void backward_block(bool pairs, const AttentionJob *job, const AttentionTiles *t, int b, int h, int q0) {
    const AttentionShape *s = &job->shape;
    int ld = round_up(s->head_dim, 16), rows = min_int(BLOCK_Q, s->seq_len - q0);
    load_queries(pairs, job, t, b, h, q0);
    memset(t->out, 0, sizeof(float) * (size_t)(BLOCK_Q * ld));
    for (int k0 = 0; k0 < q0 + rows; k0 += BLOCK_K) {
        load_keys(pairs, job, t, b, h / (s->heads / s->kv_heads), k0);
        backward_tile(pairs, job, t, q0, k0, t->out, NULL, NULL);
    }
    store_dqkv(job, b, q0, h, t->out, score_scale(s), rows);
}

SIMD void backward_key_tile(bool pairs, const AttentionJob *job, const AttentionTiles *t, int b, int kv, int k0) {
    const AttentionShape *s = &job->shape;
    int ld = round_up(s->head_dim, 16), group = s->heads / s->kv_heads, keys = min_int(BLOCK_K, s->seq_len - k0);
    memset(t->dk, 0, sizeof(float) * (size_t)(BLOCK_K * ld));
    memset(t->dv, 0, sizeof(float) * (size_t)(BLOCK_K * ld));
    load_keys(pairs, job, t, b, kv, k0);
    for (int h = kv * group; h < (kv + 1) * group; h++)
        for (int q0 = k0 / BLOCK_Q * BLOCK_Q; q0 < s->seq_len; q0 += BLOCK_Q) {
            load_queries(pairs, job, t, b, h, q0);
            backward_tile(pairs, job, t, q0, k0, NULL, t->dk, t->dv);
        }
    store_dqkv(job, b, k0, s->heads + kv, t->dk, score_scale(s), keys);
    store_dqkv(job, b, k0, s->heads + s->kv_heads + kv, t->dv, 1.0f, keys);
}

// ---- decode ----

// The same online softmax for one query, BLOCK_K positions of the caches at a time; fp32 throughout.
static void decode(const AttentionJob *job, const AttentionTiles *t, int h) {
    const AttentionShape *s = &job->shape;
    Dtype dt = job->dt;
    int hd = s->head_dim;
    float *q = (float *)t->q_rows, *out = t->out, *p = t->scores;
    float scale2 = score_scale(s) * LOG2E, max = -INFINITY, sum = 0.0f;
    for (int c = 0; c < hd; c += 16) {
        v_store_fp32(q + c, load_part(dt, job->qkv, (int64_t)h * hd, c, hd));
        v_store_fp32(out + c, v_zero());
    }
    for (int k0 = 0; k0 <= job->position; k0 += BLOCK_K) {
        int keys = min_int(BLOCK_K, job->position + 1 - k0);
        int64_t at = ((int64_t)(h / (s->heads / s->kv_heads)) * job->max_positions + k0) * hd;
        float old = max;
        for (int k = 0; k < keys; k++) {
            f32x16 dot = v_zero();
            for (int c = 0; c < hd; c += 16)
                dot = v_fma(v_load_fp32(q + c), load_part(dt, job->k_cache, at + (int64_t)k * hd, c, hd), dot);
            p[k] = v_sum(dot);
            max = p[k] > max ? p[k] : max;
        }
        for (int k = keys; k < BLOCK_K; k++)
            p[k] = -INFINITY;
        for (int k = 0; k < BLOCK_K; k += LANES)
            vec_store(p + k, vec_exp2(vec_fma(vec_load(p + k), vec_set(scale2), vec_set(-max * scale2))));
        float decay = vec_exp2(vec_set((old - max) * scale2))[0];
        sum *= decay;
        for (int k = 0; k < keys; k++)
            sum += p[k];
        for (int c = 0; c < hd; c += 16) {
            f32x16 o = v_load_fp32(out + c) * v_set(decay);
            for (int k = 0; k < keys; k++)
                o = v_fma(v_set(p[k]), load_part(dt, job->v_cache, at + (int64_t)k * hd, c, hd), o);
            v_store_fp32(out + c, o);
        }
    }
    float factor = 1.0f / sum;
    store_result(dt, job->out, (int64_t)h * hd, 0, out, round_up(hd, 16), hd, &factor, 1);
}

// ---- the table: each kernel for fp32 words and for pairs ----

#if defined(__AVX512BF16__)
#define BOTH(function, ...) (job->pairs ? function(true, __VA_ARGS__) : function(false, __VA_ARGS__))
#else
#define BOTH(function, ...) function(false, __VA_ARGS__)
#endif

static void forward(const AttentionJob *job, const AttentionTiles *tiles, int b, int h, int q0) {
    BOTH(forward_block, job, tiles, b, h, q0);
}
static void backward(const AttentionJob *job, const AttentionTiles *tiles, int b, int kv) {
    BOTH(backward_heads, job, tiles, b, kv);
}
static void backward_queries(const AttentionJob *job, const AttentionTiles *tiles, int b, int h, int q0) {
    BOTH(backward_block, job, tiles, b, h, q0);
}
static void backward_keys(const AttentionJob *job, const AttentionTiles *tiles, int b, int kv, int k0) {
    BOTH(backward_key_tile, job, tiles, b, kv, k0);
}

const AttentionKernels ISA_NAME(attention_kernels) = {
    .forward = forward,
    .backward = backward,
    .backward_queries = backward_queries,
    .backward_keys = backward_keys,
    .decode = decode,
};
