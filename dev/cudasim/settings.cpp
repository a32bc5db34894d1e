#include "dev/cudasim/settings.h"

#include <cstdlib>
#include <cstring>

#include "dev/cudasim/report.h"

namespace cudasim {
namespace {

Order order(const char *name, Order otherwise) {
    const char *value = getenv(name);
    if (!value)
        return otherwise;
    if (!strcmp(value, "inorder"))
        return Order::IN_ORDER;
    if (!strcmp(value, "reverse"))
        return Order::REVERSE;
    if (!strcmp(value, "random"))
        return Order::RANDOM;
    fatal("%s=%s: inorder, reverse or random", name, value);
}

uint64_t number(const char *name, uint64_t otherwise) {
    const char *value = getenv(name);
    if (!value)
        return otherwise;
    char *end;
    uint64_t n = strtoull(value, &end, 10);
    const char *suffixes = "KMG", *suffix = *end ? strchr(suffixes, *end) : nullptr;
    if (end == value || (*end && (!suffix || end[1])))
        fatal("%s=%s: a number is needed, with K, M, G or nothing behind it", name, value);
    return suffix ? n << 10 * (suffix - suffixes + 1) : n;
}

Settings read_environment() {
    bool all = getenv("CUDASIM_ORDER") != nullptr;
    Order common = order("CUDASIM_ORDER", Order::IN_ORDER);
    Settings s;
    s.blocks = order("CUDASIM_BLOCKS", common);
    s.threads = order("CUDASIM_THREADS", common);
    s.streams = order("CUDASIM_STREAMS", all ? common : Order::RANDOM);
    s.seed = number("CUDASIM_SEED", 1) + 1000003 * number("OMPI_COMM_WORLD_RANK", 0);
    s.memory_bytes = number("CUDASIM_MEM", size_t{4} << 30);
    s.devices = static_cast<int>(number("CUDASIM_DEVICES", 8));
    s.multiprocessors = static_cast<int>(number("CUDASIM_SMS", 2));
    s.protect = number("CUDASIM_PROTECT", 0) != 0;
    s.leaks = number("CUDASIM_LEAKS", 0) != 0;
    s.timeout_seconds = static_cast<int>(number("CUDASIM_TIMEOUT", 60));
    s.stats_file = getenv("CUDASIM_STATS");
    s.malloc_fail = static_cast<int>(number("CUDASIM_MALLOC_FAIL", 0));
    s.nccl_fail = static_cast<int>(number("CUDASIM_NCCL_FAIL", 0));
    return s;
}

}  // namespace

const Settings &settings() {
    static const Settings s = read_environment();
    return s;
}

std::mt19937_64 &random_numbers() {
    static std::mt19937_64 numbers(settings().seed);
    return numbers;
}

}  // namespace cudasim
