# shellcheck shell=bash
# Recipe: the host's root file system (part of its content hash).

readonly HOST_MASKED=(
    # It would give running guests minutes to shut down when an instance stops.
    libvirt-guests.service
    # No console to log in on, no disk to trim or check, no archive to reach.
    console-getty.service getty@.service
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer
    e2scrub_all.timer e2scrub_reap.service fstrim.timer
)

build_host() {
    local root=$1
    debootstrap trixie "$root" "$(package_list "$LAB_RECIPE/host.packages")" \
        --customize-hook="copy-in '$LAB_RECIPE/host/etc' /"
    step "settling the host's configuration"
    # mmdebstrap copies these two from the machine; an empty machine-id means
    # that each instance gets its own.
    rm -f "$root/etc/hostname" "$root/etc/apt/apt.conf.d/99mmdebstrap"
    : >"$root/etc/machine-id"
    : >"$root/etc/resolv.conf"
    rm -f "$root"/etc/ssh/ssh_host_*_key*
    local unit
    for unit in "${HOST_MASKED[@]}"; do
        ln -sf /dev/null "$root/etc/systemd/system/$unit"
    done
    mkdir -p "$root/srv/lab" "$root/etc/systemd/system/multi-user.target.wants"
    chroot "$root" systemctl disable ssh.service ssh.socket >&2 2>/dev/null || true
}
