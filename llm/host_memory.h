// host_memory: how much memory a process may have.
#ifndef LLM_HOST_MEMORY_H
#define LLM_HOST_MEMORY_H

#include <stddef.h>

// Bytes that the host, or the cgroup that this process runs in (a container's, Slurm's), lets its processes have; 0: not
// known.
size_t host_memory_size(void);

#endif
