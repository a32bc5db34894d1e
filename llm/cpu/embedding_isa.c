// Token and position embeddings, and rotary embeddings.
#include "llm/cpu/kernels.h"
#include "llm/cpu/simd.h"

// x(row, C) = token_table[tokens[row]] + position_table[row % seq_len + first_position]
SIMD void forward(Dtype dt, const EmbeddingForward *a, int64_t begin, int64_t end) {
    const int64_t C = a->channels, size = (int64_t)dtype_bytes(dt);
    for (int64_t row = begin; row < end; row++) {
        const char *token = (const char *)a->token_table + a->tokens[row] * C * size;
        char *x = (char *)a->x + row * C * size;
        if (!a->position_table) {
            memcpy(x, token, (size_t)(C * size));
            continue;
        }
        const char *position = (const char *)a->position_table + (row % a->seq_len + a->first_position) * C * size;
        for (int64_t i = 0; i < C; i += 16)
            v_store_to(dt, x, i, C, v_load_to(dt, token, i, C) + v_load_to(dt, position, i, C));
    }
}
static void embedding_forward(const void *arguments, int64_t begin, int64_t end) {
    const EmbeddingForward *a = arguments;
    WITH_DTYPE(a->dt, forward(DT, a, begin, end));
}

// Rows are added to the tables in row order. Threads own channels, not rows: equal tokens meet in one thread.
SIMD void backward(Dtype dt, const EmbeddingBackward *a, int64_t begin, int64_t end) {
    const int64_t C = a->channels;
    for (int64_t row = 0; row < a->rows; row++) {
        const char *dx = (const char *)a->dx + row * C * (int64_t)dtype_bytes(dt);
        float *dtoken = a->dtoken_table + a->tokens[row] * C;
        float *dposition = a->dposition_table ? a->dposition_table + row % a->seq_len * C : NULL;
        for (int64_t i = begin; i < end; i += 16) {
            f32x16 d = v_load_to(dt, dx, i, end);
            v_store_to(DTYPE_FP32, dtoken, i, end, v_load_to(DTYPE_FP32, dtoken, i, end) + d);
            if (dposition)
                v_store_to(DTYPE_FP32, dposition, i, end, v_load_to(DTYPE_FP32, dposition, i, end) + d);
        }
    }
}
static void embedding_backward(const void *arguments, int64_t begin, int64_t end) {
    const EmbeddingBackward *a = arguments;
    WITH_DTYPE(a->dt, backward(DT, a, begin, end));
}

// cos and sin of pairs i … i+15 of a row of the table, which holds them in turn. Pairs past `half` read as 0.
SIMD void load_angles(const float *cos_sin, int64_t i, int64_t half, f32x16 *c, f32x16 *s) {
    f32x16 a = v_load_to(DTYPE_FP32, cos_sin, 2 * i, 2 * half), b = v_zero();
    if (2 * i + 16 < 2 * half)
        b = v_load_to(DTYPE_FP32, cos_sin, 2 * i + 16, 2 * half);
    *c = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *s = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

// Pair (x1, x2) = (x[i], x[i + half]) of every query and key head turns by the angle of (position, i).
SIMD void rotate(Dtype dt, const Rope *a, int64_t begin, int64_t end) {
    const AttentionShape shape = a->shape;
    const int64_t half = shape.head_dim / 2, turned = shape.heads + shape.kv_heads;
    const int64_t width = (turned + shape.kv_heads) * shape.head_dim;
    for (int64_t row = begin; row < end; row++) {
        char *x = (char *)a->qkv + row * width * (int64_t)dtype_bytes(dt);
        const float *angles = a->table.cos_sin + (row % shape.seq_len + a->first_position) * shape.head_dim;
        for (int64_t i = 0; i < half; i += 16) {
            f32x16 c, s;
            load_angles(angles, i, half, &c, &s);
            if (a->inverse)
                s = -s;
            for (int64_t h = 0; h < turned; h++) {
                int64_t first = h * shape.head_dim, second = first + half;
                f32x16 x1 = v_load_to(dt, x, first + i, second), x2 = v_load_to(dt, x, second + i, second + half);
                v_store_to(dt, x, first + i, second, v_fma(x1, c, -(x2 * s)));
                v_store_to(dt, x, second + i, second + half, v_fma(x2, c, x1 * s));
            }
        }
    }
}
static void rope(const void *arguments, int64_t begin, int64_t end) {
    const Rope *a = arguments;
    WITH_DTYPE(a->dt, rotate(DT, a, begin, end));
}

const EmbeddingKernels ISA_NAME(embedding_kernels) = {embedding_forward, embedding_backward, rope};
