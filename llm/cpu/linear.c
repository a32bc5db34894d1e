#include "llm/cpu/linear.h"

#include <string.h>

#include "llm/cpu/gemm.h"

// Sizes of tiles, so that what is converted and multiplied at once stays in or near the caches, and the scratch small.
enum {
    TILE_M = 512,          // rows of y or dx (LINEAR_ROW_TILE where rows must be padded)
    TILE_N = 960,          // columns of y or dx; rows of 1,024 numbers would fall into the same cache sets
    TILE_K = 2048,         // terms of a sum
    TILE_OUT = 2048,       // rows of dw, at most
    TILE_X_LEN = 4 << 20,  // elements of x converted at once for dw
    WHOLE_MAX = 16384,     // a dimension beyond this is a vocabulary: its products are cut
};

// A pass over the products of one call. A dry pass multiplies nothing: it prepares the products and adds up their
// scratch. The wet pass after it has the scratch and runs them.
typedef struct Pass {
    const Device *device;
    bool dry;
    char *arena;
    size_t gemm_bytes;  // the library's scratch, at the start of the arena
    size_t tile_bytes;  // our tiles, behind it
} Pass;

static size_t round_up(size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

static void *take(Pass *pass, size_t bytes) {
    void *tile = pass->dry ? NULL : pass->arena + pass->gemm_bytes + pass->tile_bytes;
    pass->tile_bytes += round_up(bytes);
    return tile;
}

static Status multiply(Pass *pass, const Gemm *g, void *c, const void *a, const void *b, const void *bias,
                       const void *residual) {
    if (!pass->dry)
        return gemm(g, c, a, b, bias, residual, pass->arena);
    size_t bytes;
    TRY(gemm_scratch(g, &bytes));
    if (round_up(bytes) > pass->gemm_bytes)
        pass->gemm_bytes = round_up(bytes);
    return OK;
}

// Where the tile after the one at i begins, of `tile` rows each. A dry pass looks at the first two and the last: those
// between are like the second.
static int64_t next_tile(const Pass *pass, int64_t i, int64_t tile, int64_t len) {
    int64_t next = i + tile, last = (len - 1) / tile * tile;
    return pass->dry && i > 0 && next < last ? last : next;
}

static const void *at(Dtype dt, const void *array, int64_t i) {
    return array ? (const char *)array + (size_t)i * dtype_bytes(dt) : NULL;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// The dtype that the library multiplies for dt.
static Dtype product_dtype(const Pass *pass, Dtype dt) {
    return device_has_native(pass->device, dt) ? dt : DTYPE_FP32;
}

// to (rows, cols) dense in to_dtype (dt or fp32) = from (rows, cols; ld)
static void fill_tile(const Pass *pass, void *to, Dtype to_dtype, Dtype dt, const void *from, int64_t ld, int64_t rows,
                      int64_t cols) {
    if (pass->dry)
        return;
    const LinearKernels *kernels = CPU_PICK(linear_kernels);
    int threads = pass->device->threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int t = 0; t < threads; t++) {
        int64_t begin, end;
        cpu_cut(rows, 1, threads, t, &begin, &end);
        if (to_dtype != dt)
            kernels->widen((float *)to + begin * cols, dt, at(dt, from, begin * ld), ld, end - begin, cols);
        else
            for (int64_t i = begin; i < end; i++)
                memcpy((char *)to + (size_t)(i * cols) * dtype_bytes(dt), at(dt, from, i * ld),
                       (size_t)cols * dtype_bytes(dt));
    }
}

// c (m, n; ldc) = a (m, k; lda)·op(b) + bias (n) + residual (m, n); b is (n, k) if transpose_b, else (k, n).
typedef struct Product {
    Dtype dt, c_dtype;
    bool transpose_b;
    int64_t m, n, k, lda, ldc;
    const void *a, *b, *bias, *residual;
    void *c;
} Product;

static Status product_whole(Pass *pass, const Product *p) {
    int64_t ldb = p->transpose_b ? p->k : p->n;
    // A residual that is c itself must be a sum: oneDNN may keep partial sums in c.
    GemmAdd add = !p->residual ? GEMM_ADD_NOTHING : p->residual == p->c ? GEMM_ADD_C : GEMM_ADD_RESIDUAL;
    Gemm g = {p->dt, p->c_dtype, false, p->transpose_b, p->bias != NULL, add, p->m, p->n, p->k, p->k, ldb, p->n};
    return multiply(pass, &g, p->c, p->a, p->b, p->bias, p->residual);
}

static void finish_tile(const Pass *pass, const Product *p, const float *sums, int64_t i, int64_t j, int64_t rows,
                        int64_t cols) {
    if (pass->dry)
        return;
    const LinearKernels *kernels = CPU_PICK(linear_kernels);
    int threads = pass->device->threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int t = 0; t < threads; t++) {
        int64_t begin, end;
        cpu_cut(rows, 1, threads, t, &begin, &end);
        int64_t row = i + begin;
        void *c = (char *)p->c + (size_t)(row * p->ldc + j) * dtype_bytes(p->c_dtype);
        kernels->finish(c, p->c_dtype, p->ldc, sums + begin * cols, p->dt, at(p->dt, p->bias, j),
                        at(p->dt, p->residual, row * p->n + j), p->n, end - begin, cols);
    }
}

