// A grid: its blocks one after another, in the order that the settings choose, under a watchdog.
#include <sys/time.h>

#include <algorithm>
#include <csignal>
#include <numeric>

#include "dev/cudasim/block.h"
#include "dev/cudasim/race.h"
#include "dev/cudasim/report.h"
#include "dev/cudasim/settings.h"
#include "dev/cudasim/stats.h"

namespace cudasim {
namespace {

// SIGVTALRM comes when this process has used so much CPU time: a busy machine does not set it off.
void watch(int seconds) {
    if (seconds)
        signal(SIGVTALRM,
               [](int) { fatal("this kernel has not ended in %d s of CPU time", settings().timeout_seconds); });
    itimerval timer{{0, 0}, {seconds, 0}};
    setitimer(ITIMER_VIRTUAL, &timer, nullptr);
}

std::vector<size_t> block_order(size_t n) {
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), size_t{0});
    if (settings().blocks == Order::REVERSE)
        std::reverse(order.begin(), order.end());
    if (settings().blocks == Order::RANDOM)
        std::shuffle(order.begin(), order.end(), random_numbers());
    return order;
}

}  // namespace

void run_grid(const LaunchConfig &config, const std::function<void()> &body) {
    const dim3 &g = config.grid;
    grid_size = g;
    block_size = config.block;
    stats_threads(uint64_t{g.x} * g.y * g.z * config.block.x * config.block.y * config.block.z);
    watch(settings().timeout_seconds);
    for (size_t i : block_order(size_t{g.x} * g.y * g.z)) {
        block_index = {static_cast<unsigned>(i % g.x), static_cast<unsigned>(i / g.x % g.y),
                       static_cast<unsigned>(i / (size_t{g.x} * g.y))};
        shared_begin_block(config.shared_bytes);
        race_begin_block();
        block_run(config.block, body);
    }
    watch(0);
}

}  // namespace cudasim
