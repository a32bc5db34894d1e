#!/usr/bin/env bash
# From nothing to a trained model: install what is missing, build, make token shards of Webster's dictionary of 1913,
# train a small GPT on it for about four minutes, print what it writes, and draw its loss. Run it again: what is done
# stays done, an interrupted run goes on.
#
#   scripts/quickstart.sh [--minutes N] [--again]
#
#   --minutes N   train for about N minutes (4) instead
#   --again       put a finished run aside and train once more
set -euo pipefail
cd "$(dirname "$0")/.."

TEXT=/usr/share/dictd/gcide.dict.dz # package dict-gcide: 40 MB of prose, in the public domain
SHARDS=shards/gcide
RUN=runs/quickstart
PYTHON=${PYTHON:-/usr/bin/python3}
VOCAB=4096 SEQ_LEN=256 MICRO_BATCH=8
MODEL=(--model gpt2-tiny --layers 6 --heads 6 --channels 384 --vocab-size "$VOCAB" --seq-len "$SEQ_LEN")

minutes=4 again=
while [ $# -gt 0 ]; do
    case $1 in
        --minutes)
            minutes=${2:-}
            [[ $minutes =~ ^[0-9]+([.][0-9]+)?$ ]] || { echo "quickstart.sh: --minutes needs a number" >&2; exit 2; }
            shift
            ;;
        --again) again=1 ;;
        -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && exit 0 ;;
        *) echo "quickstart.sh: unknown argument '$1' (known: --minutes N, --again)" >&2 && exit 2 ;;
    esac
    shift
done

# The dictionary's entries, one a document, with a blank line between them: an entry begins where a line is not indented.
# Broken lines are joined, and lines that only name a source ("[1913 Webster]") left out.
entries() {
    zcat $TEXT | LC_ALL=C awk '
        function flush() { if (paragraph != "") print (begins ? "\n" : "") paragraph; paragraph = ""; begins = 0 }
        /^ *(\[[^]]*\])?$/ { flush(); next }
        /^[^ ]/ && paragraph == "" { begins = 1 }
        { gsub(/ +/, " "); sub(/^ /, ""); paragraph = paragraph (paragraph == "" ? "" : " ") $0 }
        END { flush() }'
}

echo "== 1/5 packages"
scripts/install_deps.sh build data

echo "== 2/5 build"
make -j"$(nproc)" train_gpt

echo "== 3/5 shards of $TEXT"
if [ -e $SHARDS/train_00000.h5 ] && [ -e $SHARDS/val_00000.h5 ]; then
    echo "Kept: $SHARDS has them."
else
    entries | "$PYTHON" data/prepare.py - --split-on blank-lines --tokenizer sentencepiece --vocab-size $VOCAB --out $SHARDS
fi

# bf16 is the faster dtype only where the CPU multiplies it itself.
dtype=fp32
if grep -qwE 'avx512_bf16|amx_bf16' /proc/cpuinfo; then dtype=bf16; fi
common=("${MODEL[@]}" --train "$SHARDS/train_*.h5" --val "$SHARDS/val_*.h5" --micro-batch "$MICRO_BATCH" --grad-accum 1
    --dtype "$dtype" --lr 1e-3 --min-lr 1e-4 --beta2 0.95 --weight-decay 0.1)

value() { # value KEY EVENT FILE: a number in the last event of that kind
    { grep "\"event\": *\"$2\"" "$3" || true; } | tail -n 1 | sed -n "s/.*\"$1\": *\([-+0-9.eE]*\).*/\1/p"
}
finished() { [ -e $RUN/log.jsonl ] && [ -n "$(value step end $RUN/log.jsonl)" ]; }

echo "== 4/5 training in $RUN"
if finished && [ -n "$again" ]; then
    aside=$RUN-$(date +%Y%m%d-%H%M%S)
    mv $RUN "$aside" && echo "The finished run is now $aside."
fi
if finished; then
    echo "Finished before, $(value step end $RUN/log.jsonl) steps. Train once more: scripts/quickstart.sh --again"
else
    # The schedule needs a number of steps: measure this machine's speed for a few seconds. A run that goes on has one.
    if [ ! -s $RUN/steps ]; then
        mkdir -p $RUN
        trial=$(mktemp -d)
        trap 'rm -rf "$trial"' EXIT
        echo "Measuring speed ($dtype) …"
        if ! ./train_gpt "${common[@]}" --steps 12 --out "$trial" >"$trial/output" 2>&1; then
            cat "$trial/output" >&2
            exit 1
        fi
        awk -v speed="$(value tokens_per_s step "$trial/log.jsonl")" -v batch=$((MICRO_BATCH * SEQ_LEN)) \
            -v minutes="$minutes" 'BEGIN { steps = int(60 * minutes * speed / batch); print steps < 20 ? 20 : steps }' \
            >$RUN/steps
        echo "$(cat $RUN/steps) steps of $((MICRO_BATCH * SEQ_LEN)) tokens, about $minutes minutes."
    else
        echo "Going on with a run of $(cat $RUN/steps) steps."
    fi
    steps=$(cat $RUN/steps)
    ./train_gpt "${common[@]}" --steps "$steps" --warmup $((steps / 20 + 1)) --eval-every $((steps / 10 + 1)) \
        --eval-batches 20 --sample-every $((steps / 3 + 1)) --checkpoint-every $((steps / 4 + 1)) --keep 1 \
        --temperature 0.8 --top-k 50 --resume auto --out $RUN || {
        code=$?
        [ $code -ne 3 ] || echo "Interrupted, and saved. Run scripts/quickstart.sh again to go on."
        exit $code
    }
fi

echo "== 5/5 what came of it"
"$PYTHON" - $RUN/log.jsonl <<'EOF'
import json, sys
texts = [event["text"] for event in map(json.loads, open(sys.argv[1])) if event["event"] == "sample"]
print("It writes:\n\n" + texts[-1].strip() + "\n" if texts else "It wrote no sample.")
EOF
"$PYTHON" scripts/plot.py $RUN/log.jsonl --out $RUN/loss.png
printf 'Validation loss %.4f after %d steps.\n' "$(value val_loss eval $RUN/log.jsonl)" "$(value step end $RUN/log.jsonl)"
echo "Log: $RUN/log.jsonl  Plot: $RUN/loss.png"
