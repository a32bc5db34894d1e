#!/usr/bin/env bash
# Start training on this machine or on several by ssh, with mpirun (Open MPI 4), and keep it going: a signal makes all
# ranks save and end; after a failure the run starts again from its newest checkpoint.
#
#   scripts/run_mpirun.sh [options] ./train_gpt --model gpt2-124m … --out runs/a
#
# where (hosts must be alike, and see the same program, data and --out directory at the same paths)
#   --hosts A,B,…          hosts, each reachable by ssh without a password; default: this machine
#   --hostfile FILE        the same from a file: `name` or `name slots=K` a line (# starts a comment)
#   -n, --ranks N          ranks in all; default: hosts × ranks a host
#   --ranks-per-host K     default: slots, or ranks ÷ hosts, or one a GPU, or where there is none one a CPU socket
#   --threads T            threads a rank; default: cores of a host ÷ ranks on it
#   --bind core|none       each rank on cores of its own, or (hosts that share a machine, other programs) anywhere
#   --interface NAME       TCP through this interface or subnet (eth0, 10.0.0.0/24); default: Open MPI's choice
#   --ssh-agent COMMAND    what to use instead of ssh, called as COMMAND HOST command…
#   --env NAME[=VALUE]     pass a variable to all ranks (OMP_*, NCCL_*, CUDA_*, LD_LIBRARY_PATH always are). Repeatable
#   --mca KEY VALUE        a parameter of Open MPI. Repeatable
#   --dry-run              print the mpirun command and end
#
# what happens when
#   --max-restarts N       start again after a failure, but not more than N times (3) within
#   --restart-window S     the last S seconds (3600); failures without a new checkpoint in between always count
#   --backoff S            wait S seconds (10) before the first restart, twice as long before each next one, up to 300
#   --save-timeout S       ranks that were asked to stop may take S seconds (600) to save
#   --stall-timeout S      a run that has not renewed OUT/heartbeat.json for S seconds is killed, which is a failure; longer
#                          than its start, a save and a sample take. 0 (default): never
#
# SIGTERM, SIGINT (Ctrl-C), SIGHUP: the ranks get SIGUSR2, drop the unfinished step, save the last finished one and end;
# a second one ends them at once. SIGUSR1: save and go on. Exit status: 0 done, 1 failed (and not, or too often,
# restarted), 2 bad usage, 3 interrupted after saving. 2 and 3 are never restarted. As a systemd service use
# KillMode=mixed, so that ranks get one signal, not two.
set -uo pipefail

MPIRUN=${MPIRUN:-mpirun}

say() { echo "run_mpirun: $*" >&2; }
usage() { say "$* (--help lists the options)"; exit 2; }

# ---- options ----

hosts='' hostfile='' ranks='' ranks_per_host='' threads='' bind=core interface='' agent='' dry_run=''
max_restarts=3 restart_window=3600 backoff=10 save_timeout=600 stall_timeout=0
exports=() mca=()
while [ $# -gt 0 ]; do
    option=$1
    case $option in
        --*=*) # --option=value
            option=${1%%=*}
            set -- "$option" "${1#*=}" "${@:2}"
            ;;
        -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && exit 0 ;;
        --dry-run) dry_run=1 && shift && continue ;;
        --) shift && break ;;
        -*) ;;
        *) break ;;
    esac
    [ $# -ge 2 ] || usage "$option needs a value"
    case $option in
        -n | --ranks | --ranks-per-host | --threads)
            [[ $2 =~ ^[1-9][0-9]{0,5}$ ]] || usage "$option must be a number from 1, not '$2'" ;;
        --bind) [[ $2 =~ ^(core|none)$ ]] || usage "--bind must be core or none, not '$2'" ;;
        --max-restarts | --restart-window | --backoff | --save-timeout | --stall-timeout)
            [[ $2 =~ ^(0|[1-9][0-9]{0,7})$ ]] || usage "$option must be a number from 0, not '$2'" ;;
    esac
    case $option in
        --hosts) hosts=$2 ;;
        --hostfile) hostfile=$2 ;;
        -n | --ranks) ranks=$2 ;;
        --ranks-per-host) ranks_per_host=$2 ;;
        --threads) threads=$2 ;;
        --bind) bind=$2 ;;
        --interface) interface=$2 ;;
        --ssh-agent) agent=$2 ;;
        --env) exports+=(-x "$2") ;;
        --mca)
            [ $# -ge 3 ] || usage "--mca needs a key and a value"
            mca+=(--mca "$2" "$3") && shift
            ;;
        --max-restarts) max_restarts=$2 ;;
        --restart-window) restart_window=$2 ;;
        --backoff) backoff=$2 ;;
        --save-timeout) save_timeout=$2 ;;
        --stall-timeout) stall_timeout=$2 ;;
        *) usage "unknown option $option" ;;
    esac
    shift 2
