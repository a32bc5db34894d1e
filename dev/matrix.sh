#!/usr/bin/env bash
# The full product behind test/test_zero_bits.py: ranks × model × dtypes × accumulation × tying × shard group, each in all
# stages, with clipping, optimizer, overlap, recompute, head chunk, delays and resume taking turns. About 2,000 short runs, 25
# minutes on two cores: a call can be stopped and goes on where it was (build/matrix.jsonl, as long as the program is the
# same). The last line is a summary with the number of configurations; the exit status is 1 if any differed.
#
#   dev/matrix.sh [--part I/K] [--ranks N] [--offload] [--again] [--device cudasim]
#       --device cudasim: on simulated GPUs instead: ranks × dtype × model × accumulation × stage × orders of streams,
#       blocks and threads, memory protected from the host, ASan and the race build; 960 runs
#       --offload: each way to offload in each stage instead of what else must not matter
#   dev/matrix.sh --memory     instead: VmHWM of a rank between the stages of gpt2-124m on four ranks (about 10 GB)
set -euo pipefail
cd "$(dirname "$0")/.."
programs='build/release/train_gpt build/release/train_gpt_hooks'
case " $* " in *" cudasim "*) programs='build/cudasim/plain/train_gpt build/cudasim/sanitize/train_gpt build/cudasim/race/train_gpt' ;; esac
make -j"$(nproc)" $programs >/dev/null
if [ "${1:-}" = --memory ]; then
    ZERO_MEMORY_MODEL=gpt2-124m exec /usr/bin/python3 test/test_zero_counts.py -v ResidentMemory
fi
exec /usr/bin/python3 dev/matrix.py "$@"
