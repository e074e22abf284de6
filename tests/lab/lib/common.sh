# shellcheck shell=bash
# Messages, deadlines and the identity of processes.

readonly EX_USAGE=64 EX_UNAVAILABLE=69

LAB_CACHE=${PROXYD_LAB_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/proxyd-lab}
LAB_RUN=${PROXYD_LAB_RUN:-/var/tmp/proxyd-lab}
readonly LAB_CACHE LAB_RUN

say() {
    printf 'lab: %s\n' "$*" >&2
}

# step TEXT: progress, with the seconds since the program started.
step() {
    printf 'lab: [%3d s] %s\n' "$SECONDS" "$*" >&2
}

die() {
    say "$*"
    exit 1
}

unavailable() {
    say "$*"
    exit "$EX_UNAVAILABLE"
}

need_root() {
    ((EUID == 0)) || unavailable "this needs root (mounts and containers): run it as root"
}

# wait_until SECONDS CMD...: poll CMD until it succeeds; status 1 on timeout.
wait_until() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < deadline)) || return 1
        sleep 0.2
    done
}

# interruptible CMD...: run CMD so that our traps fire while it runs (bash
# defers traps during a foreground command), and end it when we are ended.
interruptible() {
    "$@" <&0 &
    LAB_CHILD=$!
    local code=0
    wait "$LAB_CHILD" || code=$?
    LAB_CHILD=
    return "$code"
}

end_child() {
    if [[ -n ${LAB_CHILD-} ]]; then
        # unshare ignores gentler signals while it waits.
        kill -KILL "$LAB_CHILD" 2>/dev/null || true
        wait "$LAB_CHILD" 2>/dev/null || true
        LAB_CHILD=
    fi
}

# Process ids are reused, so a process is identified by its id, its start time
# (field 22 of stat, counted after the command name, which may hold blanks)
# and the boot that the start time is counted from.
process_identity() {
    local stat fields
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    read -ra fields <<<"${stat##*) }"
    [[ ${fields[0]} != Z ]] || return 1
    printf '%s %s %s\n' "$1" "${fields[19]}" "$(</proc/sys/kernel/random/boot_id)"
}

# recorded_pid FILE: print the pid that FILE records if it is that very process.
recorded_pid() {
    local pid rest
    [[ -e $1 ]] || return 1
    read -r pid rest <"$1" || return 1
    [[ $(process_identity "$pid") == "$pid $rest" ]] || return 1
    printf '%s\n' "$pid"
}
