#!/bin/sh
# Installs a package on the common distributions. Whatever is waited for (network,
# package servers, another package manager) is waited for within bounds. All output
# is in cloud-init's output log.
set -u

# Seconds after which nothing is begun any more.
limit=600
# Seconds for one refresh of an index or one download.
transfer_limit=180

# Seconds since the guest's start: the clock may be set meanwhile.
uptime_seconds() {
    read -r up _ </proc/uptime
    echo "${up%%.*}"
}

began=$(uptime_seconds)
is_late() { [ $(($(uptime_seconds) - began)) -ge "$limit" ]; }

# One line of the story. It goes to the console as well, where the host can read
# it: without a guest agent there is no other way to be heard.
tell() {
    line="proxyd: $topic: $*"
    printf '%s\n' "$line"
    { printf '%s\n' "$line" >/dev/console; } 2>/dev/null
    return 0
}

has() { command -v "$1" >/dev/null 2>&1; }

has_route() { [ -n "$(ip route show default 2>/dev/null)$(ip -6 route show default 2>/dev/null)" ]; }

# Without a default route within a minute, the package servers may still be near.
await_network() {
    has ip || return 0
    tries=0
    until has_route || [ "$tries" -ge 30 ]; do
        sleep 2
        tries=$((tries + 1))
    done
}

# Only transfers are ever cut short: a package manager that is stopped while it
# changes the system would leave it broken for everybody.
transfer() { timeout "$transfer_limit" "$@"; }

# dnf waits for its lock without end.
locked() { timeout "$limit" "$@"; }

install_once() {
    if has apt-get; then
        export DEBIAN_FRONTEND=noninteractive
        set -- -qq -y --no-install-recommends -o DPkg::Lock::Timeout=120 \
            -o Dpkg::Options::=--force-confold "$1"
        transfer apt-get -qq update && transfer apt-get install --download-only "$@" &&
            apt-get install "$@"
    elif has dnf; then
        set -- -q -y --setopt=install_weak_deps=False install "$1"
        transfer dnf --downloadonly "$@" && locked dnf "$@"
    elif has zypper; then
        export ZYPP_LOCK_TIMEOUT=120
        # Its options have their places: the program's, the command's, then names.
        transfer zypper -q -n --gpg-auto-import-keys refresh &&
            transfer zypper -q -n install --no-recommends --download-only "$1" &&
            zypper -q -n install --no-recommends "$1"
    elif has pacman; then
        transfer pacman -Sy --noconfirm --needed --downloadonly "$1" &&
            pacman -S --noconfirm --needed "$1"
    elif has apk; then
        transfer apk --wait 120 -q update && apk --wait 120 -q add "$1"
    else
        echo "this distribution has none of apt-get, dnf, zypper, pacman and apk"
        return 1
    fi
}

# Has package $1 installed; tries again while there is time, five times at most.
install_package() {
    await_network
    attempt=1
    until output=$(install_once "$1" 2>&1); do
        printf '%s\n' "$output"
        last=$(printf '%s\n' "$output" | tail -n 1)
        if [ "$attempt" -ge 5 ] || is_late; then
            tell "failed: $1 can't be installed after $attempt attempts: $last"
            return 1
        fi
        sleep $((attempt * 5))
        attempt=$((attempt + 1))
    done
    printf '%s\n' "$output"
}

