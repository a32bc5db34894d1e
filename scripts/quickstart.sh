#!/usr/bin/env bash
# From nothing to a trained model: install what is missing, build, make token shards of Webster's dictionary of 1913,
# train a small LLaMA on them for about four minutes, print what it writes, and draw its loss. Run it again: what is done
# stays done, an interrupted run goes on.
#
#   scripts/quickstart.sh [--minutes N] [--again]
#
#   --minutes N   train for about N minutes (4) instead
#   --again       put a finished run aside and train once more
set -euo pipefail
cd "$(dirname "$0")/.."

TEXT=/usr/share/dictd/gcide.dict.dz # package dict-gcide: Webster of 1913 (public domain) as the GNU project keeps it
SHARDS=shards/gcide
RUN=runs/quickstart
PYTHON=${PYTHON:-/usr/bin/python3}
VOCAB=2048 SEQ_LEN=256 MICRO_BATCH=8
# 4.3 M parameters: within four minutes on two cores, larger models see too little text.
MODEL=(--model llama-tiny --layers 4 --heads 4 --channels 256 --seq-len "$SEQ_LEN")

minutes=4 again=
while [ $# -gt 0 ]; do
    case $1 in
        --minutes)
            minutes=${2:-}
            [[ $minutes =~ ^[0-9]+([.][0-9]+)?$ ]] || { echo "quickstart.sh: --minutes needs a number" >&2; exit 2; }
            shift
            ;;
        --again) again=1 ;;
        -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' scripts/quickstart.sh && exit 0 ;;
        *) echo "quickstart.sh: unknown argument '$1' (known: --minutes N, --again)" >&2 && exit 2 ;;
    esac
    shift
done

# The dictionary's entries, one a document, with a blank line between them. Broken lines are joined; pronunciations,
# etymologies and sources are left out, so that plain prose is what remains of
#
#   Affatuate \Af*fat"u*ate\, v. t. [L. ad + fatuus foolish.]
#      To infatuate. [Obs.] --Milton.
entries() {
    zcat $TEXT | LC_ALL=C awk '
        function flush() {
            gsub(/ *\\[^\\]*\\/, "", paragraph)
            gsub(/ \([^() ]*\[[^()]*\)/, "", paragraph)
            gsub(/\[ae\]/, "ae", paragraph)
            while (gsub(/ *\[[^][]*\]/, "", paragraph)) {}
            gsub(/[{}]/, "", paragraph)
            sub(/ *--[A-Z][A-Za-z.&, ]*$/, "", paragraph)
            if (paragraph ~ /[a-z]/) { print (begins ? "\n" : "") paragraph; begins = 0 }
            paragraph = ""
        }
        /^[^ ].*\\.*\\/ { flush(); begins = started = 1 }
        !started || /^ *(\[[^]]*\])?$/ { flush(); next }
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
common=("${MODEL[@]}" --train "$SHARDS/train_*.h5" --val "$SHARDS/val_*.h5" --micro-batch "$MICRO_BATCH"
    --dtype "$dtype" --lr 4e-3 --min-lr 1e-4)

values() { # values KEY EVENT FILE: what the events of this kind say under this key, one number a line
    sed -n "/\"event\":\"$2\"/s/.*\"$1\":\([-+0-9.eE]*\).*/\1/p" "$3"
}
finished() { # an interrupted run has an end as well, at an earlier step
    [ -s $RUN/steps ] && [ -e $RUN/log.jsonl ] &&
        [ "$(values step end $RUN/log.jsonl | tail -n 1)" = "$(cat $RUN/steps)" ]
}

echo "== 4/5 training in $RUN"
if [ -n "$again" ] && finished; then
    aside=$RUN-$(date +%Y%m%d-%H%M%S)
    mv $RUN "$aside" && echo "The finished run is now $aside."
fi
if finished; then
    echo "Finished before, $(cat $RUN/steps) steps. Train once more: scripts/quickstart.sh --again"
else
    # The schedule needs a number of steps: measure this machine's speed for a few seconds. A run that goes on has one.
    if [ ! -s $RUN/steps ]; then
        mkdir -p $RUN
        trial=$(mktemp -d)
        trap 'rm -rf "$trial"' EXIT
        echo "Measuring speed ($dtype) …"
        if ! ./train_gpt "${common[@]}" --steps 20 --out "$trial" >"$trial/output" 2>&1; then
            cat "$trial/output" >&2
            exit 1
        fi
        median=$(values tokens_per_s step "$trial/log.jsonl" | sort -g | sed -n 10p)
        awk -v speed="$median" -v batch=$((MICRO_BATCH * SEQ_LEN)) -v minutes="$minutes" \
            'BEGIN { steps = int(60 * minutes * speed / batch); print steps < 20 ? 20 : steps }' >$RUN/steps
        echo "$(cat $RUN/steps) steps of $((MICRO_BATCH * SEQ_LEN)) tokens, about $minutes minutes."
    else
        echo "Going on with a run of $(cat $RUN/steps) steps."
    fi
    steps=$(cat $RUN/steps)
    ./train_gpt "${common[@]}" --steps "$steps" --warmup $((steps / 20 + 1)) --eval-every $((steps / 10 + 1)) \
        --sample-every $((steps / 10 + 1)) --checkpoint-every $((steps / 4 + 1)) --keep 1 --temperature 0.7 \
        --out $RUN || {
        code=$?
        [ $code -ne 3 ] || echo "Interrupted, and saved. Run scripts/quickstart.sh again to go on."
        exit $code
    }
fi

echo "== 5/5 what came of it"
"$PYTHON" - $RUN/log.jsonl <<'EOF'
import json, sys
samples = [event for event in map(json.loads, open(sys.argv[1])) if event["event"] == "sample"]
for event in [samples[0], *samples[-3:]] if len(samples) > 3 else samples:
    print(f"It wrote after step {event['step']}:\n\n{event['text'].strip()}\n")
EOF
"$PYTHON" scripts/plot.py $RUN/log.jsonl --out $RUN/loss.png
printf 'Validation loss %.4f after %d steps.\n' "$(values val_loss eval $RUN/log.jsonl | tail -n 1)" "$(cat $RUN/steps)"
echo "Log: $RUN/log.jsonl  Plot: $RUN/loss.png"
