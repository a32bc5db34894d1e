#include "zero/heartbeat.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "zero/comm.h"
#include "zero/durable.h"

static const double PERIOD = 1.0;  // seconds

void heartbeat(const char *out, int64_t step) {
    static double last = -1e9;
    char path[PATH_BYTES], next[PATH_BYTES], host[256] = "";
    double now = comm_clock();
    if (!out || now - last < PERIOD)
        return;
    last = now;
    if (durable_join(path, out, "heartbeat.json") != OK || durable_join(next, out, "heartbeat.json.tmp") != OK) {
        status_clear();
        return;
    }
    FILE *file = fopen(next, "w");
    if (!file)
        return;
    gethostname(host, sizeof host - 1);
    fprintf(file, "{\"step\": %lld, \"time\": %lld, \"pid\": %d, \"host\": \"%s\"}\n", (long long)step,
            (long long)time(NULL), (int)getpid(), host);
    if (fclose(file) == 0)
        rename(next, path);
    else
        unlink(next);
}
