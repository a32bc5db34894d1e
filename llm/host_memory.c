#include "llm/host_memory.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

size_t host_memory_size(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    size_t bytes = pages > 0 && page_bytes > 0 ? (size_t)pages * (size_t)page_bytes : 0;
    char line[2048], path[2112];
    FILE *file = fopen("/proc/self/cgroup", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, "0::", 3) != 0)  // version 2
            continue;
        snprintf(path, sizeof path, "/sys/fs/cgroup%.*s/memory.max", (int)strcspn(line + 3, "\n"), line + 3);
        FILE *limit = fopen(path, "r");
        unsigned long long most;
        if (limit && fscanf(limit, "%llu", &most) == 1 && most < bytes)  // or "max"
            bytes = (size_t)most;
        if (limit)
            fclose(limit);
    }
    if (file)
        fclose(file);
    return bytes;
}
