// NCCL over sockets, between processes of one host. As with the real library, the bootstrap needs nothing but the
// unique id, calls only enqueue on a stream, the calls of one communicator happen in the order in which they were
// issued, and the calls of a group happen together. A collective that its peers do not join waits, and lets other
// streams go on.
//
// Each message begins with what its sender thinks the call is; ranks that do not agree are reported. A peer that is
// gone, and CUDASIM_NCCL_FAIL, become the communicator's asynchronous error; the collective then waits until
// ncclCommAbort.
#include <nccl.h>

#include <sys/random.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "dev/cudasim/memory.h"
#include "dev/cudasim/nccl_call.h"
#include "dev/cudasim/report.h"

namespace cudasim {
namespace {

// ---- groups ----

int group_depth;
std::vector<Call> &group() {
    static auto &g = *new std::vector<Call>;
    return g;
}

void issue_group() {
    std::vector<Call> rest = std::move(group());
    group().clear();
    while (!rest.empty()) {
        ncclComm *comm = rest[0].comm;
        cudaStream_t stream = rest[0].stream;
        auto split = std::stable_partition(
            rest.begin(), rest.end(), [&](const Call &call) { return call.comm == comm && call.stream == stream; });
        auto together = std::make_shared<Together>(std::vector<Call>(rest.begin(), split));
        std::string name = std::string("nccl ") + nccl_kind_name(rest[0].header.kind);
        rest.erase(rest.begin(), split);
        std::vector<OperationRef> after;
        if (comm->last)
            after.push_back(comm->last);
        comm->last = enqueue(
            stream, name, [together] { return together->step(); }, after);
    }
}

ncclResult_t issue(ncclComm_t comm, cudaStream_t stream, Kind kind, const void *from, void *to, size_t count,
                   ncclDataType_t type, ncclRedOp_t operation, int root) {
    if (!nccl_size(type) || operation >= ncclNumOps || comm->aborted)
        return ncclInvalidArgument;
    if (kind != POINT_TO_POINT && (root < 0 || root >= comm->size))
        return ncclInvalidArgument;
    if (comm->error != ncclSuccess)
        return comm->error;
    if (count) {
        Header header{kind, type, operation, kind == POINT_TO_POINT ? 0 : root, count, ++comm->issued};
        group().push_back(
            {comm, stream, header, static_cast<const char *>(from), static_cast<char *>(to), root, {}, {}});
    }
    if (!group_depth)
        issue_group();
    return ncclSuccess;
}

// ---- communicators ----

ncclResult_t make(ncclComm_t *comm, const std::string &id, int rank, int size) {
    static auto &all = *new std::vector<ncclComm *>;
    *comm = nullptr;
    if (size < 1 || rank < 0 || rank >= size)
        return ncclInvalidArgument;
    auto *c = new ncclComm;
    all.push_back(c);
    c->id = id;
    c->rank = rank;
    c->size = size;
    if (!c->mesh.open(id, rank, size))
        return ncclSystemError;
    *comm = c;
    return ncclSuccess;
}

std::string text_of(const ncclUniqueId &id) {
    static const char digits[] = "0123456789abcdef";
    std::string text;
    for (int i = 0; i < 16; i++) {
        auto byte = static_cast<unsigned char>(id.internal[i]);
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

// Every rank's `mine`, in rank order. Outside of streams.
template <class T>
std::vector<T> gather_on_host(ncclComm &comm, T mine) {
    std::vector<Message> messages;
    const char *bytes = reinterpret_cast<const char *>(&mine);
    for (int rank = 0; rank < comm.size; rank++) {
        messages.push_back({rank, std::vector<char>(bytes, bytes + sizeof mine)});
        messages.push_back({rank, std::vector<char>(sizeof mine)});
    }
    std::vector<T> all(static_cast<size_t>(comm.size));
    for (size_t i = 0; i < messages.size(); i++)
        while (!messages[i].finished()) {
            Progress p = i % 2 ? messages[i].receive(comm.mesh) : messages[i].send(comm.mesh);
            if (p == Progress::LOST)
                fatal("nccl: rank %d is gone", messages[i].peer);
            if (p == Progress::NOTHING)
                work_meanwhile();
        }
    for (size_t rank = 0; rank < all.size(); rank++)
        memcpy(&all[rank], messages[2 * rank + 1].data.data(), sizeof mine);
    return all;
}

}  // namespace
}  // namespace cudasim

using namespace cudasim;
extern "C" {

ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}
const char *ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess: return "no error";
        case ncclSystemError: return "unhandled system error";
        case ncclInvalidArgument: return "invalid argument";
        case ncclInvalidUsage: return "invalid usage";
        case ncclRemoteError: return "remote process exited or there was a network error";
        default: return "another NCCL error";
    }
}
const char *ncclGetLastError(ncclComm_t comm) {
    return comm ? ncclGetErrorString(comm->error) : "";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    memset(id, 0, sizeof *id);
    return getrandom(id->internal, 16, 0) == 16 ? ncclSuccess : ncclSystemError;
}
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank) {
    return make(comm, text_of(id), rank, size);
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *) {
    return ncclCommInitRank(comm, size, id, rank);
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *split, ncclConfig_t *) {
    struct Choice {
        int color, key;
    };
    wait_for(comm->last);
    std::vector<Choice> choices = gather_on_host(*comm, Choice{color, key});
    comm->splits++;
    *split = nullptr;
    if (color == NCCL_SPLIT_NOCOLOR)
        return ncclSuccess;
    int rank = 0, size = 0;
    for (int other = 0; other < comm->size; other++) {
        const Choice &c = choices[static_cast<size_t>(other)];
        if (c.color != color)
            continue;
        size++;
        rank += c.key < key || (c.key == key && other < comm->rank);
    }
    return make(split, comm->id + "." + std::to_string(comm->splits) + "." + std::to_string(color), rank, size);
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    wait_for(comm->last);
    return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    wait_for(comm->last);
    comm->aborted = true;
    comm->mesh.close();
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    comm->aborted = true;  // its calls end without having done anything
    comm->mesh.close();
    return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    if (drives_device() && comm->last && !comm->last->done)  // other threads may ask too
        poll(comm->last);
    *error = comm->error;
    return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) {
    *count = comm->size;
    return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
    *rank = comm->rank;
    return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t, int *device) {
    return cudaGetDevice(device) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclCommRegister(const ncclComm_t, void *buffer, size_t bytes, void **handle) {
    check_device_range(buffer, bytes, "ncclCommRegister");
    *handle = buffer;
    return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void *) {
    return ncclSuccess;
}
ncclResult_t ncclMemAlloc(void **memory, size_t bytes) {
    return cudaMalloc(memory, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclMemFree(void *memory) {
    return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclGroupStart() {
    group_depth++;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
    if (!group_depth)
        return ncclInvalidUsage;
    if (--group_depth == 0)
        issue_group();
    return ncclSuccess;
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return issue(comm, stream, ALL_GATHER, from, to, count, type, ncclSum, 0);
}
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                               ncclComm_t comm, cudaStream_t stream) {
    return issue(comm, stream, REDUCE_SCATTER, from, to, count, type, operation, 0);
}
ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t comm, cudaStream_t stream) {
    return issue(comm, stream, ALL_REDUCE, from, to, count, type, operation, 0);
}
ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t operation, int root,
                        ncclComm_t comm, cudaStream_t stream) {
    return issue(comm, stream, REDUCE, from, to, count, type, operation, root);
}
ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    return issue(comm, stream, BROADCAST, from, to, count, type, ncclSum, root);
}
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return issue(comm, stream, POINT_TO_POINT, from, nullptr, count, type, ncclSum, peer);
}
ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return issue(comm, stream, POINT_TO_POINT, nullptr, to, count, type, ncclSum, peer);
}

}  // extern "C"
