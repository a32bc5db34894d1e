#!/usr/bin/env bash
# Train one model with ZeRO stages 0, 1, 2 and 3 on the same data, seed and ranks, and report what each stage costs and
# saves beside what the textbook says: memory, bytes sent, speed, and whether the bits agree. About a minute by default.
#
#   scripts/compare_stages.sh [options] [-- more options for train_gpt]
#
#   --out DIR              report.md, report.json, report.png and the runs' logs go here (runs/compare; it must be new)
#   -n, --ranks N          ranks (2)
#   --model NAME           gpt2-tiny; with gpt2-124m it is the real thing
#   --dtype, --grad-dtype, --reduce-dtype
#                          bf16, param, param: the textbook's 2 bytes each; other dtypes have other formulas
#   --steps N              steps of each run (20)
#   --micro-batch B, --seq-len T, --grad-accum A
#                          4 sequences of 256 tokens, 1
#   --train FILE           token shards; default: makes one of Webster's dictionary, or of numbers where there is none
#   --threads T            threads a rank; default: its share of the cores
#   --overlap-off          also run each stage without overlap
#   --recompute            also run each stage with full recompute
#   --hybrid               also run stage 3 sharded over half of the ranks
#   --bandwidth LIST       put each rank on a host of its own, and run the stages at each rate of a list (1gbit,10gbit)
#                          between them: which stage wins where? The hosts are network namespaces of this machine; needs
#                          root
set -euo pipefail
from=$PWD
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-/usr/bin/python3}
TRAIN_GPT=${TRAIN_GPT:-./train_gpt}
TEXT=/usr/share/dictd/gcide.dict.dz # package dict-gcide
TEXT_BYTES=3000000                  # of it are plenty for a comparison
SUBNET=10.88.0.0/24

usage() { echo "compare_stages.sh: $* (--help lists the options)" >&2; exit 2; }

