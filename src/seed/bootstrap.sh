#!/bin/sh
# Brings qemu-guest-agent, by which the host learns this guest's address. It never
# fails: that would mark the whole boot as failed. What it does is in cloud-init's
# output log.
set -u

say() { echo "proxyd: $*"; }

is_running() { pidof qemu-ga >/dev/null 2>&1; }

is_installed() {
    for program in /usr/sbin/qemu-ga /usr/bin/qemu-ga; do
        [ -x "$program" ] && return 0
    done
    return 1
}

# Five attempts: the network and the package servers may need a moment.
retry() {
    attempt=1
    until "$@"; do
        [ "$attempt" -lt 5 ] || return 1
        sleep $((attempt * 5))
        attempt=$((attempt + 1))
    done
}

install_agent() {
    if command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get -qq update && apt-get -qq install -y --no-install-recommends \
            -o DPkg::Lock::Timeout=300 qemu-guest-agent
    elif command -v dnf >/dev/null; then dnf -q -y install qemu-guest-agent
    elif command -v zypper >/dev/null; then zypper -q -n install qemu-guest-agent
    elif command -v pacman >/dev/null; then pacman -Sy --noconfirm qemu-guest-agent
    elif command -v apk >/dev/null; then apk add -q qemu-guest-agent
    else say "no known package manager"; return 1
    fi
}

# Debian's unit is static, so it is started rather than enabled; a rule of udev starts
# it at the next boot. Older openSUSE calls it qemu-ga.
start_agent() {
    if command -v systemctl >/dev/null; then
        systemctl enable --quiet qemu-guest-agent 2>/dev/null
        systemctl start qemu-guest-agent || systemctl start qemu-ga
    else
        rc-update add qemu-guest-agent default
        rc-service qemu-guest-agent start
    fi
}

main() {
    is_running && return
    if ! is_installed && ! retry install_agent; then
        say "qemu-guest-agent can't be installed"
        return
    fi
    is_running || start_agent || say "qemu-guest-agent does not start"
}

main
exit 0