static Status product_in_tiles(Pass *pass, const Product *p) {
    Dtype dt = product_dtype(pass, p->dt);
    bool convert = dt != p->dt;
    // Where a row's bits depend on the size of the product, every product has the same (LINEAR_ROW_TILE): the last rows
    // of the tile are whatever is there, and their results are dropped. A single row (sampling) is not worth it.
    bool pad = !gemm_fuses();
    int64_t tile_m = pad ? LINEAR_ROW_TILE : least(TILE_M, p->m);
    int64_t tile_n = least(TILE_N, p->n), tile_k = least(TILE_K, p->k);
    // b is used where it lies, in pieces that are dense, unless it must be converted, or its rows fall into the same
    // cache sets and the library does not copy them itself.
    bool copy_b = convert || (pad && !p->transpose_b && p->n % 1024 == 0);
    if (!copy_b && p->transpose_b)
        tile_k = p->k;
    else if (!copy_b)
        tile_n = p->n;
    float *sums = take(pass, (size_t)(tile_m * tile_n) * sizeof *sums);
    void *a_tile = take(pass, (size_t)(tile_m * tile_k) * dtype_bytes(dt));
    void *b_tile = copy_b ? take(pass, (size_t)(tile_n * tile_k) * dtype_bytes(dt)) : NULL;
    int64_t filled_i = -1, filled_k = -1;  // what a_tile holds
    for (int64_t i = 0; i < p->m; i = next_tile(pass, i, tile_m, p->m)) {
        int64_t rows = least(tile_m, p->m - i), m = pad && rows > 1 ? tile_m : rows;
        for (int64_t j = 0; j < p->n; j = next_tile(pass, j, tile_n, p->n)) {
            int64_t n = least(tile_n, p->n - j);
            for (int64_t l = 0; l < p->k; l = next_tile(pass, l, tile_k, p->k)) {
                int64_t k = least(tile_k, p->k - l);
                const void *a = at(p->dt, p->a, i * p->lda + l);
                if (convert || p->lda != k || m != rows) {
                    if (i != filled_i || l != filled_k)
                        fill_tile(pass, a_tile, dt, p->dt, a, p->lda, rows, k);
                    filled_i = i, filled_k = l;
                    a = a_tile;
                }
                int64_t ldb = p->transpose_b ? p->k : p->n;
                const void *b = p->transpose_b ? at(p->dt, p->b, j * ldb + l) : at(p->dt, p->b, l * ldb + j);
                if (copy_b) {
                    int64_t b_rows = p->transpose_b ? n : k, b_cols = p->transpose_b ? k : n;
                    fill_tile(pass, b_tile, dt, p->dt, b, ldb, b_rows, b_cols);
                    b = b_tile, ldb = b_cols;
                }
                Gemm g = {dt, DTYPE_FP32, false, p->transpose_b, false, l ? GEMM_ADD_C : GEMM_ADD_NOTHING, m, n, k,
                          k,  ldb,        n};
                TRY(multiply(pass, &g, sums, a, b, NULL, NULL));
            }
            finish_tile(pass, p, sums, i, j, rows, n);
        }
    }
    return OK;
}

