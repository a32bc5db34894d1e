#!/bin/sh
# What can this machine compile and link? Writes Makefile variables to stdout and a report to stderr. Called by the Makefile.
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
CC=${CC:-gcc}

links() { # links 'C line' flags…: does a program with this line compile and link?
    printf '%s\nint main(void) { return 0; }\n' "$1" >"$tmp/p.c"
    shift
    $CC -o "$tmp/p" "$tmp/p.c" "$@" >"$tmp/log" 2>&1
}
yes() { echo "  ✓ $1" >&2; }
no() { echo "  ✗ $1" >&2; }
need() { echo "  ✗ $1" >&2; echo "Install it with scripts/install_deps.sh (Debian, Ubuntu), then run make again." >&2; exit 1; }

echo "zero.c: what this machine has" >&2
cflags= libs=

links '#include <omp.h>
int f(void) { return omp_get_max_threads(); }' -fopenmp || need "OpenMP in $CC (package gcc, or libomp-dev for clang)"
yes "OpenMP ($CC)"

found=
for flags in "" "-I/usr/include/hdf5/serial -L/usr/lib/$(uname -m)-linux-gnu/hdf5/serial" "$(pkg-config --cflags --libs hdf5 2>/dev/null)"; do
    if links '#include <hdf5.h>
herr_t f(void) { return H5open(); }' $flags -lhdf5; then found=1; break; fi
done
[ "$found" ] || need "HDF5 (package libhdf5-dev)"
yes "HDF5"
for f in $flags; do case $f in -I*) cflags="$cflags $f" ;; -L*) libs="$libs $f" ;; esac; done
libs="$libs -lhdf5"

found=
for inc in "" "-I/usr/include/cjson"; do
    if links '#include <cjson/cJSON.h>
void f(void) { cJSON_Delete(cJSON_Parse("{}")); }' $inc -lcjson; then found=1; break; fi
done
[ "$found" ] || need "cJSON (package libcjson-dev)"
yes "cJSON"
libs="$libs -lcjson"

onednn=0
if [ "$ONEDNN" != 0 ] && links '#include <oneapi/dnnl/dnnl.h>
#if DNNL_VERSION_MAJOR != 2
#error "zero.c uses the C API of oneDNN 2"
#endif
const dnnl_version_t *f(void) { return dnnl_version(); }' -ldnnl; then
    onednn=1; yes "oneDNN: matmul in fp32 and bf16"; cflags="$cflags -DHAVE_ONEDNN"; libs="$libs -ldnnl"
else no "oneDNN 2 (package libdnnl-dev): bf16 will run at fp32 speed"; fi
if links '#include <cblas.h>
void f(void) { cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 1); }' -lopenblas; then
    if [ $onednn = 0 ]; then yes "OpenBLAS: matmul in fp32"; cflags="$cflags -DHAVE_OPENBLAS"; libs="$libs -lopenblas"; fi
elif [ $onednn = 0 ]; then need "a matmul library: oneDNN 2 (libdnnl-dev) or OpenBLAS (libopenblas-dev)"; fi

if links '#include <liburing.h>
void f(struct io_uring *r) { io_uring_queue_init(8, r, 0); }' -luring; then
    yes "liburing: --offload-optimizer nvme"; cflags="$cflags -DHAVE_LIBURING"; libs="$libs -luring"
else no "liburing (package liburing-dev): offload to NVMe goes through threads"; fi

mpi=0
if [ "$MPI" != 0 ] && command -v mpicc >/dev/null 2>&1; then
    # mpicc's own flags, without the C++ and Fortran wrappers' extras
    mc=$(mpicc --showme:compile 2>/dev/null) ml=$(mpicc --showme:link 2>/dev/null)
    if links '#include <mpi.h>
int f(void) { return MPI_Init(0, 0); }' $mc $ml; then
        mpi=1; yes "MPI: many ranks with mpirun"; cflags="$cflags -DHAVE_MPI $(echo "$mc" | sed 's/-pthread//')"; libs="$libs $ml"
    fi
fi
[ $mpi = 1 ] || no "MPI (package libopenmpi-dev): one rank only"

echo "FOUND_CFLAGS := $cflags"
echo "FOUND_LIBS := $libs"
echo "HAVE_MPI := $mpi"
