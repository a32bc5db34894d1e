// nccl_call: NCCL calls in flight. Internal to the simulator's NCCL.
#ifndef DEV_CUDASIM_NCCL_CALL_H
#define DEV_CUDASIM_NCCL_CALL_H

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "dev/cudasim/mesh.h"
#include "dev/cudasim/nccl_reduce.h"
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
    std::atomic<ncclResult_t> error{ncclSuccess};  // asynchronous
};

namespace cudasim {

enum Kind : uint32_t { ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST, REDUCE, POINT_TO_POINT };
const char *nccl_kind_name(Kind kind);

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

// Calls that happen together: those of a group on one stream and communicator.
class Together {
   public:
    explicit Together(std::vector<Call> calls) : calls_(std::move(calls)), comm_(*calls_[0].comm) {
    }
    bool step();  // Operation.step

   private:
    void begin_all();
    bool move_all();  // false: a peer is lost
    bool all_of(std::vector<Message> Call::*messages) const;
    void check_silence() const;

    std::vector<Call> calls_;
    ncclComm &comm_;
    bool begun_ = false;
    std::chrono::steady_clock::time_point last_progress_;
};

}  // namespace cudasim

#endif
