#include "dev/cudasim/report.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "dev/cudasim/block.h"
#include "dev/cudasim/stream.h"

namespace cudasim {

void print_where() {
    if (current_thread)
        fprintf(stderr, "    in kernel %s, block (%u,%u,%u), thread (%u,%u,%u)\n", running_operation->name.c_str(),
                block_index.x, block_index.y, block_index.z, thread_index.x, thread_index.y, thread_index.z);
    else if (running_operation)
        fprintf(stderr, "    in %s on stream %d\n", running_operation->name.c_str(), running_operation->stream);
}

void fatal(const char *format, ...) {
    fflush(stdout);
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "\n==CUDASIM: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    print_where();
    abort();
}

}  // namespace cudasim
