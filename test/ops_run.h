// ops_run: a Row of the table in test_ops.c with its numbers (Case), and with its tensors on a device (Run).
#ifndef TEST_OPS_RUN_H
#define TEST_OPS_RUN_H

#include "test/check.h"

#include "llm/device.h"
#include "test/ops_kinds.h"

enum { GUARD = 64 };  // poisoned elements behind each tensor

// ---- elements of any type ----
static size_t type_bytes(int type) {
    return type == TYPE_INT32 ? 4 : type == TYPE_DOUBLE ? 8 : dtype_bytes((Dtype)type);
}
static double type_load(int type, const void *data, int64_t i) {
    if (type == TYPE_INT32)
        return ((const int32_t *)data)[i];
    if (type == TYPE_DOUBLE)
        return ((const double *)data)[i];
    return (double)dtype_load((Dtype)type, data, (size_t)i);
}
static void type_store(int type, void *data, int64_t i, double x) {
    if (type == TYPE_INT32)
        ((int32_t *)data)[i] = (int32_t)x;
    else if (type == TYPE_DOUBLE)
        ((double *)data)[i] = x;
    else
        dtype_store((Dtype)type, data, (size_t)i, (float)x);
}
static double unit_roundoff(int type) {
    return type == DTYPE_BF16 ? 0x1p-8 : type == DTYPE_FP16 ? 0x1p-11 : 0;
}

static uint64_t random_state;
static double random_uniform(double low, double high) {  // splitmix64
    uint64_t x = random_state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return low + (high - low) * ((double)(x >> 11) * 0x1p-53);
}

// ---- arrays of one row of the table, in double precision ----
typedef struct Case {
    const Row *row;
    Dtype dt;
    Tensor t[TENSORS];
    double *v[TENSORS], *d[TENSORS];  // NULL where the tensor, or its gradient, does not exist
} Case;

static int64_t tensor_len(const Tensor *t) {
    return t->rows * t->cols;
}
static bool has_gradient(const Row *row, const Tensor *t) {
    return row->kind->backward && !(row->flags & FORWARD_ONLY) && (t->role == ARG || t->role == OUT);
}
static bool is_input(const Tensor *t) {
    return t->role == IN || t->role == ARG || t->role == INOUT;
}

static Case case_shape(const Row *row, Dtype dt) {
    Case c = {.row = row, .dt = dt};
    row->kind->tensors(row, dt, c.t);
    for (int k = 0; k < TENSORS; k++) {
        Tensor *t = &c.t[k];
        t->ld = t->ld ? t->ld : t->cols;
        t->grad_ld = t->grad_ld ? t->grad_ld : t->cols;
        if (t->role == ARG && t->sums)
            t->grad_type = DTYPE_FP32;
        if (t->low == 0 && t->high == 0) {
            t->low = -1;
            t->high = 1;
        }
    }
    return c;
}
static Case case_make(const Row *row, Dtype dt) {
    Case c = case_shape(row, dt);
    random_state = 1;
    for (int k = 0; k < TENSORS; k++) {
        const Tensor *t = &c.t[k];
        if (t->role == ABSENT)
            continue;
        c.v[k] = calloc((size_t)tensor_len(t), sizeof(double));
        if (has_gradient(row, t))
            c.d[k] = calloc((size_t)tensor_len(t), sizeof(double));
        for (int64_t i = 0; i < tensor_len(t); i++) {  // inputs as the device will see them
            double element;
            if (is_input(t)) {
                double x = random_uniform(t->low, t->high);
                type_store(t->type, &element, 0, t->type == TYPE_INT32 ? floor(x) : x);
                c.v[k][i] = type_load(t->type, &element, 0);
            } else if (t->role == OUT && c.d[k]) {
                type_store(t->grad_type, &element, 0, random_uniform(-1, 1));
                c.d[k][i] = t->constant_grad != 0 ? t->constant_grad : type_load(t->grad_type, &element, 0);
            }
        }
    }
    return c;
}
static void case_free(Case *c) {
    for (int k = 0; k < TENSORS; k++) {
        free(c->v[k]);
        free(c->d[k]);
    }
}

// ---- running a row on the device ----
static DeviceKind device_kind_chosen = DEVICE_CPU;
typedef struct Machine {
    Device *device;
    Stream *stream;
} Machine;

static Machine machine_open(int threads, StreamKind kind) {
    Machine m;
    assert_ok(device_open(&(DeviceOptions){.kind = device_kind_chosen, .threads = threads}, &m.device));
    assert_ok(stream_create(m.device, kind, "test", &m.stream));
    return m;
}
static void machine_close(Machine m) {
    stream_destroy(m.stream);
    device_close(m.device);
}

// A tensor (or gradient) on the device, and host memory of the same layout to fill it from and read it into.
typedef struct Image {
    int type;
    int64_t rows, cols, ld;
    size_t bytes;
    bool host;
    unsigned char *memory, *staging;
} Image;

static Image image_make(const Tensor *t, bool gradient, Device *device) {
    Image m = {.type = gradient ? t->grad_type : t->type,
               .rows = t->rows,
               .cols = t->cols,
               .ld = gradient ? t->grad_ld : t->ld,
               .host = t->host};
    m.bytes = (size_t)(m.rows * m.ld + GUARD) * type_bytes(m.type);
    assert_ok(device_host_alloc(device, t->name, m.bytes, (void **)&m.staging));
    if (m.host)
        m.memory = m.staging;
    else
        assert_ok(device_alloc(device, MEM_WORKSPACE, t->name, m.bytes, (void **)&m.memory));
    return m;
}
static void image_free(Image *m, Device *device) {
    if (!m->host)
        device_free(device, m->memory);
    device_host_free(device, m->staging);
}
static void image_set(Image *m, const double *values, Stream *stream) {  // NULL: poison
    memset(m->staging, 0xff, m->bytes);
    for (int64_t i = 0; values && i < m->rows * m->cols; i++)
        type_store(m->type, m->staging, i / m->cols * m->ld + i % m->cols, values[i]);
    stream_copy(stream, m->memory, m->staging, m->bytes);
    assert_ok(stream_sync(stream));
}
static void image_read(Image *m, Stream *stream) {
    stream_copy(stream, m->staging, m->memory, m->bytes);
    assert_ok(stream_sync(stream));
}

typedef struct Run {
    Machine machine;
    Image v[TENSORS], d[TENSORS];
    Call call;
} Run;

static Run run_make(const Case *c, Machine machine) {
    Run r = {.machine = machine,
             .call = {.row = c->row, .ops = device_ops(machine.device), .stream = machine.stream, .dt = c->dt}};
    if (c->row->kind->scratch)
        assert_ok(device_reserve_scratch(machine.device, c->row->kind->scratch(machine.device, c->dt, c->row)));
    for (int k = 0; k < TENSORS; k++) {
        if (c->v[k]) {
            r.v[k] = image_make(&c->t[k], false, machine.device);
            image_set(&r.v[k], is_input(&c->t[k]) ? c->v[k] : NULL, machine.stream);
            r.call.v[k] = r.v[k].memory;
        }
        if (c->d[k]) {
            r.d[k] = image_make(&c->t[k], true, machine.device);
            image_set(&r.d[k], c->t[k].role == OUT ? c->d[k] : NULL, machine.stream);
            r.call.d[k] = r.d[k].memory;
        }
    }
    return r;
}
static void run_free(Run *r) {
    for (int k = 0; k < TENSORS; k++) {
        if (r->v[k].staging)
            image_free(&r->v[k], r->machine.device);
        if (r->d[k].staging)
            image_free(&r->d[k], r->machine.device);
    }
}

#endif
