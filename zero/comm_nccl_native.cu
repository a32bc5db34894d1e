// Reductions by NCCL's own algorithms (--deterministic off): the order of additions is NCCL's choice.
//
// Where nothing has to be converted they read and write in place. Else, piece by piece: all cuts of a piece are rounded
// to the wire's dtype into the staging, reduced there, and brought to the shard. In hybrid sharding the shard groups'
// sums are then added in fp32.
#include "zero/comm_nccl.cuh"
#include "zero/comm_nccl_sum.cuh"

static void reduce_in_place(const NcclCall *call, float *shard, const float *full, size_t len) {
    CommNccl *c = call->comm;
    nccl_check(call, nccl.ncclReduceScatter(full, shard, len, ncclFloat32, ncclSum, c->inside, call->s));
    if (c->across)
        nccl_check(call, nccl.ncclAllReduce(shard, shard, len, ncclFloat32, ncclSum, c->across, call->s));
}

static void reduce_piece(const NcclCall *call, char *shard, Dtype shard_dtype, const float *full, int64_t full_stride,
                         int64_t len, bool add) {
    CommNccl *c = call->comm;
    const Ops *ops = device_ops(c->base.device);
    const Dtype wire = c->base.options.wire;
    const int n = c->base.options.shape.shard_group;
    const int64_t room = comm_piece_len(&c->base.options);
    char *result = c->staging + n * room * static_cast<int64_t>(dtype_bytes(wire));
    float *partial = reinterpret_cast<float *>(result + room * static_cast<int64_t>(dtype_bytes(wire)));
    const size_t count = static_cast<size_t>(len);
    Pack pack = {.full = full, .full_stride = full_stride, .to = c->staging, .to_stride = len, .dtype = wire, .n = n,
                 .n_cuts = 1, .group_size = n, .local = 0, .first_round = 0, .len = len};
    pack_cuts(&pack, call->s);
    nccl_check(call, nccl.ncclReduceScatter(c->staging, result, count, nccl_type(wire), ncclSum, c->inside, call->s));
    if (c->across) {
        ops->convert(call->stream, partial, DTYPE_FP32, result, wire, len);
        nccl_check(call, nccl.ncclAllReduce(partial, partial, count, ncclFloat32, ncclSum, c->across, call->s));
        ops->convert(call->stream, result, wire, partial, DTYPE_FP32, len);
    }
    if (add)
        ops->add(call->stream, shard, shard_dtype, result, wire, len);
    else
        ops->convert(call->stream, shard, shard_dtype, result, wire, len);
}

void nccl_reduce_natively(const NcclCall *call, void *shard, Dtype shard_dtype, const float *full, int64_t len,
                          bool add) {
    const CommOptions *options = &call->comm->base.options;
    if (options->wire == DTYPE_FP32 && shard_dtype == DTYPE_FP32 && !add) {
        reduce_in_place(call, static_cast<float *>(shard), full, static_cast<size_t>(len));
        return;
    }
    const int64_t piece_len = comm_piece_len(options);
    for (int64_t at = 0; at < len; at += piece_len) {
        char *to = static_cast<char *>(shard) + at * static_cast<int64_t>(dtype_bytes(shard_dtype));
        reduce_piece(call, to, shard_dtype, full + at, len, len - at < piece_len ? len - at : piece_len, add);
    }
}
