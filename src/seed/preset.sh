#!/bin/sh
# Makes squid serve with /etc/squid/proxyd.conf, and installs it first where it is
# missing. What it does is in cloud-init's output log; failures are there, too.
set -u

say() { echo "proxyd: $*"; }

# Five attempts: the network and the package servers may need a moment.
retry() {
    attempt=1
    until "$@"; do
        [ "$attempt" -lt 5 ] || return 1
        sleep $((attempt * 5))
        attempt=$((attempt + 1))
    done
}

install_squid() {
    if command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get -qq update && apt-get -qq install -y --no-install-recommends \
            -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confold squid
    elif command -v dnf >/dev/null; then dnf -q -y install squid
    elif command -v zypper >/dev/null; then zypper -q -n install squid
    elif command -v pacman >/dev/null; then pacman -Sy --noconfirm squid
    elif command -v apk >/dev/null; then apk add -q squid
    else say "no known package manager"; return 1
    fi
}

# Without a list of clients: the networks that this guest is in.
list_clients() {
    grep -q '^[0-9a-f]' /etc/squid/proxyd.clients && return
    ip -o addr show scope global | while read -r _ _ _ address _; do echo "$address"; done \
        >/etc/squid/proxyd.clients
}

start_squid() {
    cp /etc/squid/proxyd.conf /etc/squid/squid.conf
    if command -v systemctl >/dev/null; then
        systemctl enable --quiet squid
        systemctl restart squid
    else
        rc-update add squid default
        rc-service squid restart
    fi
}

if ! command -v squid >/dev/null && ! [ -x /usr/sbin/squid ]; then
    retry install_squid || { say "squid can't be installed"; exit 1; }
fi
list_clients
start_squid || { say "squid does not start"; exit 1; }
say "squid serves"
