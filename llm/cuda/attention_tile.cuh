// attention_tile: tiles in shared memory and the two products that attention is made of, on tensor cores.
//
// A tile is some rows of one head, D elements of 16 bits each, in pieces of 16 bytes. Piece p of row r lies at place
// p ^ (r % 8) of its row, so that the eight rows that one ldmatrix reads at the same p, and the eight pieces of a row that
// cp.async writes, fall into different banks.
//
// A warp owns 16·M rows of the results. Lane l of it holds, of an accumulator acc[m][n][r], row 16m + l/4 + 8·(r / 2) and
// column 8n + 2·(l % 4) + r % 2. Two neighbouring n of it, packed to 16 bits, are the left operand of the next product: so
// probabilities never leave the registers.
#ifndef LLM_CUDA_ATTENTION_TILE_CUH
#define LLM_CUDA_ATTENTION_TILE_CUH

#include "llm/cuda/attention.cuh"
#include "llm/cuda/mma.cuh"

constexpr int WARPS = 4, THREADS_MMA = 32 * WARPS;

// 1/√D, and the same for scores in powers of two
template <int D>
constexpr float SCALE = D == 64 ? 0.125f : 0.0883883476f;
template <int D>
constexpr float SCALE2 = SCALE<D> *LOG2E;

__device__ inline int lane_id() {
    return static_cast<int>(threadIdx.x) % 32;
}
__device__ inline int warp_id() {
    return static_cast<int>(threadIdx.x) / 32;
}

template <int D>
struct Tile {
    static_assert(D == 64 || D == 128, "rows of 8 or 16 pieces");
    static constexpr int ROW_BYTES = 2 * D, PIECES = D / 8;

    __device__ static int offset(int row, int piece) {
        return row * ROW_BYTES + ((piece ^ (row & 7)) << 4);
    }
    // What this lane adds to the address of a (16, 16) square for ldmatrix_x4, whose column c of squares is reached by
    // ^ 32c. As left operand, or right operand by columns (trans): the matrices go down first. As right operand by rows:
    // across first.
    __device__ static int down() {
        return offset(lane_id() & 15, lane_id() >> 4);
    }
    __device__ static int across() {
        return offset((lane_id() & 7) | (lane_id() >> 4 << 3), lane_id() >> 3 & 1);
    }
};

// Starts the copy of ROWS rows by the whole block; rows from `rows` on are zeros.
template <int D, int ROWS, class T>
__device__ void load_tile(SharedAddress tile, const T *from, int64_t stride, int rows) {
    constexpr int PIECES = Tile<D>::PIECES;
    static_assert(ROWS * PIECES % THREADS_MMA == 0, "every thread copies equally much");
#pragma unroll
    for (int i = 0; i < ROWS * PIECES / THREADS_MMA; i++) {
        const int n = i * THREADS_MMA + static_cast<int>(threadIdx.x), row = n / PIECES, piece = n % PIECES;
        const bool valid = row < rows;
        cp_async_16(tile + static_cast<SharedAddress>(Tile<D>::offset(row, piece)),
                    from + (valid ? row * stride : 0) + piece * 8, valid);
    }
}

// This warp's 16·M rows of a tile as left operand: held in registers where there is room, else read again each time.
template <int D, int M, bool HELD>
class RowFragments {
   public:
    __device__ explicit RowFragments(SharedAddress rows) : rows_(rows) {
    }
    __device__ void hold() {
        if constexpr (HELD)
#pragma unroll
            for (int c = 0; c < D / 16; c++)
                read(held_[c], c);
    }
    __device__ void get(uint32_t (&a)[M][4], int c) const {
        if constexpr (HELD) {
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int r = 0; r < 4; r++)
                    a[m][r] = held_[c][m][r];
        } else {
            read(a, c);
        }
    }

   private:
    __device__ void read(uint32_t (&a)[M][4], int c) const {
#pragma unroll
        for (int m = 0; m < M; m++)
            ldmatrix_x4(a[m],
                        rows_ + static_cast<SharedAddress>(m * 16 * Tile<D>::ROW_BYTES + (Tile<D>::down() ^ 32 * c)));
    }
    SharedAddress rows_;
    uint32_t held_[HELD ? D / 16 : 1][M][4];
};

// acc(16·M, 8·N) = a(16·M, D)·b(8·N, D)ᵀ
template <class T, int D, int M, int N, bool HELD>
__device__ void multiply_rows(float (&acc)[M][N][4], const RowFragments<D, M, HELD> &a, SharedAddress b) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int r = 0; r < 4; r++)
                acc[m][n][r] = 0.0f;
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        uint32_t left[M][4];
        a.get(left, c);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t right[4];
            ldmatrix_x4(right,
                        b + static_cast<SharedAddress>(n * 8 * Tile<D>::ROW_BYTES + (Tile<D>::across() ^ 32 * c)));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma<T>(acc[m][n], left[m], right[0], right[1]);
                mma<T>(acc[m][n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

// acc(16·M, D) += w(16·M, 8·N)·b(8·N, D), w rounded to T
template <class T, int D, int M, int N>
__device__ void add_weighted_rows(float (&acc)[M][D / 8][4], const float (&w)[M][N][4], SharedAddress b) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t left[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int r = 0; r < 4; r++)
                left[m][r] = pack<T>(w[m][n + r / 2][r % 2 * 2], w[m][n + r / 2][r % 2 * 2 + 1]);
#pragma unroll
        for (int c = 0; c < D / 16; c++) {
            uint32_t right[4];
            ldmatrix_x4_trans(right,
                              b + static_cast<SharedAddress>(n * 8 * Tile<D>::ROW_BYTES + (Tile<D>::down() ^ 32 * c)));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma<T>(acc[m][2 * c], left[m], right[0], right[1]);
                mma<T>(acc[m][2 * c + 1], left[m], right[2], right[3]);
            }
        }
    }
}

// Rounds acc·factor of the rows of this warp below `rows`, 16 bytes a thread by way of shared memory: `staging`, 16·M rows
// that only this warp uses. factor[m][i] is of row 16m + lane/4 + 8i.
template <class T, int D, int M>
__device__ void store_rows(T *to, int64_t stride, int rows, const float (&acc)[M][D / 8][4],
                           const float (&factor)[M][2], char *staging) {
    __syncwarp();
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int row = 16 * m + lane_id() / 4 + 8 * i;
                const uint32_t word = pack<T>(acc[m][n][2 * i] * factor[m][i], acc[m][n][2 * i + 1] * factor[m][i]);
                *reinterpret_cast<uint32_t *>(staging + Tile<D>::offset(row, n) + lane_id() % 4 * 4) = word;
            }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < M * 16 * Tile<D>::PIECES / 32; i++) {
        const int n = i * 32 + lane_id(), row = n / Tile<D>::PIECES, piece = n % Tile<D>::PIECES;
        if (row < rows)
            store16(to + row * stride + piece * 8, load16(staging + Tile<D>::offset(row, piece)));
    }
}

// Over the four lanes that share a row, the same bits in each.
__device__ inline float quad_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}
__device__ inline float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

// More than 48 KiB of shared memory must be asked for, once for each kernel.
template <auto KERNEL>
void allow_shared_bytes(int bytes) {
    static const cudaError_t status = cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    (void)status;  // an error is also what cuda_end finds
}

#endif
