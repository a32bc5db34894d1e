// The CPU's table of operations: checks nothing, cuts the work over threads, and calls the kernels for this machine.
#include "llm/cpu/attention.h"
#include "llm/cpu/kernels.h"
#include "llm/cpu/linear.h"
#include "llm/host_ops.h"

// Run a kernel over [0, len), cut at multiples of `align`, on some threads. Below SMALL bytes a parallel region costs more
// than it saves.
enum { SMALL = 32 << 10 };
static void run_threads(int threads, CpuKernel *kernel, const void *arguments, int64_t len, int64_t align,
                        int64_t bytes) {
    int n = bytes < SMALL ? 1 : threads;
#pragma omp parallel for num_threads(n) if (n > 1) schedule(static, 1)
    for (int i = 0; i < n; i++) {
        int64_t begin, end;
        cpu_cut(len, align, n, i, &begin, &end);
        if (begin < end)
            kernel(arguments, begin, end);
    }
}

static void run(const Stream *stream, CpuKernel *kernel, const void *arguments, int64_t len, int64_t align,
                int64_t bytes) {
    run_threads(cpu_threads(stream), kernel, arguments, len, align, bytes);
}

// ---- embedding ----

static void embedding_forward(Stream *stream, Dtype dt, void *x, const void *token_table, const void *position_table,
                              const int32_t *tokens, int64_t rows, int seq_len, int first_position, int64_t channels) {
    if (!cpu_compute(stream))
        return;
    const EmbeddingForward a = {dt, x, token_table, position_table, tokens, seq_len, first_position, channels};
    run(stream, CPU_PICK(embedding_kernels)->forward, &a, rows, 1, rows * channels * (int64_t)dtype_bytes(dt));
}

static void embedding_backward(Stream *stream, Dtype dt, float *dtoken_table, float *dposition_table, const void *dx,
                               const int32_t *tokens, int64_t rows, int seq_len, int64_t channels, int64_t vocab,
                               int64_t positions, bool accumulate_tokens, bool accumulate_positions) {
    if (!cpu_compute(stream))
        return;
    if (!accumulate_tokens)
        stream_zero(stream, dtoken_table, (size_t)(vocab * channels) * sizeof(float));
    if (dposition_table && !accumulate_positions)
        stream_zero(stream, dposition_table, (size_t)(positions * channels) * sizeof(float));
    const EmbeddingBackward a = {dt, dtoken_table, dposition_table, dx, tokens, rows, seq_len, channels};
    run(stream, CPU_PICK(embedding_kernels)->backward, &a, channels, 16, rows * channels * 4);
}

static void rope(Stream *stream, Dtype dt, void *qkv, RopeTable table, AttentionShape shape, int first_position,
                 bool inverse) {
    if (!cpu_compute(stream))
        return;
    const Rope a = {dt, qkv, table, shape, first_position, inverse};
    const int64_t rows = (int64_t)shape.batch * shape.seq_len;
    const int64_t width = (int64_t)(shape.heads + shape.kv_heads) * shape.head_dim;
    run(stream, CPU_PICK(embedding_kernels)->rope, &a, rows, 1, rows * width * (int64_t)dtype_bytes(dt));
}

// ---- norms ----

static void norm_forward(Stream *stream, Dtype dt, NormKind kind, void *y, float *mean, float *rstd, const void *x,
                         const void *weight, const void *bias, float eps, int64_t rows, int64_t channels) {
    if (!cpu_compute(stream))
        return;
    const NormForward a = {dt, kind, y, mean, rstd, x, weight, bias, eps, channels};
    run(stream, CPU_PICK(norm_kernels)->forward, &a, rows, 1, rows * channels * (int64_t)dtype_bytes(dt));
}

// dweight and dbias are summed in at most NORM_BLOCKS blocks of rows, whose size depends on nothing but `rows`.
enum { NORM_BLOCKS = 64, NORM_BLOCK_ROWS = 8 };
static int64_t norm_block_rows(int64_t rows) {
    int64_t block_rows = (rows + NORM_BLOCKS - 1) / NORM_BLOCKS;
    return block_rows < NORM_BLOCK_ROWS ? NORM_BLOCK_ROWS : block_rows;
}

