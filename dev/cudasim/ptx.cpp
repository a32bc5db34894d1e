#include "dev/cudasim/ptx.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>

#include "dev/cudasim/block.h"
#include "dev/cudasim/memory.h"
#include "dev/cudasim/race.h"
#include "dev/cudasim/report.h"
#include "dev/cudasim/settings.h"

namespace cudasim {
namespace {

// ---- mma ----

struct MmaSlot {
    const uint32_t *a, *b;
    const float *c;
    float *d;
};

float bf16_value(uint16_t bits) {
    return __bfloat162float(__nv_bfloat16(__nv_bfloat16_raw{bits}));
}
float fp16_value(uint16_t bits) {
    return __half2float(__half(__half_raw{bits}));
}

template <float (*value)(uint16_t)>
void mma_all(void *const *slots) {
    float a[16][16], b[16][8], c[16][8];  // a(m, k), b(k, n), c(m, n)
    auto part_of = [](uint32_t word, int part) { return value(static_cast<uint16_t>(word >> 16 * part)); };
    for (int lane = 0; lane < 32; lane++) {
        if (!slots[lane])
            fatal("mma: lane %d has ended", lane);
        auto *slot = static_cast<const MmaSlot *>(slots[lane]);
        int g = lane / 4, t = lane % 4;
        for (int part = 0; part < 2; part++) {
            for (int r = 0; r < 4; r++)
                a[g + 8 * (r & 1)][2 * t + part + 8 * (r >> 1)] = part_of(slot->a[r], part);
            for (int r = 0; r < 2; r++)
                b[2 * t + part + 8 * r][g] = part_of(slot->b[r], part);
        }
        for (int r = 0; r < 4; r++)
            c[g + 8 * (r >> 1)][2 * t + (r & 1)] = slot->c[r];
    }
    for (int m = 0; m < 16; m++)
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 8; n++)
                c[m][n] += a[m][k] * b[k][n];
    for (int lane = 0; lane < 32; lane++) {
        auto *slot = static_cast<const MmaSlot *>(slots[lane]);
        for (int r = 0; r < 4; r++)
            slot->d[r] = c[lane / 4 + 8 * (r >> 1)][2 * (lane % 4) + (r & 1)];
    }
}

// ---- ldmatrix ----

struct MatrixSlot {
    uint16_t row[8];  // what this lane's address held
    int matrices;
    bool transposed;
    uint32_t *r;
};

void ldmatrix_all(void *const *slots) {
    for (int lane = 0; lane < 32; lane++)
        if (!slots[lane])
            fatal("ldmatrix: lane %d has ended", lane);
    auto row = [&](int matrix, int i) { return static_cast<const MatrixSlot *>(slots[8 * matrix + i])->row; };
    for (int lane = 0; lane < 32; lane++) {
        auto *slot = static_cast<const MatrixSlot *>(slots[lane]);
        int i = lane / 4, j = 2 * (lane % 4);
        for (int m = 0; m < slot->matrices; m++) {
            uint16_t low = slot->transposed ? row(m, j)[i] : row(m, i)[j];
            uint16_t high = slot->transposed ? row(m, j + 1)[i] : row(m, i)[j + 1];
            slot->r[m] = low | static_cast<uint32_t>(high) << 16;
        }
    }
}

void ldmatrix(uint32_t *r, const void *row, int matrices, bool transposed) {
    MatrixSlot slot{{}, matrices, transposed, r};
    // The address belongs to the lane that gives it, and so does the read.
    if (lane_index() < 8 * matrices) {
        if (!is_shared(row, sizeof slot.row) || reinterpret_cast<uintptr_t>(row) % 16)
            fatal("ldmatrix: lane %d's row %p is not 16 aligned bytes of shared memory", lane_index(), row);
        race_access(row, sizeof slot.row, false);
        memcpy(slot.row, row, sizeof slot.row);
    }
    rendezvous("ldmatrix", 0xffffffffu, ldmatrix_all, &slot);
}

// ---- cp.async ----

void copy_now(const AsyncCopy &c) {
    race_access(c.global, static_cast<size_t>(c.source_bytes), false);
    race_access(c.shared, static_cast<size_t>(c.bytes), true);
    memcpy(c.shared, c.global, static_cast<size_t>(c.source_bytes));
    memset(static_cast<char *>(c.shared) + c.source_bytes, 0, static_cast<size_t>(c.bytes - c.source_bytes));
}

}  // namespace

void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4]) {
    MmaSlot slot{a, b, c, d};
    rendezvous("mma.m16n8k16 (bf16)", 0xffffffffu, mma_all<bf16_value>, &slot);
}
void mma_m16n8k16_fp16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4]) {
    MmaSlot slot{a, b, c, d};
    rendezvous("mma.m16n8k16 (fp16)", 0xffffffffu, mma_all<fp16_value>, &slot);
}

void ldmatrix_x1(uint32_t (&r)[1], const void *row) {
    ldmatrix(r, row, 1, false);
}
void ldmatrix_x2(uint32_t (&r)[2], const void *row) {
    ldmatrix(r, row, 2, false);
}
void ldmatrix_x4(uint32_t (&r)[4], const void *row) {
    ldmatrix(r, row, 4, false);
}
void ldmatrix_x1_trans(uint32_t (&r)[1], const void *row) {
    ldmatrix(r, row, 1, true);
}
void ldmatrix_x2_trans(uint32_t (&r)[2], const void *row) {
    ldmatrix(r, row, 2, true);
}
void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row) {
    ldmatrix(r, row, 4, true);
}

void cp_async(void *shared, const void *global, int bytes, int source_bytes) {
    bool aligned = (reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) % bytes == 0;
    if ((bytes != 4 && bytes != 8 && bytes != 16) || source_bytes < 0 || source_bytes > bytes || !aligned)
        fatal("cp.async: %d of %d bytes from %p to %p: 4, 8 or 16 bytes, aligned to as many", source_bytes, bytes,
              global, shared);
    if (!is_shared(shared, static_cast<size_t>(bytes)))
        fatal("cp.async: %p is not in shared memory", shared);
    if (source_bytes)
        check_device_range(global, static_cast<size_t>(source_bytes), "cp.async");
    AsyncCopy copy{shared, global, bytes, source_bytes, current_thread->copy_groups};
    if (settings().threads == Order::RANDOM && random_numbers()() % 2)
        copy_now(copy);
    else {
        race_access(shared, static_cast<size_t>(bytes), true);  // from now on, nobody else may use it
        current_thread->copies.push_back(copy);
    }
}

void cp_async_commit() {
    current_thread->copy_groups++;
}

void cp_async_wait(int groups_pending) {
    auto &copies = current_thread->copies;
    size_t kept = 0;
    for (const AsyncCopy &copy : copies) {
        if (copy.group + static_cast<unsigned>(groups_pending) < current_thread->copy_groups)
            copy_now(copy);
        else
            copies[kept++] = copy;
    }
    copies.resize(kept);
}

void cp_async_wait_all() {
    cp_async_commit();
    cp_async_wait(0);
}

}  // namespace cudasim
