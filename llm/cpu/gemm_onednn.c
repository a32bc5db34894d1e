// gemm by oneDNN's matmul primitive. Dense operands on AVX-512 take its brgemm kernels: each element is summed over k
// in steps that depend on k alone. Other operands take its older packed GEMM ("gemm:jit"), which has buffers of its
// own.
#ifdef HAVE_ONEDNN
#include "llm/cpu/gemm.h"

#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "llm/cpu/cpu.h"

// A primitive and the descriptions of its operands; made once for a shape and a number of threads.
typedef struct Prepared {
    Gemm g;
    int threads;
    dnnl_primitive_t primitive;
    dnnl_memory_desc_t a, b, c, bias, residual, scratch;
} Prepared;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // several devices may live in one process
static dnnl_engine_t engine;
static Prepared **prepared;
static int n_prepared, prepared_room;

bool gemm_fuses(void) {
    return cpu_isa() == ISA_AVX512;
}

#define TRY_DNNL(call)                                                                                          \
    do {                                                                                                        \
        dnnl_status_t dnnl_ = (call);                                                                           \
        if (dnnl_ != dnnl_success)                                                                              \
            return fail("oneDNN refused a matmul (%lld x %lld x %lld, %s): %s gave status %d", (long long)g->m, \
                        (long long)g->n, (long long)g->k, dtype_name(g->dt), #call, (int)dnnl_);                \
    } while (0)

static dnnl_data_type_t dnnl_dtype(Dtype dt) {
    return dt == DTYPE_FP32 ? dnnl_f32 : dt == DTYPE_BF16 ? dnnl_bf16 : dnnl_f16;
}

static dnnl_status_t matrix(dnnl_memory_desc_t *desc, int64_t rows, int64_t cols, Dtype dt, int64_t ld,
                            bool transposed) {
    dnnl_dims_t dims = {rows, cols}, strides = {transposed ? 1 : ld, transposed ? ld : 1};
    return dnnl_memory_desc_init_by_strides(desc, 2, dims, dnnl_dtype(dt), strides);
}

// Tests lower the instruction set with ZERO_ISA; oneDNN then follows, so that the test sees what such a machine would
// do.
static dnnl_cpu_isa_t highest_isa(void) {
    return cpu_isa() == ISA_AVX512 ? dnnl_cpu_isa_all : cpu_isa() == ISA_AVX2 ? dnnl_cpu_isa_avx2 : dnnl_cpu_isa_sse41;
}

static Status prepare_attributes(Prepared *p, const Gemm *g, dnnl_primitive_attr_t attributes,
                                 dnnl_post_ops_t post_ops) {
    TRY_DNNL(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user));
    if (g->add == GEMM_ADD_C)
        TRY_DNNL(dnnl_post_ops_append_sum(post_ops, 1.0f));
    if (g->add == GEMM_ADD_RESIDUAL)
        TRY_DNNL(dnnl_post_ops_append_binary(post_ops, dnnl_binary_add, &p->residual));
    TRY_DNNL(dnnl_primitive_attr_set_post_ops(attributes, post_ops));
    return OK;
}

static Status prepare(Prepared *p, const Gemm *g) {
    dnnl_dims_t bias_dims = {1, g->n}, bias_strides = {g->n, 1};
    TRY_DNNL(matrix(&p->a, g->m, g->k, g->dt, g->lda, g->transpose_a));
    TRY_DNNL(matrix(&p->b, g->k, g->n, g->dt, g->ldb, g->transpose_b));
    TRY_DNNL(matrix(&p->c, g->m, g->n, g->c_dtype, g->ldc, false));
    TRY_DNNL(matrix(&p->residual, g->m, g->n, g->dt, g->n, false));
    TRY_DNNL(dnnl_memory_desc_init_by_strides(&p->bias, 2, bias_dims, dnnl_dtype(g->dt), bias_strides));
    dnnl_matmul_desc_t desc;
    TRY_DNNL(dnnl_matmul_desc_init(&desc, &p->a, &p->b, g->bias ? &p->bias : NULL, &p->c));

    dnnl_primitive_attr_t attributes = NULL;
    dnnl_post_ops_t post_ops = NULL;
    dnnl_primitive_desc_t primitive_desc = NULL;
    Status status = OK;
    if (dnnl_primitive_attr_create(&attributes) != dnnl_success || dnnl_post_ops_create(&post_ops) != dnnl_success)
        status = fail("out of host memory for a matmul");
    if (status == OK)
        status = prepare_attributes(p, g, attributes, post_ops);
    if (status == OK && (dnnl_primitive_desc_create(&primitive_desc, &desc, attributes, engine, NULL) != dnnl_success ||
                         dnnl_primitive_create(&p->primitive, primitive_desc) != dnnl_success))
        status = fail("oneDNN cannot multiply (%lld x %lld x %lld, %s)", (long long)g->m, (long long)g->n,
                      (long long)g->k, dtype_name(g->dt));
    if (status == OK)
        p->scratch = *dnnl_primitive_desc_query_md(primitive_desc, dnnl_query_scratchpad_md, 0);
    dnnl_primitive_desc_destroy(primitive_desc);
    dnnl_post_ops_destroy(post_ops);
    dnnl_primitive_attr_destroy(attributes);
    return status;
}

