// report: how the simulator says what it found.
#ifndef DEV_CUDASIM_REPORT_H
#define DEV_CUDASIM_REPORT_H

namespace cudasim {

// Print "==CUDASIM: …" with the kernel, block and thread that run now, or the stream operation; then abort.
[[noreturn]] void fatal(const char *format, ...) __attribute__((format(printf, 1, 2)));
void print_where();

}  // namespace cudasim

#endif
