// NCCL over sockets, between processes of one host. As with the real library, the bootstrap needs nothing but the unique id,
// calls only enqueue on a stream, the calls of one communicator happen in the order in which they were issued, and the
// calls of a group happen together. A collective that its peers do not join waits, and lets other streams go on.
//
// Each message begins with what its sender thinks the call is; ranks that do not agree are reported. A peer that is gone,
// and CUDASIM_NCCL_FAIL, become the communicator's asynchronous error; the collective then waits until ncclCommAbort.
#include <nccl.h>

#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "dev/cudasim/memory.h"
#include "dev/cudasim/mesh.h"
#include "dev/cudasim/nccl_reduce.h"
#include "dev/cudasim/report.h"
#include "dev/cudasim/settings.h"
#include "dev/cudasim/stream.h"

// Kept until the process ends: operations refer to it.
struct ncclComm {
    std::string id;
    int rank = 0, size = 0;
    cudasim::Mesh mesh;
    cudasim::OperationRef last;  // of its calls
    uint64_t issued = 0;         // calls
    int splits = 0;
    bool aborted = false;
    ncclResult_t error = ncclSuccess;  // asynchronous
};

namespace cudasim {
namespace {

enum Kind : uint32_t { ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST, REDUCE, POINT_TO_POINT };
const char *const KIND_NAMES[] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "send/recv"};

struct Header {  // of a message: what the sender thinks the call is
    Kind kind;
    uint32_t type, operation;
    int32_t root;
    uint64_t count;   // as the API has it
    uint64_t number;  // of the communicator's calls
};

struct Call {
    ncclComm *comm;
    cudaStream_t stream;
    Header header;
    const char *from;  // NULL: sends nothing
    char *to;          // NULL: receives nothing
    int peer;          // POINT_TO_POINT
    std::vector<Message> sends, receives;

    size_t bytes() const {
        return header.count * nccl_size(static_cast<ncclDataType_t>(header.type));
    }
    bool sends_to(int rank) const;
    bool receives_from(int rank) const;
    size_t send_offset(int rank) const {  // in `from`
        return header.kind == REDUCE_SCATTER ? bytes() * static_cast<size_t>(rank) : 0;
    }
};

// ---- one call: begin, move, finish ----

bool Call::sends_to(int rank) const {
    switch (header.kind) {
        case BROADCAST: return comm->rank == header.root;
        case REDUCE: return rank == header.root;
        case POINT_TO_POINT: return from && rank == peer;
        default: return true;
    }
}
bool Call::receives_from(int rank) const {
    switch (header.kind) {
        case BROADCAST: return rank == header.root;
        case REDUCE: return comm->rank == header.root;
        case POINT_TO_POINT: return to && rank == peer;
        default: return true;
    }
}

void begin(Call &call) {
    size_t bytes = call.bytes();
    for (int rank = 0; rank < call.comm->size; rank++) {
        if (call.sends_to(rank)) {
            const char *data = call.from + call.send_offset(rank);
            touch(data, bytes, false, KIND_NAMES[call.header.kind]);
            Message m{rank, std::vector<char>(sizeof call.header + bytes)};
            memcpy(m.data.data(), &call.header, sizeof call.header);
            memcpy(m.data.data() + sizeof call.header, data, bytes);
            call.sends.push_back(std::move(m));
        }
        if (call.receives_from(rank))
            call.receives.push_back({rank, std::vector<char>(sizeof call.header + bytes)});
    }
}

void check_header(const Call &call, const Message &m) {
    if (m.moved < sizeof(Header))
        return;
    Header theirs;
    memcpy(&theirs, m.data.data(), sizeof theirs);
    const Header &ours = call.header;
    bool numbered = ours.kind != POINT_TO_POINT;  // sends and receives need not be issued alike
    if (theirs.kind != ours.kind || theirs.type != ours.type || theirs.operation != ours.operation ||
        theirs.root != ours.root || theirs.count != ours.count || (numbered && theirs.number != ours.number))
        fatal("nccl: ranks of a communicator do not make the same calls: rank %d is in %s of %zu elements of type %u (call "
              "%zu), rank %d in %s of %zu elements of type %u (call %zu)",
              call.comm->rank, KIND_NAMES[ours.kind], static_cast<size_t>(ours.count), ours.type,
              static_cast<size_t>(ours.number), m.peer, KIND_NAMES[theirs.kind % 6], static_cast<size_t>(theirs.count),
              theirs.type, static_cast<size_t>(theirs.number));
}

// Messages to one peer follow one another: only the first that is not finished may move.
Progress move(ncclComm &comm, std::vector<Message *> messages, Progress (Message::*advance)(const Mesh &)) {
    std::vector<bool> busy(static_cast<size_t>(comm.size), false);
    Progress all = Progress::NOTHING;
    for (Message *m : messages) {
        if (m->finished() || busy[static_cast<size_t>(m->peer)])
            continue;
        Progress p = (m->*advance)(comm.mesh);
        if (p == Progress::LOST)
            return p;
        if (p == Progress::SOME)
            all = p;
        busy[static_cast<size_t>(m->peer)] = !m->finished();
    }
    return all;
}

void finish(Call &call) {
    size_t bytes = call.bytes();
    std::vector<const char *> parts;  // what each rank sent, in rank order
    for (const Message &m : call.receives)
        parts.push_back(m.data.data() + sizeof(Header));
    if (parts.empty())
        return;
    size_t result = call.header.kind == ALL_GATHER ? bytes * parts.size() : bytes;
    touch(call.to, result, true, KIND_NAMES[call.header.kind]);
    if (call.header.kind == REDUCE_SCATTER || call.header.kind == ALL_REDUCE || call.header.kind == REDUCE)
        nccl_reduce(call.to, parts, call.header.count, static_cast<ncclDataType_t>(call.header.type),
                    static_cast<ncclRedOp_t>(call.header.operation));
    else
        for (size_t i = 0; i < parts.size(); i++)
            memcpy(call.to + i * bytes, parts[i], bytes);
}

// ---- calls that happen together: those of a group on one stream and communicator ----

int collectives;  // of this process, for CUDASIM_NCCL_FAIL

class Together {
  public:
    explicit Together(std::vector<Call> calls) : calls_(std::move(calls)), comm_(*calls_[0].comm) {
    }

