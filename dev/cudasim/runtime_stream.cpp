// The CUDA runtime API: launches, events, synchronisation. (Streams themselves are made in stream.cpp.)
#include <cuda_runtime_api.h>

#include <chrono>
#include <memory>

#include "dev/cudasim/block.h"
#include "dev/cudasim/memory.h"
#include "dev/cudasim/report.h"
#include "dev/cudasim/runtime.h"
#include "dev/cudasim/stream.h"

struct CUevent_st {
    bool timed;
    cudasim::OperationRef recorded;   // NULL: never
    std::shared_ptr<double> seconds;  // when it happened
};

namespace cudasim {
namespace {

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// "(rows<T>)", as LAUNCH was given it, without the parentheses.
std::string kernel_name(const char *name) {
    std::string s(name);
    return s.front() == '(' && s.back() == ')' ? s.substr(1, s.size() - 2) : s;
}

bool valid(const LaunchConfig &c) {
    size_t threads = size_t{c.block.x} * c.block.y * c.block.z;
    return threads && threads <= 1024 && c.block.z <= 64 && c.grid.x && c.grid.x <= INT32_MAX && c.grid.y && c.grid.z &&
           c.grid.y <= 65535 && c.grid.z <= 65535;
}

}  // namespace

void launch(const char *name, const void *kernel, const LaunchConfig &config, std::function<void()> body) {
    if (!valid(config))
        failed(cudaErrorInvalidConfiguration);
    else if (config.shared_bytes > allowed_shared_bytes(kernel))
        failed(cudaErrorInvalidValue);
    else
        enqueue(config.stream, kernel_name(name), [config, body = std::move(body)] {
            run_grid(config, body);
            return true;
        });
}

}  // namespace cudasim

using namespace cudasim;
extern "C" {

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (is_null_stream(stream))
        wait_for_all();
    else
        wait_for(last_operation(stream));
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
    wait_for_all();
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return poll(last_operation(stream)) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    if (event->recorded)
        enqueue(stream, "wait for an event", [] { return true; }, {event->recorded});
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument) {
    enqueue(stream, "host function", [=] {
        DeviceWindow window(false);
        function(argument);
        return true;
    });
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    *event = new CUevent_st{!(flags & cudaEventDisableTiming), nullptr, nullptr};
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;  // waits and records that refer to it have what they need
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    auto seconds = std::make_shared<double>(0);
    event->seconds = seconds;
    event->recorded = enqueue(stream, "event", [=] {
        *seconds = now();
        return true;
    });
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    wait_for(event->recorded);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    return poll(event->recorded) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    if (!start->timed || !end->timed || !start->recorded || !end->recorded)
        return failed(cudaErrorInvalidResourceHandle);
    if (!start->recorded->done || !end->recorded->done)
        return cudaErrorNotReady;
    *milliseconds = static_cast<float>((*end->seconds - *start->seconds) * 1e3);
    return cudaSuccess;
}

}  // extern "C"
