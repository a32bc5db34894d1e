// A pipeline with two buffers on two streams: copy in, `produce` on one, `consume` on the other, copy out; with one
// planted bug, by name: `stream_bugs NAME`. "none" is correct.
#include <cstdio>
#include <cstring>
#include <vector>

#include "llm/cuda/launch.cuh"

enum Bug {
    NONE,
    NO_WAIT,                // the consumer does not wait for the producer
    EVENT_TOO_EARLY,        // recorded before the producer
    REUSED_TOO_EARLY,       // the producer overwrites a buffer that is being consumed
    HOST_READS_TOO_EARLY,   // the pinned result, without synchronising
    HOST_WRITES_TOO_EARLY,  // the pinned source, before it was copied
    BUGS
};
const char *const NAMES[BUGS] = {
    "none", "no_wait", "event_too_early", "reused_too_early", "host_reads_too_early", "host_writes_too_early"};

enum { N = 256, STEPS = 6, THREADS = 64 };

__global__ void produce(float *x, const float *in) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] = in[i] * 2.0f + 1.0f;
}
__global__ void consume(float *sum, const float *x) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    sum[i] += x[i] * x[i];
}

static float *allocate(bool pinned) {
    void *memory;
    if (pinned)
        cudaMallocHost(&memory, N * sizeof(float));
    else
        cudaMalloc(&memory, N * sizeof(float));
    return static_cast<float *>(memory);
}

int main(int n_arguments, char **arguments) {
    int bug = 0;
    while (n_arguments == 2 && bug < BUGS && strcmp(arguments[1], NAMES[bug]) != 0)
        bug++;
    if (n_arguments != 2 || bug == BUGS)
        return 2;

    cudaStream_t producer, consumer;
    cudaStreamCreateWithFlags(&producer, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&consumer, cudaStreamNonBlocking);
    cudaEvent_t copied[2], made[2], used[2];
    float *host_in[2], *in[2], *x[2], *sum = allocate(false), *host_sum = allocate(true);
    for (int i = 0; i < 2; i++) {
        host_in[i] = allocate(true);
        in[i] = allocate(false);
        x[i] = allocate(false);
        for (cudaEvent_t *event : {&copied[i], &made[i], &used[i]})
            cudaEventCreateWithFlags(event, cudaEventDisableTiming);
    }
    cudaMemsetAsync(sum, 0, N * sizeof(float), consumer);
    std::vector<float> want(N, 0.0f);
    for (int step = 0; step < STEPS; step++) {
        int b = step % 2;
        if (bug != HOST_WRITES_TOO_EARLY)
            cudaEventSynchronize(copied[b]);
        for (int i = 0; i < N; i++) {
            host_in[b][i] = 0.25f * static_cast<float>(step) + static_cast<float>(i % 7);
            float v = host_in[b][i] * 2.0f + 1.0f;
            want[i] += v * v;
        }
        if (bug != REUSED_TOO_EARLY)
            cudaStreamWaitEvent(producer, used[b], 0);
        cudaMemcpyAsync(in[b], host_in[b], N * sizeof(float), cudaMemcpyHostToDevice, producer);
        cudaEventRecord(copied[b], producer);
        if (bug == EVENT_TOO_EARLY)
            cudaEventRecord(made[b], producer);
        LAUNCH((produce), (N / THREADS, THREADS, 0, producer), x[b], in[b]);
        if (bug != EVENT_TOO_EARLY)
            cudaEventRecord(made[b], producer);
        if (bug != NO_WAIT)
            cudaStreamWaitEvent(consumer, made[b], 0);
        LAUNCH((consume), (N / THREADS, THREADS, 0, consumer), sum, x[b]);
        cudaEventRecord(used[b], consumer);
    }
    memset(host_sum, 0, N * sizeof(float));
    cudaMemcpyAsync(host_sum, sum, N * sizeof(float), cudaMemcpyDeviceToHost, consumer);
    if (bug != HOST_READS_TOO_EARLY)
        cudaStreamSynchronize(consumer);
    bool ok = true;
    for (int i = 0; i < N; i++)
        ok = ok && host_sum[i] == want[i];
    printf("%s\n", ok ? "ok" : "WRONG");
    for (int i = 0; i < 2; i++) {
        cudaFreeHost(host_in[i]);
        cudaFree(in[i]);
        cudaFree(x[i]);
        for (cudaEvent_t event : {copied[i], made[i], used[i]})
            cudaEventDestroy(event);
    }
    cudaFree(sum);
    cudaFreeHost(host_sum);
    return !ok;
}