out=runs/compare ranks=2 model=gpt2-tiny train='' threads='' overlap_off='' recompute='' hybrid='' bandwidth=''
steps=20 micro_batch=4 seq_len=256 grad_accum=1 dtype=bf16 grad_dtype=param reduce_dtype=param
while [ $# -gt 0 ]; do
    case $1 in
        --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
        -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' scripts/compare_stages.sh && exit 0 ;;
        --overlap-off | --recompute | --hybrid)
            name=${1#--} && printf -v "${name//-/_}" 1 && shift && continue ;;
        --) shift && break ;;
    esac
    case $1 in
        -n | --ranks) name=ranks ;;
        --out | --model | --train | --threads | --bandwidth | --steps | --micro-batch | --seq-len | --grad-accum | \
            --dtype | --grad-dtype | --reduce-dtype) name=${1#--} && name=${name//-/_} ;;
        *) usage "unknown option $1" ;;
    esac
    [ $# -ge 2 ] || usage "$1 needs a value"
    case $name in
        ranks | threads | steps | micro_batch | seq_len | grad_accum)
            [[ $2 =~ ^[1-9][0-9]{0,6}$ ]] || usage "$1 must be a number from 1, not '$2'" ;;
        bandwidth)
            [[ $2 =~ ^[0-9.]+[kmg]bit(,[0-9.]+[kmg]bit)*$ ]] || usage "$1 takes rates such as 1gbit,10gbit, not '$2'" ;;
    esac
    [[ ! $name =~ ^(out|train)$ || $2 == /* ]] || set -- "$1" "$from/$2" "${@:3}"
    printf -v "$name" %s "$2"
    shift 2
done
[ -z "$hybrid" ] || [[ $((ranks % 2)) -eq 0 && $ranks -gt 2 ]] || usage "--hybrid needs 4, 6, 8, … ranks, not $ranks"
[ "$steps" -ge 3 ] || usage "--steps must be at least 3: the first two are not counted"
[ -z "$bandwidth" ] || [ "$(id -u)" -eq 0 ] || usage "--bandwidth makes network namespaces, which needs root"
[ ! -e "$out" ] || usage "$out exists: remove it, or choose another --out"
[ -x "$TRAIN_GPT" ] || usage "there is no $TRAIN_GPT: make builds it"
mkdir -p "$out/runs"

# ---- data ----

common=(--model "$model" --seq-len "$seq_len" "$@")
if [ -z "$train" ]; then
    # The model's own vocabulary, though the shard needs less: with a small one the head would cost next to nothing.
    vocab=$("$TRAIN_GPT" --print-config "${common[@]}" | sed -n 's/.*"vocab_size":[[:space:]]*\([0-9]*\).*/\1/p')
    common+=(--vocab-size "$vocab")
    train=$out/data/train_00000.h5
    if [ -e $TEXT ]; then
        zcat $TEXT | { head -c $TEXT_BYTES; cat >/dev/null; } |
            "$PYTHON" data/prepare.py - --tokenizer bytes --out "$out/data" >"$out/prepare.log"
    else
        mkdir -p "$out/data"
        "$PYTHON" - "$train" <<'PY'
import sys, h5py, numpy
with h5py.File(sys.argv[1], "w") as file:  # a walk over 64 tokens: something can be learnt from it
    file["tokens"] = (numpy.cumsum(numpy.random.default_rng(1).integers(-3, 4, 3_000_000)) % 64).astype(numpy.uint16)
    file.attrs["vocab_size"] = 64
PY
    fi
fi
common+=(--train "$train" --dtype "$dtype" --grad-dtype "$grad_dtype" --reduce-dtype "$reduce_dtype" --micro-batch
    "$micro_batch" --grad-accum "$grad_accum" --steps "$steps" --checkpoint-every 0 --resume never)

# ---- the runs ----

cores() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; } # which nproc would heed
hosts=''
launch=(scripts/run_mpirun.sh -n "$ranks" --ranks-per-host "$ranks")
end_hosts() { [ -z "$hosts" ] || scripts/hosts.sh "$hosts" down; }
trap end_hosts EXIT
if [ -n "$bandwidth" ]; then
    hosts=cmp$(LC_ALL=C tr -dc '[:lower:]' </dev/urandom | head -c 4 || true)
    scripts/hosts.sh "$hosts" up "$ranks"
    names=$(seq -s , -f "$hosts%.0f" "$ranks")
    launch=(scripts/hosts.sh exec "${hosts}1" scripts/run_mpirun.sh --hosts "$names" --ranks-per-host 1 --bind none --interface "$SUBNET"
        --ssh-agent "$PWD/scripts/hosts.sh agent" --mca btl_tcp_flags "send,inplace"
        --mca btl_tcp_sndbuf 262144 --mca btl_tcp_rcvbuf 262144)
    [ -n "$threads" ] || threads=$(($(cores) / ranks > 0 ? $(cores) / ranks : 1)) # the hosts share this machine's cores
fi
[ -z "$threads" ] || launch+=(--threads "$threads")
launch+=(--max-restarts 0)

run() { # run NAME options…
    local name=$1
    shift
    printf '%-28s' "$name"
    if ! "${launch[@]}" "$TRAIN_GPT" "${common[@]}" --out "$out/runs/$name" "$@" >"$out/output" 2>&1; then
        echo "failed:"
        tail -n 30 "$out/output"
        exit 1
    fi
    tail -n 1 "$out/output"
}

run_stages() { # run_stages PREFIX
    local stage
    for stage in 0 1 2 3; do run "$1zero-$stage" --zero $stage; done
    for stage in 0 1 2 3; do [ -z "$overlap_off" ] || run "$1zero-$stage-overlap-off" --zero $stage --overlap off; done
    for stage in 0 1 2 3; do [ -z "$recompute" ] || run "$1zero-$stage-recompute" --zero $stage --recompute full; done
    [ -z "$hybrid" ] || run "$1zero-3-hybrid" --zero 3 --shard-group $((ranks / 2))
}

if [ -n "$bandwidth" ]; then
    for rate in ${bandwidth//,/ }; do
        scripts/hosts.sh "$hosts" shape "$rate"
        run_stages "$rate/"
    done
else
    run_stages ''
fi
rm -f "$out/output"

"$PYTHON" scripts/compare_stages.py "$out"