static Status product(Pass *pass, const Product *p) {
    bool dense = p->lda == p->k && p->ldc == p->n;
    if (gemm_fuses() && device_has_native(pass->device, p->dt) && dense && p->n <= WHOLE_MAX && p->k <= WHOLE_MAX)
        return product_whole(pass, p);
    return product_in_tiles(pass, p);
}

// dw (out, in) (+)= dy (rows, out; ld_dy)ᵀ·x (rows, in)
typedef struct WeightProduct {
    Dtype dt;
    bool accumulate;
    int64_t rows, in, out, ld_dy;
    const void *dy, *x;
    float *dw;
} WeightProduct;

static Status weight_product(Pass *pass, const WeightProduct *p) {
    Dtype dt = product_dtype(pass, p->dt);
    bool convert = dt != p->dt;
    // At least two tiles: oneDNN transposes dy faster out of wider rows (0.97 of the peak instead of 0.91 in bf16).
    int64_t half_out = (p->out + 127) / 128 * 64;
    int64_t tile_out = least(least(TILE_OUT, half_out), p->out);
    int64_t tile_rows = p->rows;
    if (convert) {
        int64_t fit = TILE_X_LEN / p->in / 64 * 64;
        tile_rows = least(fit < 64 ? 64 : fit, p->rows);
    }
    void *x_tile = convert ? take(pass, (size_t)(tile_rows * p->in) * dtype_bytes(dt)) : NULL;
    void *dy_tile = convert ? take(pass, (size_t)(tile_rows * tile_out) * dtype_bytes(dt)) : NULL;
    for (int64_t r = 0; r < p->rows; r = next_tile(pass, r, tile_rows, p->rows)) {
        int64_t rows = least(tile_rows, p->rows - r);
        const void *x = at(p->dt, p->x, r * p->in);
        if (convert) {
            fill_tile(pass, x_tile, dt, p->dt, x, p->in, rows, p->in);
            x = x_tile;
        }
        for (int64_t o = 0; o < p->out; o = next_tile(pass, o, tile_out, p->out)) {
            int64_t out = least(tile_out, p->out - o), ld_dy = p->ld_dy;
            const void *dy = at(p->dt, p->dy, r * ld_dy + o);
            if (convert) {
                fill_tile(pass, dy_tile, dt, p->dt, dy, ld_dy, rows, out);
                dy = dy_tile, ld_dy = out;
            }
            GemmAdd add = p->accumulate || r > 0 ? GEMM_ADD_C : GEMM_ADD_NOTHING;
            Gemm g = {dt, DTYPE_FP32, true, false, false, add, out, p->in, rows, ld_dy, p->in, p->in};
            TRY(multiply(pass, &g, pass->dry ? NULL : p->dw + o * p->in, dy, x, NULL, NULL));
        }
    }
    return OK;
}

// ---- both passes ----

typedef struct Work {  // one of the two
    const Product *product;
    const WeightProduct *weight_product;
} Work;

static Status run_pass(Pass *pass, Work work) {
    return work.product ? product(pass, work.product) : weight_product(pass, work.weight_product);
}

static Status run(Stream *stream, Work work) {
    Pass pass = {.device = stream->device, .dry = true};
    TRY(run_pass(&pass, work));
    size_t bytes = pass.gemm_bytes + pass.tile_bytes;
    pass.arena = cpu_scratch(stream, bytes);
    if (bytes && !pass.arena)
        return OK;  // cpu_scratch has made the stream fail
    pass.dry = false;
    pass.tile_bytes = 0;
    return run_pass(&pass, work);
}

