# shellcheck shell=bash
# A control group of its own for each instance, where no systemd allots one: two
# containers that share one would clear each other's away.

# cgroup_path: where NAME's is; status 1 where there is no unified hierarchy.
cgroup_path() {
    local mount
    mount=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
    [[ -n $mount ]] || return 1
    printf '%s/%s/%s\n' "$mount" "$LAB_CGROUP" "$NAME"
}

# Moves this very process, which systemd-nspawn then inherits.
enter_cgroup() {
    local path
    [[ ! -d /run/systemd/system ]] || return 0
    path=$(cgroup_path) || return 0
    mkdir -p "$path"
    printf '%s\n' "$BASHPID" >"$path/cgroup.procs"
}

remove_cgroup() {
    local path
    path=$(cgroup_path) || return 0
    [[ -d $path ]] || return 0
    wait_until 5 cgroup_removed "$path" || say "the control group $path could not be removed"
}

# The kernel lets go of a dead process only after a moment.
cgroup_removed() {
    find "$1" -depth -type d -exec rmdir {} + 2>/dev/null
    [[ ! -d $1 ]]
}
