#include "dev/cudasim/stats.h"

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "dev/cudasim/report.h"
#include "dev/cudasim/settings.h"
#include "dev/cudasim/stream.h"

namespace cudasim {
namespace {

using Table = std::map<std::string, CudasimStats>;
Table &table() {
    static Table &t = *new Table;  // outlives static destructors
    return t;
}
CudasimStats *running;
double started;

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void write_table() {
    FILE *file = fopen(settings().stats_file, "w");
    if (!file) {
        perror(settings().stats_file);
        return;
    }
    fprintf(file,
            "name\tlaunches\tthreads\tseconds\tload_bytes\tstore_bytes\tloads\tstores\tdistinct_load_bytes"
            "\tdistinct_store_bytes\n");
    for (const auto &[name, s] : table())
        fprintf(file,
                "%s\t%" PRIu64 "\t%" PRIu64 "\t%.6f\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64
                "\t%" PRIu64 "\n",
                name.c_str(), s.launches, s.threads, s.seconds, s.load_bytes, s.store_bytes, s.loads, s.stores,
                s.distinct_load_bytes, s.distinct_store_bytes);
    fclose(file);
}

}  // namespace

void stats_begin(const Operation &operation) {
    static const bool writes = settings().stats_file && atexit(write_table) == 0;
    static_cast<void>(writes);
    running = &table()[operation.name];
    started = now();
}
void stats_end(const Operation &, bool finished) {
    running->seconds += now() - started;
    running->launches += finished;
    running = nullptr;
}
void stats_threads(uint64_t threads) {
    running->threads += threads;
}
CudasimStats *stats_running() {
    return running;
}

}  // namespace cudasim

void cudasim_stats_each(void (*visit)(const char *name, const CudasimStats *stats, void *context), void *context) {
    for (const auto &[name, stats] : cudasim::table())
        visit(name.c_str(), &stats, context);
}
void cudasim_stats_reset(void) {
    cudasim::table().clear();
}
