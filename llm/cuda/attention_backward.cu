// Attention's backward on tensor cores: FlashAttention-2, algorithm 2 (Dao 2023), in two passes (attention.cuh says why).
//
//   flash_backward_queries   a block owns 64 queries of a head, walks over keys:    dq, and delta for the other
//   flash_backward_keys      a block owns 64 keys of a key head, walks over the query heads that share it and over their
//                            queries: dk, dv. It works on transposed scores, keys down and queries across, so that
//                            probabilities are in registers what pᵀ·dout and dsᵀ·q need as their left operand.
//
// With s the scores, p = exp(s·scale - lse), dp = dout·vᵀ, delta = Σ dout∘out:   ds = p∘(dp - delta),
// dq = scale·ds·k, dk = scale·dsᵀ·q, dv = pᵀ·dout. Tiles of the other side are loaded one ahead of the one in use.
//
// Precision: s, dp, p, ds fp32; p and ds rounded to T as operands of the last products; results rounded once.
//
// Resources: shared memory 48 KiB (D = 64) or 64 KiB (D = 128), and in the second pass 1 KiB for lse and delta; 166 to 255
// registers and no spills, so 2 blocks or 8 warps a multiprocessor (3 of the first pass for D = 128 on sm_90). Results,
// scores and their gradients of 16 rows are 96 to 192 of the registers: they are why the blocks are not smaller.
#include "llm/cuda/attention_tile.cuh"

namespace {

constexpr int OWN = 16 * WARPS;  // rows of a block, 16 a warp
constexpr int STAGES = 2;
// Rows of a tile of the other side. Heads of 128 leave registers and shared memory for fewer.
template <int D>
constexpr int OTHER = D == 64 ? 64 : 32;

template <int D>
constexpr int STAGE_BYTES = 2 * OTHER<D> *Tile<D>::ROW_BYTES;
template <int D>
constexpr int TILE_BYTES = 2 * OWN *Tile<D>::ROW_BYTES + STAGES *STAGE_BYTES<D>;
template <int D>
constexpr int ROW_VALUES = 2 * OTHER<D>;  // lse and delta of a stage

// Grid: (tiles of queries, heads, batch). Late tiles see the most keys: they start first.
template <class T, int D>
__global__ void __launch_bounds__(THREADS_MMA)
    flash_backward_queries(T *dqkv, float *delta, const T *dout, const T *qkv, const T *out, const float *lse,
                           AttentionShape s) {
    DYN_SHARED(char, memory);  // q (OWN, D), dout (OWN, D), then STAGES times: k (KEYS, D), v (KEYS, D)
    constexpr int ROW_BYTES = Tile<D>::ROW_BYTES, KEYS = OTHER<D>, N = KEYS / 8;
    const int q0 = static_cast<int>(gridDim.x - 1 - blockIdx.x) * OWN, h = static_cast<int>(blockIdx.y);
    const int b = static_cast<int>(blockIdx.z), query0 = q0 + 16 * warp_id();
    const int64_t stride = qkv_stride(s);
    char *my_q = memory + 16 * warp_id() * ROW_BYTES, *my_dout = my_q + OWN * ROW_BYTES;
    const SharedAddress base = shared_address(memory), stages = base + 2 * OWN * ROW_BYTES;
    const int tiles = (min(q0 + OWN, s.seq_len) + KEYS - 1) / KEYS;
    auto stage = [&](int tile) { return stages + static_cast<SharedAddress>(tile % STAGES * STAGE_BYTES<D>); };
    auto fetch = [&](int tile) {
        if (tile < tiles) {
            const int k0 = tile * KEYS;
            load_tile<D, KEYS>(stage(tile), qkv + qkv_at(s, b, k0, key_head(s, h)), stride, s.seq_len - k0);
            load_tile<D, KEYS>(stage(tile) + KEYS * ROW_BYTES, qkv + qkv_at(s, b, k0, value_head(s, h)), stride,
                               s.seq_len - k0);
        }
        cp_async_commit();
    };

    load_tile<D, OWN>(base, qkv + qkv_at(s, b, q0, h), stride, s.seq_len - q0);
    load_tile<D, OWN>(base + OWN * ROW_BYTES, dout + out_at(s, b, q0, h), out_stride(s), s.seq_len - q0);
    fetch(0);
    RowFragments<D, 1, D == 64> q(shared_address(my_q)), dout_rows(shared_address(my_dout));
    float dq[1][D / 8][4] = {}, lse2[2], row_delta[2];

    for (int tile = 0; tile < tiles; tile++) {
        const int k0 = tile * KEYS;
        cp_async_wait<0>();
        __syncthreads();  // this tile is there, and nobody reads the one before any more
        fetch(tile + 1);
        if (tile == 0) {
            q.hold();
            dout_rows.hold();
#pragma unroll
            for (int i = 0; i < 2; i++) {  // four lanes a row, 16 bytes at a time
                const int row = lane_id() / 4 + 8 * i, t = query0 + row;
                float dot = 0.0f;
                if (t < s.seq_len)
#pragma unroll
                    for (int piece = lane_id() % 4; piece < D / 8; piece += 4) {
                        float x[8], y[8];
                        load<true>(x, out + out_at(s, b, t, h), piece * 8, D);
                        load<true>(y, reinterpret_cast<const T *>(my_dout + Tile<D>::offset(row, piece)), 0, 8);
#pragma unroll
                        for (int j = 0; j < 8; j++)
                            dot = fmaf(x[j], y[j], dot);
                    }
                row_delta[i] = quad_sum(dot);
                lse2[i] = t < s.seq_len ? lse[lse_at(s, b, t, h)] * LOG2E : 0.0f;
                if (lane_id() % 4 == 0 && t < s.seq_len)
                    delta[lse_at(s, b, t, h)] = row_delta[i];
            }
        }
        if (k0 >= query0 + 16)
            continue;  // above the diagonal for all of this warp
        float p[1][N][4], ds[1][N][4];
        multiply_rows<T>(p, q, stage(tile));
        multiply_rows<T>(ds, dout_rows, stage(tile) + KEYS * ROW_BYTES);
        const bool masked = k0 + KEYS - 1 > query0;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const int key = k0 + 8 * n + lane_id() % 4 * 2 + r % 2, query = query0 + lane_id() / 4 + r / 2 * 8;
                const float prob = exp2_fast(fmaf(p[0][n][r], SCALE2<D>, -lse2[r / 2]));
                ds[0][n][r] = masked && key > query ? 0.0f : prob * (ds[0][n][r] - row_delta[r / 2]);
            }
        add_weighted_rows<T, D>(dq, ds, stage(tile));
    }