static size_t norm_scratch(Device *device, int64_t rows, int64_t channels) {
    (void)device;
    int64_t block_rows = norm_block_rows(rows), n_blocks = (rows + block_rows - 1) / block_rows;
    return (size_t)(n_blocks * 2 * ((channels + 15) / 16 * 16)) * sizeof(float);
}

static void norm_backward(Stream *stream, Dtype dt, NormKind kind, void *dx, float *dweight, float *dbias,
                          const void *dy, const void *residual, const void *x, const float *mean, const float *rstd,
                          const void *weight, int64_t rows, int64_t channels, bool accumulate) {
    if (!cpu_compute(stream))
        return;
    float *partials = cpu_scratch(stream, norm_scratch(stream->device, rows, channels));
    if (!partials)
        return;
    const int64_t block_rows = norm_block_rows(rows);
    const NormBackward a = {.dt = dt,
                            .kind = kind,
                            .dx = dx,
                            .dweight = dweight,
                            .dbias = dbias,
                            .dy = dy,
                            .residual = residual,
                            .x = x,
                            .mean = mean,
                            .rstd = rstd,
                            .weight = weight,
                            .rows = rows,
                            .channels = channels,
                            .accumulate = accumulate,
                            .block_rows = block_rows,
                            .n_blocks = (rows + block_rows - 1) / block_rows,
                            .partials = partials,
                            .stride = (channels + 15) / 16 * 16};
    run(stream, CPU_PICK(norm_kernels)->backward, &a, a.n_blocks, 1, rows * channels * (int64_t)dtype_bytes(dt));
    run(stream, CPU_PICK(norm_kernels)->sum_partials, &a, channels, 16, a.n_blocks * channels * 4);
}

// ---- activations and loss ----

static void gelu_forward(Stream *stream, Dtype dt, void *y, const void *x, int64_t len) {
    if (!cpu_compute(stream))
        return;
    const Activation a = {dt, y, NULL, x, 0};
    run(stream, CPU_PICK(activation_kernels)->gelu_forward, &a, len, 64, len * 4);
}

static void gelu_backward(Stream *stream, Dtype dt, void *dx, float *db, const void *dy, const void *x, int64_t rows,
                          int64_t ffn, bool accumulate) {
    if (!cpu_compute(stream))
        return;
    const Activation a = {dt, dx, dy, x, 0};
    run(stream, CPU_PICK(activation_kernels)->gelu_backward, &a, rows * ffn, 64, rows * ffn * 4);
    cpu_column_sums(stream, dt, db, dx, ffn, rows, ffn, accumulate);
}

static void swiglu_forward(Stream *stream, Dtype dt, void *y, const void *gate_up, int64_t rows, int64_t ffn) {
    if (!cpu_compute(stream))
        return;
    const Activation a = {dt, y, NULL, gate_up, ffn};
    run(stream, CPU_PICK(activation_kernels)->swiglu_forward, &a, rows, 1, rows * ffn * 4);
}

static void swiglu_backward(Stream *stream, Dtype dt, void *dgate_up, const void *dy, const void *gate_up, int64_t rows,
                            int64_t ffn) {
    if (!cpu_compute(stream))
        return;
    const Activation a = {dt, dgate_up, dy, gate_up, ffn};
    run(stream, CPU_PICK(activation_kernels)->swiglu_backward, &a, rows, 1, rows * ffn * 4);
}

static void cross_entropy(Stream *stream, Dtype dt, float *losses, void *dlogits, int64_t ld_d, const float *logits,
                          int64_t ld, const int32_t *targets, int64_t rows, int64_t vocab, float scale) {
    if (!cpu_compute(stream))
        return;
    const CrossEntropy a = {dt, losses, dlogits, ld_d, logits, ld, targets, vocab, scale};
    run(stream, CPU_PICK(loss_kernels)->cross_entropy, &a, rows, 1, rows * vocab * 4);
}

// ---- flat arrays, on any stream: the arguments travel to the stream's thread ----

typedef struct SumArguments {
    double *sum;
    const float *values;
    int64_t len;
} SumArguments;

