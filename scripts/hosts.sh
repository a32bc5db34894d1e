#!/usr/bin/env bash
# Hosts on one machine, for tests and for comparing networks: network namespaces on a bridge, with real TCP between
# them, each with its own host name. Needs root and a kernel with network namespaces.
#
#   hosts.sh NAME up N               make hosts NAME1 … NAMEN with the addresses 10.88.0.1 … N (NAME: 1 to 8 letters)
#   hosts.sh NAME shape RATE|off     limit what each host sends, e.g. 1gbit (tc's units), or stop limiting it
#   hosts.sh NAME cut K | mend K     take the link of host K down, or up again
#   hosts.sh NAME down               end what still runs on them and remove them
#   hosts.sh exec HOST command…      run a command on a host
#   hosts.sh agent HOST command…     the same in the way of ssh: --ssh-agent "$PWD/scripts/hosts.sh agent"
#
# Hosts of different NAMEs do not see each other, so several tests can run at once. All hosts share this machine's files
# and cores.
#
# run_mpirun.sh needs --bind none (or two hosts share one core) and --interface 10.88.0.0/24. Near the nominal
# rate with traffic in both directions (Open MPI's default protocol gets half to two thirds of it): --mca btl_tcp_flags
# send,inplace --mca btl_tcp_sndbuf 262144 --mca btl_tcp_rcvbuf 262144. Rates up to 2gbit are kept within a few percent;
# beyond, the cores are the limit.
set -euo pipefail

SUBNET=10.88.0
MTU=9000 # fewer packets: the cores shall not be the bottleneck

fail() { echo "hosts.sh: $*" >&2; exit 1; }

hosts() { # the hosts of $name that exist, one a line
    ip netns list | awk -v name="$name" '$1 ~ "^" name "[0-9]+$" { print $1 }'
}

up() {
    local i host
    ip link add "${name}br" mtu $MTU type bridge
    ip link set "${name}br" up
    for i in $(seq "$1"); do
        host=$name$i
        ip netns add "$host"
        ip link add "${host}p" mtu $MTU type veth peer name e0 mtu $MTU netns "$host"
        ip link set "${host}p" master "${name}br" up
        ip -n "$host" addr add "$SUBNET.$i/24" dev e0
        ip -n "$host" link set lo up
        ip -n "$host" link set e0 up
    done
}

down() {
    local host pids
    for host in $(hosts); do
        pids=$(ip netns pids "$host")
        # shellcheck disable=SC2086 # a list of process ids
        [ -z "$pids" ] || kill -KILL $pids 2>/dev/null || true
        ip link del "${host}p" 2>/dev/null || true
        ip netns del "$host"
    done
    ip link del "${name}br" 2>/dev/null || true
}

shape() {
    local host
    for host in $(hosts); do
        tc -n "$host" qdisc del dev e0 root 2>/dev/null || true
        # Congestion control in both cases, so that only the rate differs: BBR, a common default, paces below it.
        ip -n "$host" route replace $SUBNET.0/24 dev e0 src "$SUBNET.${host#"$name"}" congctl cubic
        [ "$1" = off ] || tc -n "$host" qdisc add dev e0 root tbf rate "$1" burst 128kb latency 5ms
    done
}

on_host() { # on_host HOST program arguments…
    local host=$1
    shift
    # Its own UTS name: ranks that share a host name would expect to share memory.
    # shellcheck disable=SC2016 # expanded by that shell
    exec ip netns exec "$host" unshare --uts sh -c 'hostname "$0" && exec "$@"' "$host" "$@"
}

case ${1:-} in
    exec)
        shift
        on_host "$@"
        ;;
    agent)
        shift
        while [[ ${1:-} == -* ]]; do shift; done # ssh's own options
        host=${1:?hosts.sh agent: no host}
        shift
        on_host "$host" sh -c "$*"
        ;;
    -h | --help | '') sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" ;;
    *)
        name=$1
        [[ $name =~ ^[a-z]{1,8}$ ]] || fail "'$name' is no name for hosts: 1 to 8 lower-case letters"
        [ "$(id -u)" -eq 0 ] || fail "network namespaces need root"
        case "${2:-} $#" in
            "up 3")
                [[ $3 =~ ^[1-9][0-9]?$ ]] || fail "up needs the number of hosts, 1 to 99, not '$3'"
                [ -z "$(hosts)" ] || fail "there are hosts of the name $name: hosts.sh $name down removes them"
                trap down ERR
                up "$3"
                ;;
            "shape 3") shape "$3" ;;
            "cut 3") ip link set "$name${3}p" down ;;
            "mend 3") ip link set "$name${3}p" up ;;
            "down 2") down ;;
            *) fail "usage: see hosts.sh --help" ;;
        esac
        ;;
esac
