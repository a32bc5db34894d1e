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

# CUDA: one kernel is compiled and linked with what a program with it needs. cudart is linked in; cuBLASLt and NCCL are
# loaded from where the toolkit lies when a GPU is used (llm/cuda/library.cuh); none of them needs the driver. So the
# program starts on a machine without a GPU.
cuda=0 nccl=0 home= archs= cuda_libs=
find_cuda() {
    home=${CUDA_HOME:-$(dirname "$(dirname "$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")")}
    nvcc=$home/bin/nvcc
    [ -x "$nvcc" ] || return
    for dir in "$home/lib64" "$home/lib"; do [ -e "$dir/libcudart_static.a" ] && break; done
    cuda_libs="-L$dir -Wl,-rpath,$dir -lcudart_static -lrt -lstdc++"
    printf '#include <cublasLt.h>\n__global__ void k() {}\nextern "C" size_t f() { k<<<1, 1>>>(); return cublasLtGetVersion(); }\n' >"$tmp/k.cu"
    # For the GPU of this machine if one answers; else for the data centre's and the newest that nvcc knows.
    if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q GPU; then
        archs="-arch=native" names="the GPU here"
    else
        newest=$("$nvcc" --list-gpu-arch | sed 's/compute_//' | sort -n | tail -n 1)
        archs="-gencode arch=compute_80,code=sm_80"
        for a in 90 "$newest"; do archs="$archs -gencode arch=compute_$a,code=[sm_$a,compute_$a]"; done
        names="sm_80, sm_90, sm_$newest and, as PTX, what lies between and after"
    fi
    "$nvcc" $archs -c -o "$tmp/k.o" "$tmp/k.cu" >"$tmp/log" 2>&1 || return
    links 'unsigned long f(void); unsigned long (*g)(void) = f;' "$tmp/k.o" $cuda_libs -lcublasLt -lm -ldl -pthread || return
    cuda=1
    if links '#include <nccl.h>
#if NCCL_VERSION_CODE < 22600
#error "too old"
#endif
int f(int *v) { return ncclGetVersion(v); }' -I"$home/include" -L"$dir" -lnccl; then nccl=1; fi
}
if [ "$CUDA" = 0 ]; then no "CUDA: left out (CUDA=0)"; else find_cuda; fi
if [ $cuda = 1 ]; then
    yes "CUDA: $("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p') in $home, for $names, with cuBLASLt"
    cflags="$cflags -DHAVE_CUDA"
    if [ $nccl = 1 ]; then yes "NCCL: many GPUs"; cflags="$cflags -DHAVE_NCCL"; else no "NCCL (2.26 or newer): one GPU only"; fi
elif [ "$CUDA" != 0 ]; then no "CUDA (nvcc, cudart and cuBLASLt; CUDA_HOME says where): the CPU only"; fi

echo "FOUND_CFLAGS := $cflags"
echo "FOUND_LIBS := $libs"
echo "HAVE_MPI := $mpi"
echo "HAVE_CUDA := $cuda"
echo "HAVE_NCCL := $nccl"
if [ $cuda = 1 ]; then
    echo "NVCC := $nvcc"
    echo "NVCC_ARCHS := $archs"
    echo "CUDA_LIBS := $cuda_libs"
fi
