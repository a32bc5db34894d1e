#include "dev/cudasim/nccl_call.h"

#include <cstring>

#include "dev/cudasim/memory.h"
#include "dev/cudasim/report.h"
#include "dev/cudasim/settings.h"

namespace cudasim {

const char *nccl_kind_name(Kind kind) {
    static const char *const names[] = {"all_gather", "reduce_scatter", "all_reduce",
                                        "broadcast",  "reduce",         "send/recv"};
    return kind < sizeof names / sizeof *names ? names[kind] : "an unknown call";
}

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

namespace {

int collectives;  // of this process, for CUDASIM_NCCL_FAIL

void begin(Call &call) {
    size_t bytes = call.bytes();
    for (int rank = 0; rank < call.comm->size; rank++) {
        if (call.sends_to(rank)) {
            const char *data = call.from + call.send_offset(rank);
            touch(data, bytes, false, nccl_kind_name(call.header.kind));
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
        fatal(
            "nccl: ranks of a communicator do not make the same calls: rank %d is in %s of %zu elements of type %u "
            "(call "
            "%zu), rank %d in %s of %zu elements of type %u (call %zu)",
            call.comm->rank, nccl_kind_name(ours.kind), static_cast<size_t>(ours.count), ours.type,
            static_cast<size_t>(ours.number), m.peer, nccl_kind_name(theirs.kind), static_cast<size_t>(theirs.count),
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
    touch(call.to, result, true, nccl_kind_name(call.header.kind));
    if (call.header.kind == REDUCE_SCATTER || call.header.kind == ALL_REDUCE || call.header.kind == REDUCE)
        nccl_reduce(call.to, parts, call.header.count, static_cast<ncclDataType_t>(call.header.type),
                    static_cast<ncclRedOp_t>(call.header.operation));
    else
        for (size_t i = 0; i < parts.size(); i++)
            memcpy(call.to + i * bytes, parts[i], bytes);
}

}  // namespace

bool Together::step() {
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

void Together::begin_all() {
    begun_ = true;
    last_progress_ = std::chrono::steady_clock::now();
    for (Call &call : calls_) {
        if (++collectives == settings().nccl_fail)
            comm_.error = ncclRemoteError;
        begin(call);
    }
}
bool Together::move_all() {
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
bool Together::all_of(std::vector<Message> Call::*messages) const {
    for (const Call &call : calls_)
        for (const Message &m : call.*messages)
            if (!m.finished())
                return false;
    return true;
}
void Together::check_silence() const {
    auto silence = std::chrono::steady_clock::now() - last_progress_;
    if (silence < std::chrono::seconds(settings().timeout_seconds))
        return;
    std::string missing;
    for (const Call &call : calls_)
        for (const Message &m : call.receives)
            if (!m.finished())
                missing += " " + std::to_string(m.peer);
    fatal(
        "nccl: rank %d has been in %s (call %zu) for %d s without a message; it waits for rank%s. (A rank that "
        "waits for others outside of CUDA does not run its streams: synchronise first.)",
        comm_.rank, nccl_kind_name(calls_[0].header.kind), static_cast<size_t>(calls_[0].header.number),
        settings().timeout_seconds, missing.c_str());
}

}  // namespace cudasim