    bool step() {
        if (comm_.aborted)
            return true;
        if (!begun_)
            begin_all();
        if (comm_.error == ncclSuccess && !move_all())
            comm_.error = ncclRemoteError;
        bool finished = comm_.error == ncclSuccess && all_of(&Call::sends) && all_of(&Call::receives);
        if (finished)
            for (Call &call : calls_)
                finish(call);
        else
            check_silence();
        return finished;
    }

  private:
    void begin_all() {
        begun_ = true;
        last_progress_ = std::chrono::steady_clock::now();
        for (Call &call : calls_) {
            if (++collectives == settings().nccl_fail)
                comm_.error = ncclRemoteError;
            begin(call);
        }
    }
    bool move_all() {  // false: a peer is lost
        std::vector<Message *> sends, receives;
        for (Call &call : calls_) {
            for (Message &m : call.sends)
                sends.push_back(&m);
            for (Message &m : call.receives)
                receives.push_back(&m);
        }
        Progress sent = move(comm_, sends, &Message::send), received = move(comm_, receives, &Message::receive);
        for (const Call &call : calls_)
            for (const Message &m : call.receives)
                check_header(call, m);  // at once: of a call that differs, the rest may never come
        if (sent == Progress::SOME || received == Progress::SOME)
            last_progress_ = std::chrono::steady_clock::now();
        return sent != Progress::LOST && received != Progress::LOST;
    }
    bool all_of(std::vector<Message> Call::*messages) const {
        for (const Call &call : calls_)
            for (const Message &m : call.*messages)
                if (!m.finished())
                    return false;
        return true;
    }
    void check_silence() const {
        auto silence = std::chrono::steady_clock::now() - last_progress_;
        if (silence < std::chrono::seconds(settings().timeout_seconds))
            return;
        std::string missing;
        for (const Call &call : calls_)
            for (const Message &m : call.receives)
                if (!m.finished())
                    missing += " " + std::to_string(m.peer);
        fatal("nccl: rank %d has been in %s (call %zu) for %d s without a message; it waits for rank%s. (A rank that "
              "waits for others outside of CUDA does not run its streams: synchronise first.)",
              comm_.rank, KIND_NAMES[calls_[0].header.kind], static_cast<size_t>(calls_[0].header.number),
              settings().timeout_seconds, missing.c_str());
    }

    std::vector<Call> calls_;
    ncclComm &comm_;
    bool begun_ = false;
    std::chrono::steady_clock::time_point last_progress_;
};

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
        auto split = std::stable_partition(rest.begin(), rest.end(), [&](const Call &call) {
            return call.comm == comm && call.stream == stream;
        });
        auto together = std::make_shared<Together>(std::vector<Call>(rest.begin(), split));
        std::string name = std::string("nccl ") + KIND_NAMES[rest[0].header.kind];
        rest.erase(rest.begin(), split);
        std::vector<OperationRef> after;
        if (comm->last)
            after.push_back(comm->last);
        comm->last = enqueue(stream, name, [together] { return together->step(); }, after);
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
        group().push_back({comm, stream, header, static_cast<const char *>(from), static_cast<char *>(to), root, {}, {}});
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
    if (comm->last && !comm->last->done)
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
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return issue(comm, stream, POINT_TO_POINT, from, nullptr, count, type, ncclSum, peer);
}
ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return issue(comm, stream, POINT_TO_POINT, nullptr, to, count, type, ncclSum, peer);
}

}  // extern "C"
