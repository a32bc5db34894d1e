#!/usr/bin/env bash
# Run the test programs of one build and the Python tests; called by `make test` and scripts/test.sh.
#
#   BUILD=build/release scripts/run_tests.sh [--c-only] [--max-seconds N]
#
# The last line is `N passed, N failed, N skipped`, counting single tests; the exit status is 1 if any failed. A program
# that crashes or runs into its time limit (TEST_TIMEOUT seconds, 240) counts as one failure more. Fast programs run
# first: build/test_times remembers. --c-only leaves the Python tests out; --max-seconds leaves out programs that took
# longer when they last ran without it (sanitizers are slow).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

BUILD=${BUILD:-build/release}
TIMES=build/test_times
PYTHON=${PYTHON:-/usr/bin/python3} # the one that Debian's packages install into
export BUILD TRAIN_GPT=${TRAIN_GPT:-$BUILD/train_gpt}
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
# Tests run several programs at once; threads that spin at barriers would take each other's cores.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
c_only='' max_seconds=''
while [ $# -gt 0 ]; do
    case $1 in
        --c-only) c_only=1 ;;
        --max-seconds) max_seconds=$2 && shift ;;
        *) echo "run_tests.sh: unknown argument '$1'" >&2 && exit 2 ;;
    esac
    shift
done

output=$(mktemp) || exit 1
trap 'rm -f "$output"' EXIT
mkdir -p build && touch "$TIMES"

# One line a program that is to be run: seconds of the last run, path.
programs() {
    local sources=(test/test_*.c) path
    [ -n "$c_only" ] || sources+=(test/test_*.py)
    for path in "${sources[@]}"; do
        [ -e "$path" ] || continue
        name=$(basename "${path%.*}")
        seconds=$(awk -v name="$name" '$1 == name { s = $2 } END { print s + 0 }' "$TIMES")
        case $path in *.c) path=$BUILD/test/$name ;; esac
        echo "$seconds $path"
    done | sort -n -k1,1 -k2,2
}

# Counts "passed failed skipped" of cmocka's output. Tests may nest, where a test runs a program of tests: of these only
# results count, for programs that were meant to die are judged by the outer test. An outer test that began and did not
# report failed with its program. A result without a beginning is cmocka's list at the end.
count_cmocka() {
    awk '
        { at = index($0, "] "); name = substr($0, at + 2) }
        /\[ RUN      \] / { open[++depth] = name; next }
        /\[       OK \] |\[  SKIPPED \] |\[  FAILED  \] / {
            for (i = depth; i > 0 && open[i] != name; i--) {}
            if (i == 0) next
            depth = i - 1
            if (/\[       OK \]/) passed++; else if (/\[  SKIPPED \]/) skipped++; else failed++
        }
        END { print passed + 0, failed + (depth > 0), skipped + 0 }' "$1"
}

# The same of unittest's last lines: "Ran 7 tests in 0.1s", "FAILED (failures=1, errors=1, skipped=2)".
count_unittest() {
    awk '
        function number(key) { return match($0, key "=[0-9]+") ? substr($0, RSTART + length(key) + 1) + 0 : 0 }
        /^Ran [0-9]+ tests? in / { ran = $2 }
        /^(OK|FAILED)( \(|$)/ { failed = number("failures") + number("errors"); skipped = number("skipped") }
        END { passed = ran - failed - skipped; print (passed > 0 ? passed : 0), failed + 0, skipped + 0 }' "$1"
}

total_passed=0 total_failed=0 total_skipped=0
while read -r last_seconds path; do
    name=$(basename "${path%.py}")
    if [ -n "$max_seconds" ] && awk "BEGIN { exit !($last_seconds > $max_seconds) }"; then
        printf '  - %-22s left out: it took %s s in another build\n' "$name" "$last_seconds"
        continue
    fi
    start=$(date +%s%N)
    case $path in
        *.py) timeout -k 5 "${TEST_TIMEOUT:-240}" "$PYTHON" "$path" ;;
        *) timeout -k 5 "${TEST_TIMEOUT:-240}" "$path" ;;
    esac >"$output" 2>&1 </dev/null
    code=$?
    seconds=$(awk "BEGIN { printf \"%.1f\", ($(date +%s%N) - $start) / 1e9 }")
    case $path in
        *.py) counts=$(count_unittest "$output") ;;
        *) counts=$(count_cmocka "$output") ;;
    esac
    read -r passed failed skipped <<<"$counts"
    if [ $code -ne 0 ] && [ "$failed" -eq 0 ]; then failed=1; fi   # it died outside of a test
    if [ $((passed + failed + skipped)) -eq 0 ]; then failed=1; fi # it ran nothing
    mark=✓
    [ "$failed" -eq 0 ] || mark=✗
    printf '  %s %-22s %4d passed %2d failed %2d skipped %7s s\n' \
        $mark "$name" "$passed" "$failed" "$skipped" "$seconds"
    if [ "$failed" -gt 0 ]; then
        case $code in
            124 | 137) echo "    stopped after ${TEST_TIMEOUT:-240} s (TEST_TIMEOUT)" ;;
            *) echo "    exit status $code; the end of its output:" ;;
        esac
        tail -n 60 "$output" | sed 's/^/    | /'
    elif [ "$skipped" -gt 0 ]; then
        grep -i 'skip' "$output" | grep -v 'listed below\|^OK (' | sort -u | head -n 20 | sed 's/^/    | /'
    fi
    if [ -z "$max_seconds" ]; then
        { grep -v "^$name " "$TIMES"; echo "$name $seconds"; } >"$TIMES.tmp" && mv "$TIMES.tmp" "$TIMES"
    fi
    total_passed=$((total_passed + passed))
    total_failed=$((total_failed + failed))
    total_skipped=$((total_skipped + skipped))
done < <(programs)

echo "$total_passed passed, $total_failed failed, $total_skipped skipped"
[ "$total_failed" -eq 0 ]
