// Who adds what for whom, and what that costs: pure arithmetic.
//
// Reduction of plain ZeRO (S = N), G ranks a group, M = N/G groups. Level 1, inside each group: local peer j receives
// from its G-1 neighbours the cuts c with c mod G = j (M of them) and adds the G addends in rank order. Level 2: the
// partial sums of cut c go, in fp32, to its owner, rank c, from the ranks with the same local index in the other
// groups. So each addend travels inside its group, and only M-1 partial sums of a cut cross the network. Hybrid
// sharding (S = G): level 1 gives cut j to local peer j; level 2: those of all groups exchange their partial sums. The
// order of every addition is the same, so are the bits. Idea: hierarchical all-reduce (Goyal et al. 2017, §4.1).
#include "llm/hooks.h"
#include "zero/comm_backend.h"

enum { DEFAULT_PIECE_BYTES = 1 << 19, STAGING_TARGET_BYTES = 64 << 20, PIECE_ALIGN = 64 };

Status comm_shape_make(const CommWorld *world, int shard_group, int reduce_group, CommShape *shape) {
    int n = world->size, s = shard_group > 0 ? shard_group : n;
    bool hybrid = s < n;
    int host_group = hook_host_group(world->host_group);
    int g = reduce_group > 0 ? reduce_group : hybrid ? s : host_group > 1 ? host_group : n;
    if (s > n || n % s != 0)
        return fail_usage("--shard-group %d does not divide the number of ranks, %d", s, n);
    if (g > n || n % g != 0)
        return fail_usage("gradients are added in groups of %d ranks, which does not divide the number of ranks, %d", g,
                          n);
    if (hybrid && g != s)
        return fail_usage(
            "--shard-group %d with gradients added in groups of %d: in hybrid sharding the two must be equal", s, g);
    *shape = (CommShape){.n_ranks = n, .shard_group = s, .reduce_group = g};
    return OK;
}

int64_t comm_all_gather_bytes(CommShape shape, int64_t len, Dtype dtype) {
    return (shape.shard_group - 1) * len * (int64_t)dtype_bytes(dtype);
}

static bool is_hybrid(CommShape shape) {
    return shape.shard_group < shape.n_ranks;
}

int64_t comm_reduce_scatter_bytes(CommShape shape, int64_t len, Dtype wire) {
    int64_t n_groups = shape.n_ranks / shape.reduce_group, cuts = is_hybrid(shape) ? 1 : n_groups;
    int64_t inside = (shape.reduce_group - 1) * cuts * len * (int64_t)dtype_bytes(wire);
    int64_t across = is_hybrid(shape) ? 0 : (n_groups - 1) * len * (int64_t)sizeof(float);
    return inside + across;
}

int64_t comm_all_reduce_bytes(CommShape shape, int64_t len) {
    return is_hybrid(shape) ? (shape.n_ranks / shape.reduce_group - 1) * len * (int64_t)sizeof(float) : 0;
}

int64_t comm_piece_bytes(const CommOptions *options) {
    return options->piece_bytes > 0 ? options->piece_bytes : DEFAULT_PIECE_BYTES;
}

// How many pieces the staging of a reduction has in each dtype (see comm_reduction.h). Everything is there twice, so
// that one piece is received while the one before is added.
static int64_t wire_pieces(const CommOptions *options) {
    CommShape shape = options->shape;
    if (options->native)
        return shape.shard_group + 1;  // all cuts in the wire's dtype, and the result (comm_nccl_native.cu)
    int64_t received = (shape.reduce_group - 1) * (is_hybrid(shape) ? 1 : (int64_t)shape.n_ranks / shape.reduce_group);
    return 2 * received *
           (options->wire == DTYPE_FP32 ? 1 : 2);  // fp32 is sent from where it is, other dtypes are converted first
}
static int64_t partial_pieces(const CommOptions *options) {
    CommShape shape = options->shape;
    int64_t n_groups = shape.n_ranks / shape.reduce_group;
    if (options->native)
        return is_hybrid(shape) ? 1 : 0;
    return n_groups == 1 ? 0 : 2 * ((is_hybrid(shape) ? 1 : n_groups) + n_groups - 1);
}

// A message of level 1 to one peer is at most piece_bytes, all cuts together; with many ranks, less, to bound the
// staging.
int64_t comm_piece_len(const CommOptions *options) {
    CommShape shape = options->shape;
    int64_t cuts = is_hybrid(shape) ? 1 : shape.n_ranks / shape.reduce_group;
    int64_t len = comm_piece_bytes(options) / ((int64_t)sizeof(float) * cuts);
    int64_t bounded = STAGING_TARGET_BYTES /
                      ((int64_t)sizeof(float) * (wire_pieces(options) + partial_pieces(options) + 1));
    int64_t longest = (options->max_len + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
    if (len > bounded)
        len = bounded;
    if (len > longest)
        len = longest;
    len = len / PIECE_ALIGN * PIECE_ALIGN;
    return len < PIECE_ALIGN ? PIECE_ALIGN : len;
}

size_t comm_staging_bytes(const CommOptions *options) {
    size_t element = dtype_bytes(options->wire);
    if (options->shape.n_ranks == 1)
        return options->wire == DTYPE_FP32 ? 0 : LOCAL_PIECE_LEN * element;
    return (size_t)comm_piece_len(options) *
           ((size_t)wire_pieces(options) * element + (size_t)partial_pieces(options) * sizeof(float));
}
