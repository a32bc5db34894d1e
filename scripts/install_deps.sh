#!/usr/bin/env bash
# Install what zero.c needs and this machine lacks (Debian 12, Ubuntu 22.04 or later), as root or through sudo.
# Asks nothing, and does nothing when nothing is missing.
#
#   scripts/install_deps.sh [--check] [build] [data] [test]      default: all three groups
#
#   build   compiler, HDF5, cJSON, oneDNN, OpenBLAS, OpenMPI: what `make` looks for
#   data    Python with h5py, sentencepiece and matplotlib, and a dictionary to train on: shards, plots, quickstart.sh
#   test    cmocka: what `make test` needs besides
#   --check only say what is missing; exit status 1 if something is
set -euo pipefail

declare -A packages=(
    [build]="build-essential pkg-config libhdf5-dev libcjson-dev libdnnl-dev libopenblas-dev liburing-dev libopenmpi-dev openmpi-bin procps"
    [data]="python3 python3-numpy python3-h5py python3-sentencepiece python3-matplotlib dict-gcide"
    [test]="libcmocka-dev python3 python3-numpy python3-h5py python3-matplotlib iproute2 procps fio clang libclang-rt-dev
        slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins"
)

check=
groups=()
for argument in "$@"; do
    case $argument in
        --check) check=1 ;;
        build | data | test) groups+=("$argument") ;;
        -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && exit 0 ;;
        *) echo "install_deps.sh: unknown argument '$argument' (known: --check build data test)" >&2 && exit 2 ;;
    esac
done
[ ${#groups[@]} -gt 0 ] || groups=(build data test)

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "install_deps.sh knows Debian and Ubuntu only. Install what these Debian packages hold, then run make:" >&2
    for group in "${groups[@]}"; do echo "  ${packages[$group]}" >&2; done
    exit 1
fi

# clang's runtimes are a package of their own in Debian 12; Ubuntu 22.04 has them in another that comes with clang.
unknown() { [ "$1" = libclang-rt-dev ] && ! apt-cache show "$1" >/dev/null 2>&1; }

find_missing() {
    local package status
    missing=()
    for package in $(for group in "${groups[@]}"; do echo "${packages[$group]}"; done | tr ' ' '\n' | sort -u); do
        status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
        [ "$status" = installed ] || unknown "$package" || missing+=("$package")
    done
}
find_missing
if [ ${#missing[@]} -eq 0 ]; then
    echo "Packages (${groups[*]}): all installed."
    exit 0
fi
echo "Packages (${groups[*]}): missing ${missing[*]}"
[ -z "$check" ] || exit 1

root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "Run this as root, or install sudo: packages are missing and cannot be installed." >&2
        exit 1
    fi
    root=(sudo)
fi
echo "Installing them with apt-get …"
"${root[@]}" apt-get -qq update
find_missing # more packages are known now
"${root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq install -y --no-install-recommends "${missing[@]}" </dev/null
