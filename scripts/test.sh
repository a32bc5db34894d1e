#!/usr/bin/env bash
# Install what is missing, build, and run every test: all of them in the release build, then the fast ones once more
# under AddressSanitizer and UBSan. The last line is `N passed, N failed, N skipped` for the whole run; the exit status
# is 1 if any failed.
#
#   scripts/test.sh
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
SANITIZED_MAX_SECONDS=10 # programs that take longer in the release build are left out of the sanitized run

output=$(mktemp) || exit 1
trap 'rm -f "$output"' EXIT
passed=0 failed=0 skipped=0

finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
    exit
}

stage() { # stage 'title' command…: one thing that must work; nothing after it makes sense if it does not
    echo "== $1"
    shift
    "$@" && return
    echo "FAILED: $*"
    failed=$((failed + 1))
    finish
}

tests() { # tests 'title' arguments of run_tests.sh…: run, and add its counts to the whole
    echo "== $1"
    shift
    env "$@" | tee "$output"
    if [[ $(tail -n 1 "$output") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
        passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2])) skipped=$((skipped + BASH_REMATCH[3]))
    else
        failed=$((failed + 1))
    fi
}

stage "packages" scripts/install_deps.sh build data test
stage "build" make -j"$(nproc)" tests
tests "tests" BUILD=build/release scripts/run_tests.sh
stage "build with AddressSanitizer and UBSan" make -j"$(nproc)" SANITIZE=1 tests
tests "tests under the sanitizers" \
    BUILD=build/sanitize scripts/run_tests.sh --c-only --max-seconds $SANITIZED_MAX_SECONDS
finish