static void run_on(Stream *stream, Work work) {
    Status status = run(stream, work);
    if (status != OK)
        stream_fail(stream, status);
}

void cpu_linear_forward(Stream *stream, Dtype dt, void *y, Dtype y_dtype, int64_t ld_y, const void *x, const void *w,
                        const void *bias, const void *residual, int64_t rows, int64_t in, int64_t out) {
    if (!cpu_compute(stream))
        return;
    Product p = {dt, y_dtype, true, rows, out, in, in, ld_y, x, w, bias, residual, y};
    run_on(stream, (Work){.product = &p});
}

void cpu_linear_backward_input(Stream *stream, Dtype dt, void *dx, const void *dy, int64_t ld_dy, const void *w,
                               int64_t rows, int64_t in, int64_t out) {
    if (!cpu_compute(stream))
        return;
    Product p = {dt, dt, false, rows, in, out, ld_dy, in, dy, w, NULL, NULL, dx};
    run_on(stream, (Work){.product = &p});
}

void cpu_column_sums(Stream *stream, Dtype dt, float *sums, const void *x, int64_t ld, int64_t rows, int64_t cols,
                     bool accumulate) {
    const LinearKernels *kernels = CPU_PICK(linear_kernels);
    int threads = cpu_threads(stream);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int t = 0; t < threads; t++) {
        int64_t begin, end;
        cpu_cut(cols, 128, threads, t, &begin, &end);
        kernels->column_sums(sums + begin, dt, at(dt, x, begin), ld, rows, end - begin, accumulate);
    }
}

void cpu_linear_backward_weight(Stream *stream, Dtype dt, float *dw, float *db, const void *dy, int64_t ld_dy,
                                const void *x, int64_t rows, int64_t in, int64_t out, bool accumulate) {
    if (!cpu_compute(stream))
        return;
    WeightProduct p = {dt, accumulate, rows, in, out, ld_dy, dy, x, dw};
    run_on(stream, (Work){.weight_product = &p});
    if (db)
        cpu_column_sums(stream, dt, db, dy, ld_dy, rows, out, accumulate);
}

static void enlarge(size_t *bytes, const Device *device, Work work) {
    Pass pass = {.device = device, .dry = true};
    if (run_pass(&pass, work) != OK)
        status_clear();  // the operation itself will fail, and say why
    else if (pass.gemm_bytes + pass.tile_bytes > *bytes)
        *bytes = pass.gemm_bytes + pass.tile_bytes;
}

size_t cpu_linear_scratch(Device *device, Dtype dt, Dtype y_dtype, int64_t ld_y, int64_t rows, int64_t in, int64_t out,
                          bool with_backward) {
    static char some, other;  // stand for arrays that are there: a dry pass does not look at them
    size_t bytes = 0;
    for (int with_bias = 0; with_bias <= 1; with_bias++) {
        const void *bias = with_bias ? &some : NULL, *residuals[] = {NULL, &some, &other};
        for (int i = 0; i < 3; i++) {  // none, y itself, another
            Product p = {dt, y_dtype, true, rows, out, in, in, ld_y, NULL, NULL, bias, residuals[i], &some};
            enlarge(&bytes, device, (Work){.product = &p});
        }
    }
    if (!with_backward)
        return bytes;
    // dy is dense, has y's rows, or has the rows of an fp32 y in whose place it was stored.
    int64_t lds[] = {out, ld_y, ld_y * (int64_t)(dtype_bytes(y_dtype) / dtype_bytes(dt))};
    for (int i = 0; i < 3; i++) {
        Product p = {dt, dt, false, rows, in, out, lds[i], in, NULL, NULL, NULL, NULL, NULL};
        enlarge(&bytes, device, (Work){.product = &p});
        for (int accumulate = 0; accumulate <= 1; accumulate++) {
            WeightProduct w = {dt, accumulate, rows, in, out, lds[i], NULL, NULL, NULL};
            enlarge(&bytes, device, (Work){.weight_product = &w});
        }
    }
    return bytes;
}
