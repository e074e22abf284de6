# shellcheck shell=bash
# What this machine needs before it can build and run the lab.

# command:package, all from Debian's main archive.
readonly LAB_DEPS=(
    mmdebstrap:mmdebstrap
    systemd-nspawn:systemd-container
    mcopy:mtools
    mkfs.vfat:dosfstools
    mkfs.ext4:e2fsprogs
    qemu-img:qemu-utils
    sfdisk:fdisk
    ip:iproute2
    curl:curl
    python3:python3
    flock:util-linux
    nsenter:util-linux
)
readonly LAB_KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

missing_packages() {
    local entry
    for entry in "${LAB_DEPS[@]}"; do
        command -v "${entry%%:*}" >/dev/null || printf '%s\n' "${entry#*:}"
    done
    [[ -e $LAB_KEYRING ]] || printf 'debian-archive-keyring\n'
}

# The container's network is this machine's kernel's.
load_modules() {
    [[ -e /dev/net/tun ]] || modprobe tun 2>/dev/null || true
    [[ -e /dev/net/tun ]] || unavailable "no /dev/net/tun: this kernel has no TUN/TAP support"
}

deps() {
    local missing
    mapfile -t missing < <(missing_packages | sort -u)
    if ((${#missing[@]} == 0)); then
        say "nothing to install"
        return
    fi
    ((EUID == 0)) || unavailable "missing: ${missing[*]}; not root, so they can't be installed"
    command -v apt-get >/dev/null ||
        unavailable "missing: ${missing[*]}; no apt-get here (the lab runs on Debian 12 or 13)"
    step "installing ${missing[*]}"
    apt-get update -qq >&2 ||
        unavailable "missing: ${missing[*]}; apt-get update failed"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        "${missing[@]}" </dev/null >&2 ||
        unavailable "missing: ${missing[*]}; apt-get install failed"
    step "installed"
}

need_deps() {
    local missing
    need_root
    [[ $(uname -m) == x86_64 ]] || unavailable "the lab builds for x86_64 only, this is $(uname -m)"
    mapfile -t missing < <(missing_packages | sort -u)
    ((${#missing[@]} == 0)) || unavailable "missing: ${missing[*]}; run 'lab deps' first"
}