    const float factor[1][2] = {{SCALE<D>, SCALE<D>}};
    store_rows<T, D>(dqkv + qkv_at(s, b, query0, h), stride, s.seq_len - query0, dq, factor, my_q);
}

// Grid: (tiles of keys, key heads, batch). Early tiles are seen by the most queries, and start first.
template <class T, int D>
__global__ void __launch_bounds__(THREADS_MMA)
    flash_backward_keys(T *dqkv, const float *delta, const T *dout, const T *qkv, const float *lse, AttentionShape s) {
    DYN_SHARED(char, memory);  // k (OWN, D), v (OWN, D), STAGES times: q (QUERIES, D), dout (QUERIES, D);
                               // STAGES times: lse (QUERIES) fp32, delta (QUERIES) fp32
    constexpr int ROW_BYTES = Tile<D>::ROW_BYTES, QUERIES = OTHER<D>, N = QUERIES / 8;
    const int k0 = static_cast<int>(blockIdx.x) * OWN, kv = static_cast<int>(blockIdx.y);
    const int b = static_cast<int>(blockIdx.z), key0 = k0 + 16 * warp_id(), group = s.heads / s.kv_heads;
    const int64_t stride = qkv_stride(s);
    char *my_k = memory + 16 * warp_id() * ROW_BYTES, *my_v = my_k + OWN * ROW_BYTES;
    float *values = reinterpret_cast<float *>(memory + TILE_BYTES<D>);
    const SharedAddress base = shared_address(memory), stages = base + 2 * OWN * ROW_BYTES;
    const int first = k0 / QUERIES, tiles = (s.seq_len + QUERIES - 1) / QUERIES - first;  // of each head
    auto stage = [&](int step) { return stages + static_cast<SharedAddress>(step % STAGES * STAGE_BYTES<D>); };
    auto stage_values = [&](int step) { return values + step % STAGES * ROW_VALUES<D>; };
    auto fetch = [&](int step) {
        if (step < group * tiles) {
            const int h = kv * group + step / tiles, q0 = (first + step % tiles) * QUERIES, rows = s.seq_len - q0;
            load_tile<D, QUERIES>(stage(step), qkv + qkv_at(s, b, q0, h), stride, rows);
            load_tile<D, QUERIES>(stage(step) + QUERIES * ROW_BYTES, dout + out_at(s, b, q0, h), out_stride(s), rows);
            const int i = static_cast<int>(threadIdx.x);
            if (i < ROW_VALUES<D>) {
                const float *from = (i < QUERIES ? lse : delta) + lse_at(s, b, q0, h);
                const bool valid = i % QUERIES < rows;
                cp_async_4(shared_address(stage_values(step) + i), from + (valid ? i % QUERIES : 0), valid);
            }
        }
        cp_async_commit();
    };

    load_tile<D, OWN>(base, qkv + qkv_at(s, b, k0, s.heads + kv), stride, s.seq_len - k0);
    load_tile<D, OWN>(base + OWN * ROW_BYTES, qkv + qkv_at(s, b, k0, s.heads + s.kv_heads + kv), stride,
                      s.seq_len - k0);
    fetch(0);
    RowFragments<D, 1, D == 64> k(shared_address(my_k)), v(shared_address(my_v));
    float dk[1][D / 8][4] = {}, dv[1][D / 8][4] = {};

    for (int step = 0; step < group * tiles; step++) {
        const int q0 = (first + step % tiles) * QUERIES;
        cp_async_wait<0>();
        __syncthreads();  // this step's tiles are there, and nobody reads those before any more
        fetch(step + 1);
        if (step == 0) {
            k.hold();
            v.hold();
        }
        if (q0 + QUERIES <= key0)
            continue;  // no query of these sees a key of this warp
        const SharedAddress q_tile = stage(step), dout_tile = q_tile + QUERIES * ROW_BYTES;
        const float *column = stage_values(step) + lane_id() % 4 * 2;  // queries 8n + these two
        float p[1][N][4], ds[1][N][4];
        // Queries past the end are zeros with lse = delta = 0: p = 1, and they add 0 to dv and dk.
        multiply_rows<T>(p, k, q_tile);
        const bool masked = key0 + 15 > q0;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const int key = key0 + lane_id() / 4 + r / 2 * 8, query = q0 + 8 * n + lane_id() % 4 * 2 + r % 2;
                const float prob = exp2_fast(fmaf(p[0][n][r], SCALE2<D>, -LOG2E * column[8 * n + r % 2]));
                p[0][n][r] = masked && key > query ? 0.0f : prob;
            }
        add_weighted_rows<T, D>(dv, p, dout_tile);
        multiply_rows<T>(ds, v, dout_tile);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int r = 0; r < 4; r++)
                ds[0][n][r] = p[0][n][r] * (ds[0][n][r] - column[QUERIES + 8 * n + r % 2]);
        add_weighted_rows<T, D>(dk, ds, q_tile);
    }

    const float scale[1][2] = {{SCALE<D>, SCALE<D>}}, one[1][2] = {{1.0f, 1.0f}};
    T *to = dqkv + qkv_at(s, b, key0, s.heads + kv);
    store_rows<T, D>(to, stride, s.seq_len - key0, dk, scale, my_k);
    store_rows<T, D>(to + static_cast<int64_t>(s.kv_heads) * D, stride, s.seq_len - key0, dv, one, my_v);
}

}  // namespace

