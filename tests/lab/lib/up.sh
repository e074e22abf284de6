# shellcheck shell=bash
# Booting an instance.

readonly BOOT_DEADLINE=90

up() {
    need_root
    instance "$1"
    use_cache
    build
    load_modules
    lock_instance
    ! is_up || die "'$NAME' is already up: 'lab down $NAME' first"
    [[ ! -e $DIR ]] || { stop_instance 0 && remove_instance; }
    trap abandon EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    prepare_root
    start_container
    wait_for_boot
    wait_for_libvirt
    trap - EXIT INT TERM
    step "'$NAME' is up"
}

# What a failed or interrupted 'up' has begun is undone.
abandon() {
    local code=$?
    trap '' INT TERM
    end_child
    stop_instance 0
    remove_instance
    exit "$code"
}

prepare_root() {
    mkdir -p "$DIR/upper" "$DIR/work" "$ROOT"
    mount -t overlay "proxyd-lab-$NAME" "$ROOT" \
        -o "lowerdir=$(artifact_path host),upperdir=$DIR/upper,workdir=$DIR/work"
    printf '%s\n' "$NAME" >"$ROOT/etc/hostname"
    printf '127.0.0.1 localhost\n127.0.1.1 %s\n::1 localhost\n' "$NAME" >"$ROOT/etc/hosts"
    if gives_kvm; then
        # A node of its own, since the machine's may have another group.
        printf 'c! /dev/kvm 0660 root kvm - %s\n' "$(stat -c '%Hr:%Lr' /dev/kvm)" \
            >"$ROOT/etc/tmpfiles.d/lab-kvm.conf"
    fi
}

gives_kvm() {
    local why
    case ${PROXYD_LAB_KVM:-auto} in
        yes) return 0 ;;
        no) return 1 ;;
    esac
    if why=$(kvm_fault); then
        step "software emulation: $why"
        return 1
    fi
}

container_options() {
    local image
    printf '%s\n' --quiet --settings=no --boot "--directory=$ROOT" \
        "--machine=proxyd-lab-$NAME" "--hostname=$NAME" --register=no \
        --capability=all --private-network --bind=/dev/net/tun \
        --resolv-conf=off --timezone=off --link-journal=no
    for image in ready bare; do
        printf -- '--bind-ro=%s:/srv/lab/%s.qcow2\n' "$(image_path "$image")" "$image"
    done
    printf -- '--bind-ro=%s:/srv/lab/debian\n' "$(artifact_path repository)"
    if [[ -d /run/systemd/system ]]; then
        # systemd allots a scope; the scope must let the container make its node.
        printf '%s\n' '--property=DeviceAllow=/dev/kvm rwm'
    else
        printf '%s\n' --keep-unit
    fi
}

start_container() {
    local options
    mapfile -t options < <(container_options)
    step "booting '$NAME'"
    # In its own session, so that a terminal's signals don't reach it, and
    # without our locks, except the one that keeps the cache.
    (
        exec {LOCK_FD}>&-
        enter_cgroup
        export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1
        exec setsid systemd-nspawn "${options[@]}" </dev/null >"$DIR/console.log" 2>&1
    ) &
    SUPERVISOR=$!
    process_identity "$SUPERVISOR" >"$DIR/supervisor"
    wait_until 20 find_init || fail_boot "systemd-nspawn started no init within 20 s"
}

# The container's init is the child that is process 1 of its own namespace.
find_init() {
    local child children
    supervisor_gone && fail_boot "systemd-nspawn ended"
    read -ra children <"/proc/$SUPERVISOR/task/$SUPERVISOR/children" || true
    for child in "${children[@]}"; do
        if grep -qs '^NSpid:.*[[:space:]]1$' "/proc/$child/status" &&
            [[ $(readlink "/proc/$child/exe") == */systemd ]]; then
            INIT=$child
            process_identity "$child" >"$DIR/init"
            return
        fi
    done
    return 1
}

fail_boot() {
    say "'$NAME' failed to boot: $1; the end of its console:"
    tail -n 30 "$DIR/console.log" >&2 || true
    exit 1
}

wait_for_boot() {
    wait_until "$BOOT_DEADLINE" boot_finished || fail_boot "still '$STATE' after $BOOT_DEADLINE s"
    [[ $STATE == running ]] || {
        inside systemctl --failed --no-pager --plain >&2 || true
        inside journalctl --no-pager -p warning -n 40 >&2 || true
        fail_boot "systemd says '$STATE'"
    }
}

boot_finished() {
    supervisor_gone && fail_boot "systemd-nspawn ended"
    STATE=$(inside systemctl is-system-running 2>/dev/null) || true
    [[ $STATE == running || $STATE == degraded || $STATE == maintenance ]]
}

wait_for_libvirt() {
    inside virsh -q pool-info default >/dev/null 2>&1 || make_pool
    listed net-list || start_network
    wait_until 30 libvirt_ready || {
        inside virsh net-list --all >&2 || true
        inside virsh pool-list --all >&2 || true
        inside journalctl --no-pager -u libvirtd -u virtlogd -n 40 >&2 || true
        fail_boot "libvirt's default network and pool are not ready after 30 s"
    }
}

make_pool() {
    inside sh -ec '
        virsh -q pool-define-as default dir --target /var/lib/libvirt/images
        virsh -q pool-autostart default
        virsh -q pool-start default
    ' >/dev/null
}

# Debian defines the network and leaves it off.
start_network() {
    inside sh -ec 'virsh -q net-autostart default; virsh -q net-start default' >/dev/null
}

libvirt_ready() {
    listed net-list && listed pool-list
}

listed() {
    inside virsh -q "$1" --autostart --name 2>/dev/null | grep -qx 'default *'
}
