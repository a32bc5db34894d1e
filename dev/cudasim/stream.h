// stream: operations wait in lazy queues, and run when the host waits for something, in an order that respects only
// what CUDA promises: the order within a stream, events, and the legacy default stream. Internal to the simulator.
#ifndef DEV_CUDASIM_STREAM_H
#define DEV_CUDASIM_STREAM_H

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace cudasim {

// Vector clock: clock[s] = k says that the first k operations of stream s happen before. Stream 0 is the host.
using Clock = std::vector<uint32_t>;
enum { HOST = 0 };

struct Operation;
using OperationRef = std::shared_ptr<Operation>;

struct Operation {
    std::string name;
    std::function<bool()> step;  // does it; false: not finished, call again (a collective whose peers are not there)
    std::vector<OperationRef> after;  // what must be done first
    bool done = false;
    int stream = 0;         // its number
    uint32_t sequence = 0;  // its place in the stream, from 1
    uint64_t id = 0;        // its place among all operations
    Clock clock;            // what happens before it, itself included
    uint64_t wanted = 0;    // the last wait that needs it
};

OperationRef enqueue(cudaStream_t stream, std::string name, std::function<bool()> step,
                     std::vector<OperationRef> after = {});
void wait_for(const OperationRef &operation);  // NULL is fine
void wait_for_all();
// One step towards an operation, for queries: does not wait. Returns whether it is done; then the host is ordered after
// it.
bool poll(const OperationRef &operation);
bool drives_device();  // the calling thread is the one that uses CUDA
OperationRef last_operation(cudaStream_t stream);
bool is_null_stream(cudaStream_t stream);
// Run other work while the host waits for something that is no operation (peers that come up).
void work_meanwhile();

extern Operation *running_operation;  // NULL: host code
const Clock &host_clock();            // host_clock()[HOST]: how many operations it has enqueued

}  // namespace cudasim

// The stream handle of CUDA. Streams are never deleted: operations and clocks refer to them by number.
struct CUstream_st {
    CUstream_st(int number_, bool blocking_) : number(number_), blocking(blocking_) {
    }
    const int number;
    const bool blocking;  // ordered with the legacy default stream
    bool destroyed = false;
    uint32_t enqueued = 0;
    std::deque<cudasim::OperationRef> queue;
    cudasim::OperationRef last;
};

#endif
