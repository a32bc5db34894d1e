// ptx: what the inline PTX of llm/cuda/mma.cuh does, for its simulator bodies. Fragment layouts are those of the
// PTX ISA ("Matrix Fragments for mma.m16n8k16", "ldmatrix"); all 32 lanes take part.
#ifndef DEV_CUDASIM_PTX_H
#define DEV_CUDASIM_PTX_H

#include <cstdint>

namespace cudasim {

// mma.sync.aligned.m16n8k16.row.col.f32.{bf16,f16}.{bf16,f16}.f32: d = a·b + c, summed in fp32 in the order of k.
// Lane l, g = l / 4, t = l % 4; every 32-bit register holds two values, the lower half the lower column (a) or row (b):
//   a[r]: row g + 8·(r & 1), columns 2t + 8·(r >> 1) and +1      b[r]: rows 2t + 8r and +1, column g
//   c[r], d[r]: row g + 8·(r >> 1), column 2t + (r & 1)
void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4]);
void mma_m16n8k16_fp16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4]);

// ldmatrix.sync.aligned.m8n8.x{1,2,4}{,.trans}.shared.b16: lane 8m + i gives the address of row i of matrix m (8 values
// of 16 bits, 16-byte aligned, in shared memory; lanes past the last matrix are not read). Lane l receives of matrix m,
// in r[m], row l / 4, columns 2·(l % 4) and +1; with trans the same of the transposed matrix.
void ldmatrix_x1(uint32_t (&r)[1], const void *row);
void ldmatrix_x2(uint32_t (&r)[2], const void *row);
void ldmatrix_x4(uint32_t (&r)[4], const void *row);
void ldmatrix_x1_trans(uint32_t (&r)[1], const void *row);
void ldmatrix_x2_trans(uint32_t (&r)[2], const void *row);
void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row);

// cp.async.c{a,g}.shared.global: `bytes` (4, 8 or 16, both sides aligned to it) from device to shared memory, of which
// the last bytes - source_bytes are zero. It may happen at any time until this thread has waited for its group, and
// does so here as late as possible (in random thread order: at once or late). A copy that nobody waits for never
// happens.
void cp_async(void *shared, const void *global, int bytes, int source_bytes);
void cp_async_commit();                  // cp.async.commit_group: the copies since the last commit are a group
void cp_async_wait(int groups_pending);  // cp.async.wait_group: all but the last so many groups of this thread are done
void cp_async_wait_all();                // cp.async.wait_all, which includes copies that were not committed

}  // namespace cudasim

#endif
