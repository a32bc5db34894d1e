#!/usr/bin/env bash
# The full product behind test/test_reshard.py: 96 checkpoints (ranks × stage × tying × dtype; model and shard group take
# turns), each loaded by 1 to 4 ranks in all stages: the same bits of state, and the run goes on as if it had never stopped
# (other numbers of ranks: to rounding). 1,536 loads, more than an hour on two cores. The last line is a summary.
#
#   dev/reshard.sh [--part I/K]
set -euo pipefail
cd "$(dirname "$0")/.."
make -j"$(nproc)" build/release/train_gpt build/release/train_gpt_hooks >/dev/null
exec /usr/bin/python3 dev/reshard.py "$@"
