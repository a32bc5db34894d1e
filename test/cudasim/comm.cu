// NCCL of the simulator between processes: `comm RANKS NAME`, where NAME is "all" or a planted mistake. The program
// forks its ranks. Rank r prints lines for what is wrong; the parent prints "ok" if all ranks end well.
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "llm/cuda/launch.cuh"

enum { N = 1000, LARGE = 1 << 20 };

static int rank, n_ranks;
static cudaStream_t streams[2];
static ncclComm_t world;

__global__ void fill(float *x, float first, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] = first + static_cast<float>(i % 100);
}

template <class T>
static T *allocate(size_t n) {
    void *memory;
    cudaMalloc(&memory, n * sizeof(T));
    return static_cast<T *>(memory);
}
static float *filled(float first, size_t n, cudaStream_t stream) {
    float *x = allocate<float>(n);
    LAUNCH((fill), (static_cast<unsigned>((n + 127) / 128), 128, 0, stream), x, first, static_cast<int>(n));
    return x;
}
static int expect(const float *device, size_t n, cudaStream_t stream, float first, const char *what) {
    std::vector<float> host(n);
    cudaMemcpyAsync(host.data(), device, n * sizeof(float), cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    for (size_t i = 0; i < n; i++)
        if (host[i] != first + static_cast<float>(i % 100)) {
            printf("WRONG: rank %d: %s, element %zu is %g\n", rank, what, i, static_cast<double>(host[i]));
            return 1;
        }
    return 0;
}

static int check_collectives() {
    cudaStream_t s = streams[0];
    float sum_of_ranks = static_cast<float>(n_ranks * (n_ranks - 1) / 2), n = static_cast<float>(n_ranks);
    int wrong = 0;
    // Sums of r + i%100 over ranks, in place; then all divided by the ranks to compare with `first + i%100`.
    float *x = filled(static_cast<float>(rank), N, s);
    ncclAllReduce(x, x, N, ncclFloat, ncclAvg, world, s);
    wrong += expect(x, N, s, sum_of_ranks / n, "all-reduce (average)");
    ncclAllReduce(x, x, N, ncclFloat, ncclMax, world, s);
    wrong += expect(x, N, s, sum_of_ranks / n, "all-reduce (maximum)");
    // All-gather into place, pieces of 100 elements so that every piece begins anew.
    float *gathered = allocate<float>(static_cast<size_t>(n_ranks) * 100);
    float *piece = filled(0, 100, s);
    ncclAllGather(piece, gathered, 100, ncclFloat, world, s);
    wrong += expect(gathered, static_cast<size_t>(n_ranks) * 100, s, 0, "all-gather");
    float *shard = gathered + rank * 100;
    ncclReduceScatter(gathered, shard, 100, ncclFloat, ncclAvg, world, s);
    wrong += expect(shard, 100, s, 0, "reduce-scatter, in place");
    float *y = filled(static_cast<float>(rank), LARGE, s);
    ncclBroadcast(y, y, LARGE, ncclFloat, n_ranks - 1, world, s);
    wrong += expect(y, LARGE, s, n - 1, "broadcast, large");
    // A ring, in a group; and to the rank itself.
    float *z = filled(static_cast<float>(rank), N, s), *from_left = allocate<float>(N), *own = allocate<float>(N);
    int left = (rank + n_ranks - 1) % n_ranks;
    ncclGroupStart();
    ncclSend(z, N, ncclFloat, (rank + 1) % n_ranks, world, s);
    ncclRecv(from_left, N, ncclFloat, left, world, s);
    ncclSend(z, N, ncclFloat, rank, world, s);
    ncclRecv(own, N, ncclFloat, rank, world, s);
    ncclGroupEnd();
    wrong += expect(from_left, N, s, static_cast<float>(left), "ring") +
             expect(own, N, s, static_cast<float>(rank), "to itself");
    for (void *p : {x, gathered, piece, y, z, from_left, own})
        cudaFree(p);
    return wrong;
}

// Halves and pairs of the world at once, each on its own stream.
static int check_split() {
    ncclComm_t halves, pairs;
    ncclCommSplit(world, rank / 2, rank, &halves, nullptr);
    ncclCommSplit(world, rank % 2, -rank, &pairs, nullptr);  // keys turn the order around
    int size, turned, wrong = 0;
    ncclCommCount(pairs, &size);
    ncclCommUserRank(pairs, &turned);
    if (size != n_ranks / 2 || turned != size - 1 - rank / 2) {
        printf("WRONG: rank %d: split\n", rank);
        wrong = 1;
    }
    for (int turn = 0; turn < 4; turn++) {
        float *x = filled(static_cast<float>(rank + turn), N, streams[0]);
        float *y = filled(static_cast<float>(rank * 3 + turn), N, streams[1]);
        ncclAllReduce(x, x, N, ncclFloat, ncclMin, halves, streams[0]);
        ncclAllReduce(y, y, N, ncclFloat, ncclMax, pairs, streams[1]);
        wrong +=
            expect(y, N, streams[1], static_cast<float>((n_ranks - 2 + rank % 2) * 3 + turn), "second communicator");
        wrong += expect(x, N, streams[0], static_cast<float>(rank / 2 * 2 + turn), "first communicator");
        cudaFree(x);
        cudaFree(y);
    }
    ncclCommDestroy(pairs);
    ncclCommDestroy(halves);
    return wrong;
}

// An asynchronous error is seen by polling, and ends with ncclCommAbort.
static int check_error() {
    float *x = filled(0, N, streams[0]);
    ncclAllReduce(x, x, N, ncclFloat, ncclSum, world, streams[0]);
    ncclResult_t error = ncclSuccess;
    while (error == ncclSuccess && cudaStreamQuery(streams[0]) == cudaErrorNotReady)
        ncclCommGetAsyncError(world, &error);
    ncclCommAbort(world);
    cudaStreamSynchronize(streams[0]);
    if (error != ncclRemoteError)
        printf("WRONG: rank %d: no asynchronous error\n", rank);
    return error != ncclRemoteError;
}

static int run_rank(const char *name, ncclUniqueId id) {
    for (cudaStream_t &stream : streams)
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (ncclCommInitRank(&world, n_ranks, id, rank) != ncclSuccess) {
        printf("WRONG: rank %d: no communicator\n", rank);
        return 1;
    }
    float *x = filled(0, N, streams[0]);
    bool odd_one = rank == n_ranks - 1;
    if (!strcmp(name, "different_calls")) {
        ncclAllReduce(x, x, odd_one ? N - 1 : N, ncclFloat, ncclSum, world, streams[0]);
        cudaStreamSynchronize(streams[0]);
    } else if (!strcmp(name, "missing_rank")) {
        if (!odd_one) {
            ncclAllReduce(x, x, N, ncclFloat, ncclSum, world, streams[0]);
            cudaStreamSynchronize(streams[0]);
        }
        pause();
    } else if (!strcmp(name, "lost_peer")) {
        if (odd_one)
            _exit(0);
        return check_error();
    } else if (!strcmp(name, "async_error")) {
        return check_error();  // CUDASIM_NCCL_FAIL=1
    } else if (!strcmp(name, "race")) {
        ncclAllReduce(x, x, N, ncclFloat, ncclSum, world, streams[1]);  // not ordered after `filled`
        cudaDeviceSynchronize();
    } else {
        int wrong = check_collectives() + (n_ranks % 2 ? 0 : check_split());
        ncclCommDestroy(world);
        return wrong;
    }
    return 0;
}

int main(int n_arguments, char **arguments) {
    if (n_arguments != 3)
        return 2;
    n_ranks = atoi(arguments[1]);
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    std::vector<pid_t> children;
    for (rank = 0; rank < n_ranks; rank++) {
        pid_t child = fork();
        if (child == 0)
            exit(run_rank(arguments[2], id));
        children.push_back(child);
    }
    int wrong = 0;
    for (pid_t child : children) {
        int status;
        if (wrong)  // one rank has failed: the others may wait for it for ever
            kill(child, SIGTERM);
        waitpid(child, &status, 0);
        wrong += status != 0;
    }
    if (!wrong)
        printf("ok\n");
    return wrong != 0;
}