done
[ $# -gt 0 ] || usage "what shall run? e.g. scripts/run_mpirun.sh -n 2 ./train_gpt --model gpt2-tiny …"
program=$(type -P -- "$1") || usage "there is no program $1 (make builds train_gpt)"
program=$(realpath -- "$program")
arguments=("${@:2}")

value_of() { # value_of --option: its value among the program's arguments, or nothing
    local i
    for ((i = 0; i < ${#arguments[@]}; i++)); do
        case ${arguments[i]} in
            "$1") echo "${arguments[i + 1]:-}" ;;
            "$1"=*) echo "${arguments[i]#*=}" ;;
        esac
    done | tail -n 1
}

[ "$stall_timeout" -eq 0 ] || [ -n "$(value_of --out)" ] || usage "--stall-timeout needs the program's --out"
version=$("$MPIRUN" --version 2>/dev/null | head -n 1)
[[ $version == *"(Open MPI) 4."* ]] ||
    usage "this script needs Open MPI 4; $MPIRUN says: ${version:-nothing (package openmpi-bin)}"

command -v pkill >/dev/null || usage "this script needs pkill (package procps)"

# ---- ranks, hosts, threads ----

# One `host slots` a line; slots 0: not given. A host on several lines has that many slots, as batch systems write it.
list_hosts() {
    if [ -n "$hostfile" ]; then
        cat -- "$hostfile"
    else
        tr ',' '\n' <<<"${hosts:-localhost}" | sed 's/:/ slots=/'
    fi | awk '
        { sub(/#.*/, "") }
        NF {
            if (!($1 in lines)) order[++n] = $1
            lines[$1]++
            if (match($0, /slots *= *[0-9]+/)) {
                s = substr($0, RSTART, RLENGTH)
                sub(/[^0-9]*/, "", s)
                slots[$1] += s
            }
        }
        END { for (i = 1; i <= n; i++) { h = order[i]; print h, (slots[h] ? slots[h] : lines[h] > 1 ? lines[h] : 0) } }'
}

[ -z "$hosts" ] || [ -z "$hostfile" ] || usage "--hosts and --hostfile exclude each other"
[ -z "$hostfile" ] || [ -r "$hostfile" ] || usage "cannot read --hostfile $hostfile"
names=() slots=''
while read -r name count; do
    [[ $name =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] || usage "'$name' is not the name of a host"
    names+=("$name")
    [ "${slots:-$count}" = "$count" ] ||
        usage "$name has $count slots, ${names[0]} has $slots: hosts must be alike (0: not given)"
    slots=$count
done < <(list_hosts)
[ ${#names[@]} -gt 0 ] || usage "${hostfile:---hosts} names no host"

gpus=0
if [ "$(value_of --device)" != cpu ] && command -v nvidia-smi >/dev/null; then
    gpus=$(nvidia-smi -L | grep -c '^GPU')
fi
cores=$(lscpu -p=CORE,SOCKET | grep -v '^#' | sort -u | wc -l)
usable=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) # which nproc would heed
[ "$cores" -le "$usable" ] || cores=$usable
if [ -z "$ranks_per_host" ]; then
    if [ "$slots" -gt 0 ]; then
        ranks_per_host=$slots
    elif [ -n "$ranks" ]; then
        ranks_per_host=$(((ranks + ${#names[@]} - 1) / ${#names[@]}))
    elif [ "$gpus" -gt 0 ]; then
        ranks_per_host=$gpus
    else
        ranks_per_host=$(lscpu -p=SOCKET | grep -v '^#' | sort -u | wc -l)
    fi
fi
ranks=${ranks:-$((ranks_per_host * ${#names[@]}))}
[ "$ranks" -le $((ranks_per_host * ${#names[@]})) ] ||
    usage "$ranks ranks do not fit: ${#names[@]} host(s) × $ranks_per_host ranks a host"
threads=${threads:-$(value_of --threads)}
threads=${threads:-$((cores / ranks_per_host > 0 ? cores / ranks_per_host : 1))}
[ -n "$(value_of --threads)" ] || arguments+=(--threads "$threads")

# ---- the mpirun command ----

command=("$MPIRUN" --host "$(printf "%s:$ranks_per_host\n" "${names[@]}" | paste -sd,)" -n "$ranks" --wdir "$PWD")
if [ "$bind" = core ] && [ $((threads * ranks_per_host)) -gt "$cores" ]; then
    say "$ranks_per_host ranks × $threads threads share $cores cores: not bound to cores"
    bind=none
fi
if [ "$bind" = core ]; then
    command+=(--map-by "ppr:$ranks_per_host:node:PE=$threads" --bind-to core)
else
    command+=(--map-by "ppr:$ranks_per_host:node" --bind-to none --oversubscribe)
fi
for name in $(compgen -e | grep -E '^((OMP|NCCL|CUDA)_|LD_LIBRARY_PATH$)' | grep -v '^OMP_NUM_THREADS$'); do
    command+=(-x "$name")
done
command+=(-x "OMP_NUM_THREADS=$threads" "${exports[@]}")
[ -z "$agent" ] || command+=(--mca plm rsh --mca plm_rsh_agent "$agent")
if [ -n "$interface" ]; then
    command+=(--mca pml ob1 --mca btl "self,vader,tcp")
    command+=(--mca btl_tcp_if_include "$interface" --mca oob_tcp_if_include "$interface")
    [[ $interface == */* ]] || command+=(-x "NCCL_SOCKET_IFNAME=$interface")
fi
# Not set: odls_base_sigkill_timeout. mpirun gives ranks one second from SIGTERM to SIGKILL, too short to save, but it
# waits twice that long whenever a rank has failed, even if none is left. So ranks save on SIGUSR2, not on SIGTERM.
# A host that has gone (power, cable) is noticed after 5 + 3 · 2 seconds, not after hours.
command+=(--mca oob_tcp_keepalive_time 5 --mca oob_tcp_keepalive_intvl 2 --mca oob_tcp_keepalive_probes 3)
command+=("${mca[@]}" "$program" "${arguments[@]}")
if [ "$(id -u)" -eq 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi

if [ -n "$dry_run" ]; then
    printf '%q ' "${command[@]}"
    echo
    exit 0
fi

# ---- one run: signals are passed on, and who does not answer is ended ----

KILL_SECONDS=10 # from SIGTERM to SIGKILL
END_SECONDS=5   # mpirun needs about two to end after ranks with another status than 0; a SIGTERM then would crash it
pid='' asked=0 deadline=''

# Ask the run to stop, each time more firmly: by signal to this script, and when a deadline has passed.
stop_harder() {
    asked=$((asked + 1))
    [ -n "$pid" ] || return
    case $asked in
        1)
            say "asked to stop: the ranks save and end (up to $save_timeout s; once more to end them at once)"
            kill -USR2 "$pid" 2>/dev/null
            deadline=$((SECONDS + save_timeout + END_SECONDS))
            ;;
        2)
            say "ending the ranks at once"
            kill -TERM "$pid" 2>/dev/null
            deadline=$((SECONDS + KILL_SECONDS))
            ;;
        *)
            say "killing what does not end"
            pkill -KILL -s "$pid" # mpirun's session: the ranks here; daemons elsewhere follow when they lose mpirun
            deadline=''
            ;;
    esac
}
trap stop_harder TERM INT HUP
trap '[ -z "$pid" ] || kill -USR1 "$pid" 2>/dev/null' USR1

# Neither a heartbeat nor the start of this run lies within the last --stall-timeout seconds.
is_stalled() { # is_stalled SECONDS_AT_START
    local beat now
    now=$(date +%s)
    beat=$(stat -c %Y "$out/heartbeat.json" 2>/dev/null || echo 0)
    [ $((SECONDS - $1)) -gt "$stall_timeout" ] && [ $((now - beat)) -gt "$stall_timeout" ]
}

run_once() { # sets status
    # In a session of its own, so that Ctrl-C reaches this script only.
    setsid "${command[@]}" </dev/null &
    pid=$!
    deadline=''
    local start=$SECONDS stalled=''
    while kill -0 "$pid" 2>/dev/null; do
        sleep 1 >/dev/null 2>&1 &
        wait -n "$pid" $! # the run has ended, or a second has passed, or a signal has come
        [ -z "$deadline" ] || [ $SECONDS -lt "$deadline" ] || stop_harder
        if [ "$stall_timeout" -gt 0 ] && [ $asked -eq 0 ] && [ -z "$stalled" ] && is_stalled "$start"; then
            say "no heartbeat for $stall_timeout s: killing the run"
            stalled=1
            pkill -KILL -s "$pid"
        fi
    done
    wait "$pid"
    status=$?
    pid=''
}

# ---- again and again ----

out=$(value_of --out) resume=$(value_of --resume)
newest_checkpoint() { # names without .tmp are complete
    [ -z "$out" ] || find "$out/" -maxdepth 1 -type d -name 'step_*' ! -name '*.*' 2>/dev/null | sort | tail -n 1
}

say "$ranks rank(s) on ${#names[@]} host(s), $ranks_per_host a host, $threads thread(s) a rank"
failures=() checkpoint=$(newest_checkpoint)
while :; do
    run_once
    case $status in
        0 | 2 | 3) exit $status ;;
    esac
    say "the run failed (mpirun's exit status $status)"
    if [ $asked -gt 0 ]; then
        say "it was asked to stop and ended before it said that it had saved; newest checkpoint: $(newest_checkpoint)"
        exit 1
    fi
    if [ -z "$out" ]; then
        say "not restarted: without --out there is no checkpoint to go on from"
        exit 1
    fi
    if [ "${resume:-auto}" != auto ]; then
        say "not restarted: --resume $resume would not go on from the newest checkpoint"
        exit 1
    fi

    previous=$checkpoint
    checkpoint=$(newest_checkpoint)
    recent=()
    for at in "${failures[@]}"; do
        if [ "$checkpoint" = "$previous" ] || [ $((SECONDS - at)) -lt "$restart_window" ]; then recent+=("$at"); fi
    done
    failures=("${recent[@]}" $SECONDS)
    if [ ${#failures[@]} -gt "$max_restarts" ]; then
        say "giving up at failure ${#failures[@]}: --max-restarts is $max_restarts within $restart_window s"
        exit 1
    fi
    pause=$backoff
    for ((i = 1; i < ${#failures[@]} && pause < 300; i++)); do pause=$((2 * pause)); done
    [ "$pause" -le 300 ] || pause=300
    from=${checkpoint:-the beginning: there is no checkpoint yet}
    say "restart ${#failures[@]} of $max_restarts in $pause s, from $from"
    resume_at=$((SECONDS + pause))
    while [ $SECONDS -lt $resume_at ] && [ $asked -eq 0 ]; do
        sleep 1 >/dev/null 2>&1 &
        wait $!
    done
    [ $asked -eq 0 ] || { say "asked to stop while waiting: not restarted"; exit 1; }
done
