# shellcheck shell=bash
# A running instance: where it is, who it is, how to get in, how to end it.
#
#   $LAB_RUN/NAME/{upper,work,root}   overlay file system, merged in root
#   $LAB_RUN/NAME/console.log         what systemd-nspawn and the boot said
#   $LAB_RUN/NAME/supervisor          identity of the systemd-nspawn process
#   $LAB_RUN/NAME/init                identity of the container's process 1
#   $LAB_RUN/.NAME.lock               held while NAME comes up or goes down

readonly STOP_DEADLINE=20

# Instances live beside each other in one control group, each in its own.
readonly LAB_CGROUP=proxyd-lab

# Sets the variables that describe NAME.
instance() {
    [[ $1 =~ ^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$ ]] ||
        usage_error "'$1' is no instance name: small letters, digits and inner dashes, 32 at most"
    NAME=$1
    DIR=$LAB_RUN/$NAME
    ROOT=$DIR/root
}

lock_instance() {
    mkdir -p "$LAB_RUN"
    exec {LOCK_FD}>>"$LAB_RUN/.$NAME.lock"
    flock -w 60 "$LOCK_FD" || die "another lab program has been busy with '$NAME' for 60 s"
}

is_up() {
    recorded_pid "$DIR/supervisor" >/dev/null && recorded_pid "$DIR/init" >/dev/null
}

need_up() {
    instance "$1"
    INIT=$(recorded_pid "$DIR/init") || die "'$NAME' is not up: 'lab up $NAME' first"
}

show_root() {
    need_up "$1"
    printf '%s\n' "$ROOT"
}

show_pid() {
    need_up "$1"
    printf '%s\n' "$INIT"
}

# inside CMD...: run it in the container INIT with an environment of its own.
inside() {
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        HOME=/root LANG=C.UTF-8 ${TERM:+"TERM=$TERM"} \
        nsenter --target "$INIT" --all -- "$@"
}

exec_inside() {
    need_root
    need_up "$1"
    shift
    inside "$@"
}

status() {
    local dir init
    for dir in "$LAB_RUN"/*/; do
        [[ -d $dir ]] || continue
        instance "$(basename "$dir")"
        if is_up; then
            init=$(recorded_pid "$DIR/init")
            printf '%s up pid %s root %s\n' "$NAME" "$init" "$ROOT"
        else
            printf '%s dead (lab down %s removes what is left)\n' "$NAME" "$NAME"
        fi
    done
}

down() {
    need_root
    if [[ $1 != --all ]]; then
        down_one "$1"
        return
    fi
    local dir
    for dir in "$LAB_RUN"/*/; do
        [[ ! -d $dir ]] || down_one "$(basename "$dir")"
    done
}

down_one() {
    instance "$1"
    [[ -d $DIR ]] || return 0
    lock_instance
    stop_instance "$STOP_DEADLINE"
    remove_instance
    exec {LOCK_FD}>&-
    rm -f "$LAB_RUN/.$NAME.lock"
    say "'$NAME' is down"
}

# stop_instance SECONDS: ask init to power off, then end the container by force.
# Guests and whatever else runs inside end with its process namespace.
stop_instance() {
    local supervisor init
    supervisor=$(recorded_pid "$DIR/supervisor") || supervisor=
    init=$(recorded_pid "$DIR/init") || init=
    if [[ -n $supervisor && -n $init ]] && (($1 > 0)); then
        kill -s RTMIN+4 "$init" || true
        wait_until "$1" supervisor_gone && return
        say "'$NAME' did not stop within $1 s, ending it"
    fi
    # With process 1 of a namespace, everything in it ends.
    [[ -z $init ]] || kill -KILL "$init" 2>/dev/null || true
    [[ -z $supervisor ]] || wait_until 2 supervisor_gone || kill -KILL "$supervisor" || true
    wait_until 10 supervisor_gone || die "systemd-nspawn (pid $supervisor) does not end"
}

supervisor_gone() {
    ! recorded_pid "$DIR/supervisor" >/dev/null
}

remove_instance() {
    if mountpoint -q "$ROOT"; then
        # The last processes may need a moment to let go.
        wait_until 5 umount "$ROOT" 2>/dev/null || umount --lazy "$ROOT"
    fi
    remove_cgroup
    remove_tree "$DIR"
}
