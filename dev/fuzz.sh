#!/usr/bin/env bash
# Run the fuzz targets of test/fuzz for a while, with what earlier runs found interesting (build/fuzz/corpus).
#
#   dev/fuzz.sh [MINUTES]     in all, 10 if left out        TARGETS="fuzz_shard …" dev/fuzz.sh      only these
#
# An input that crashes, leaks, hangs or asks for too much memory is left in build/fuzz/findings and named. Put it into
# test/fuzz/corpus/ with a name that says what it is: test/test_fuzz.py runs all of these.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
minutes=${1:-10}
[[ $minutes =~ ^[1-9][0-9]*$ ]] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' dev/fuzz.sh >&2; exit 2; }

nice -n 19 make -s fuzz || exit 1
read -ra targets <<<"${TARGETS:-$(basename -a test/fuzz/fuzz_*.c | sed 's/\.c$//' | xargs)}"
seconds=$((minutes * 60 / ${#targets[@]}))
mkdir -p build/fuzz/findings
failed=0
for target in "${targets[@]}"; do
    name=${target#fuzz_}
    echo "== $target, $seconds s"
    mkdir -p "build/fuzz/corpus/$name"
    nice -n 19 "build/fuzz/$target" -max_total_time=$seconds -max_len=16384 -timeout=20 -rss_limit_mb=1024 \
        -malloc_limit_mb=256 -print_final_stats=1 -verbosity=0 -artifact_prefix="build/fuzz/findings/$name-" \
        "build/fuzz/corpus/$name" "test/fuzz/corpus/$name" || failed=$((failed + 1))
done
echo "$failed of ${#targets[@]} targets found something$([ $failed = 0 ] || echo ": see build/fuzz/findings")"
[ $failed = 0 ]