template <class T, int D>
void attention_mma_backward(cudaStream_t stream, T *dqkv, float *delta, const T *dout, const T *qkv, const T *out,
                            const float *lse, AttentionShape s) {
    const unsigned tiles = static_cast<unsigned>(ceil_div(s.seq_len, OWN)), batch = static_cast<unsigned>(s.batch);
    constexpr int KEYS_BYTES = TILE_BYTES<D> + STAGES * ROW_VALUES<D> * static_cast<int>(sizeof(float));
    allow_shared_bytes<flash_backward_queries<T, D>>(TILE_BYTES<D>);
    allow_shared_bytes<flash_backward_keys<T, D>>(KEYS_BYTES);
    LAUNCH((flash_backward_queries<T, D>),
           (dim3(tiles, static_cast<unsigned>(s.heads), batch), THREADS_MMA, TILE_BYTES<D>, stream), dqkv, delta, dout,
           qkv, out, lse, s);
    LAUNCH((flash_backward_keys<T, D>),
           (dim3(tiles, static_cast<unsigned>(s.kv_heads), batch), THREADS_MMA, KEYS_BYTES, stream), dqkv, delta, dout,
           qkv, lse, s);
}

#define INSTANCE(T, D)                                                                                      \
    template void attention_mma_backward<T, D>(cudaStream_t, T *, float *, const T *, const T *, const T *, \
                                               const float *, AttentionShape);
INSTANCE(bf16, 64)
INSTANCE(bf16, 128)
INSTANCE(fp16, 64)
INSTANCE(fp16, 128)