static void run_sum(Stream *stream, void *arguments) {
    (void)stream;
    const SumArguments *a = arguments;
    double sum = 0.0;
    for (int64_t tile = 0; tile < a->len; tile += SUMSQ_TILE) {
        double tile_sum = 0.0;
        for (int64_t i = tile; i < a->len && i < tile + SUMSQ_TILE; i++)
            tile_sum += (double)a->values[i];
        sum += tile_sum;
    }
    *a->sum = sum;
}

static void sum_to_host(Stream *stream, double *sum, const float *values, int64_t len) {
    const SumArguments a = {sum, values, len};
    cpu_launch(stream, run_sum, &a, sizeof a);
}

static void sumsq(const Flat *a, int threads) {
    run_threads(threads, CPU_PICK(flat_kernels)->sumsq, a, (a->len + SUMSQ_TILE - 1) / SUMSQ_TILE, 1, a->len * 4);
}

static void run_sumsq(Stream *stream, void *arguments) {
    sumsq(arguments, cpu_threads(stream));
}

static void sumsq_to_host(Stream *stream, float *tile_sums, const void *values, Dtype dtype, float divisor,
                          int64_t len) {
    const Flat a = {tile_sums, DTYPE_FP32, values, dtype, len, divisor};
    cpu_launch(stream, run_sumsq, &a, sizeof a);
}

void host_sumsq(float *tile_sums, const void *values, Dtype dtype, float divisor, int64_t len, int threads) {
    const Flat a = {tile_sums, DTYPE_FP32, values, dtype, len, divisor};
    sumsq(&a, threads);
}

static void run_convert(Stream *stream, void *arguments) {
    const Flat *a = arguments;
    run(stream, CPU_PICK(flat_kernels)->convert, a, a->len, 64, a->len * 4);
}

static void convert(Stream *stream, void *to, Dtype to_dtype, const void *from, Dtype from_dtype, int64_t len) {
    const Flat a = {to, to_dtype, from, from_dtype, len, 1.0f};
    cpu_launch(stream, run_convert, &a, sizeof a);
}

void host_convert(void *to, Dtype to_dtype, const void *from, Dtype from_dtype, int64_t len, int threads) {
    const Flat a = {to, to_dtype, from, from_dtype, len, 1.0f};
    run_threads(threads, CPU_PICK(flat_kernels)->convert, &a, len, 64, len * 4);
}

static void run_add(Stream *stream, void *arguments) {
    const Flat *a = arguments;
    run(stream, CPU_PICK(flat_kernels)->add, a, a->len, 64, a->len * 4);
}

static void add(Stream *stream, void *to, Dtype to_dtype, const void *from, Dtype from_dtype, int64_t len) {
    const Flat a = {to, to_dtype, from, from_dtype, len, 1.0f};
    cpu_launch(stream, run_add, &a, sizeof a);
}

void host_adamw(const AdamwArgs *args, int threads) {
    run_threads(threads, CPU_PICK(flat_kernels)->adamw, args, args->len, 64, args->len * 16);
}

static void run_adamw(Stream *stream, void *arguments) {
    host_adamw(arguments, cpu_threads(stream));
}

_Static_assert(sizeof(AdamwArgs) <= STREAM_CALL_BYTES, "cpu_launch copies at most STREAM_CALL_BYTES");

static void adamw(Stream *stream, const AdamwArgs *args) {
    cpu_launch(stream, run_adamw, args, sizeof *args);
}

const Ops cpu_ops = {
    .name = "cpu",
    .linear_forward = cpu_linear_forward,
    .linear_backward_input = cpu_linear_backward_input,
    .linear_backward_weight = cpu_linear_backward_weight,
    .linear_scratch = cpu_linear_scratch,
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .norm_forward = norm_forward,
    .norm_backward = norm_backward,
    .norm_scratch = norm_scratch,
    .attention_forward = cpu_attention_forward,
    .attention_backward = cpu_attention_backward,
    .attention_scratch = cpu_attention_scratch,
    .attention_decode = cpu_attention_decode,
    .rope = rope,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .cross_entropy = cross_entropy,
    .sum_to_host = sum_to_host,
    .sumsq_to_host = sumsq_to_host,
    .convert = convert,
    .add = add,
    .adamw = adamw,
};