static bool same(const Gemm *x, const Gemm *y) {
    return x->m == y->m && x->n == y->n && x->k == y->k && x->dt == y->dt && x->c_dtype == y->c_dtype &&
           x->transpose_a == y->transpose_a && x->transpose_b == y->transpose_b && x->bias == y->bias &&
           x->add == y->add && x->lda == y->lda && x->ldb == y->ldb && x->ldc == y->ldc;
}

static Status find_locked(const Gemm *g, const Prepared **found) {
    int threads = omp_get_max_threads();
    for (int i = 0; i < n_prepared; i++) {
        if (prepared[i]->threads == threads && same(&prepared[i]->g, g)) {
            *found = prepared[i];
            return OK;
        }
    }
    if (!engine) {
        dnnl_set_max_cpu_isa(highest_isa());  // refused if oneDNN has run already: then what it found stays
        TRY_DNNL(dnnl_engine_create(&engine, dnnl_cpu, 0));
    }
    if (n_prepared == prepared_room) {
        int room = prepared_room ? 2 * prepared_room : 64;
        Prepared **grown = realloc(prepared, (size_t)room * sizeof *grown);
        if (!grown)
            return fail("out of host memory for a matmul");
        prepared = grown;
        prepared_room = room;
    }
    Prepared *p = calloc(1, sizeof *p);
    if (!p)
        return fail("out of host memory for a matmul");
    p->g = *g;
    p->threads = threads;
    Status status = prepare(p, g);
    if (status != OK) {
        free(p);
        return status;
    }
    prepared[n_prepared++] = p;
    *found = p;
    return OK;
}

static Status find(const Gemm *g, const Prepared **found) {
    pthread_mutex_lock(&mutex);
    Status status = find_locked(g, found);
    pthread_mutex_unlock(&mutex);
    return status;
}

Status gemm_scratch(const Gemm *g, size_t *bytes) {
    const Prepared *p;
    TRY(find(g, &p));
    *bytes = dnnl_memory_desc_get_size(&p->scratch);
    return OK;
}

Status gemm(const Gemm *g, void *c, const void *a, const void *b, const void *bias, const void *residual,
            void *scratch) {
    const Prepared *p;
    TRY(find(g, &p));
    const struct {
        int role;
        const dnnl_memory_desc_t *desc;
        const void *data;
    } operands[] = {
        {DNNL_ARG_SRC, &p->a, a},
        {DNNL_ARG_WEIGHTS, &p->b, b},
        {DNNL_ARG_DST, &p->c, c},
        {DNNL_ARG_SCRATCHPAD, &p->scratch, scratch},
        {DNNL_ARG_BIAS, &p->bias, g->bias ? bias : NULL},
        {DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, &p->residual,
         g->add == GEMM_ADD_RESIDUAL ? residual : NULL},
    };
    enum { N_OPERANDS = sizeof operands / sizeof *operands };
    dnnl_exec_arg_t arguments[N_OPERANDS];
    int n = 0;
    dnnl_stream_t stream = NULL;
    dnnl_status_t done = dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
    for (int i = 0; done == dnnl_success && i < N_OPERANDS; i++) {
        if (!operands[i].data)
            continue;
        arguments[n].arg = operands[i].role;
        done = dnnl_memory_create(&arguments[n].memory, operands[i].desc, engine, (void *)(uintptr_t)operands[i].data);
        n += done == dnnl_success;
    }
    if (done == dnnl_success)
        done = dnnl_primitive_execute(p->primitive, stream, n, arguments);
    for (int i = 0; i < n; i++)
        dnnl_memory_destroy(arguments[i].memory);
    dnnl_stream_destroy(stream);
    TRY_DNNL(done);
    return OK;
}
#endif
