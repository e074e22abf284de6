# shellcheck shell=bash
# The cache: artifacts named by the hash of what they are made from.
#
#   $LAB_CACHE/host-HASH/          the host's root directory
#   $LAB_CACHE/ready-HASH/ready.qcow2, bare-HASH/bare.qcow2
#   $LAB_CACHE/repository-HASH/    the packages that bare lacks, to install from
#   $LAB_CACHE/cloud-init-12-HASH/, cloud-init-13-HASH/   roots with cloud-init
#   $LAB_CACHE/debs/               downloaded packages, to spare the mirror
#   $LAB_CACHE/build.tmp/          the build under way
#   $LAB_CACHE/build.lock          held by the one builder
#   $LAB_CACHE/use.lock            held shared by whoever uses an artifact

readonly LAB_ARTIFACTS=(host ready bare repository cloud-init-12 cloud-init-13)
readonly LAB_RECIPE=$LAB_DIR/recipe
LAB_BUILD=$LAB_CACHE/build.tmp
readonly LAB_BUILD

# The files an artifact is made from.
inputs_of() {
    case $1 in
        host) find "$LAB_DIR/lib/host.sh" "$LAB_RECIPE/host" "$LAB_RECIPE/host.packages" -type f ;;
        bare) guest_inputs ;;
        cloud-init-*) find "$LAB_DIR/lib/cloud_init.sh" "$LAB_RECIPE/cloud-init.packages" -type f ;;
        ready | repository) guest_inputs "$LAB_RECIPE/ready.packages" ;;
    esac
}

guest_inputs() {
    find "$LAB_DIR/lib/guest.sh" "$LAB_RECIPE/guest" "$LAB_RECIPE/guest.packages" "$@" -type f
}

artifact_path() {
    local hash
    # Relative names, so that the hash doesn't depend on where the lab lives.
    hash=$(inputs_of "$1" | sort | sed "s|^$LAB_DIR/||" |
        (cd "$LAB_DIR" && xargs -d '\n' sha256sum) | sha256sum)
    printf '%s/%s-%s\n' "$LAB_CACHE" "$1" "${hash:0:16}"
}

image_path() {
    printf '%s/%s.qcow2\n' "$(artifact_path "$1")" "$1"
}

show_image() {
    [[ $1 == ready || $1 == bare ]] || usage_error "no image '$1': there are 'ready' and 'bare'"
    local path
    path=$(image_path "$1")
    [[ -e $path ]] || die "image '$1' isn't built yet: run 'lab build'"
    printf '%s\n' "$path"
}

# From here to the end of this process (and of children that keep the file
# open) no artifact is deleted.
use_cache() {
    mkdir -p "$LAB_CACHE"
    exec {LAB_USE_FD}>>"$LAB_CACHE/use.lock"
    flock -s "$LAB_USE_FD"
}

build() {
    need_deps
    mkdir -p "$LAB_CACHE"
    local lock
    exec {lock}>>"$LAB_CACHE/build.lock"
    if ! flock -n "$lock"; then
        step "another build is under way, waiting for it"
        flock "$lock"
    fi
    trap 'end_child; remove_tree "$LAB_BUILD"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    local artifact
    for artifact in "${LAB_ARTIFACTS[@]}"; do
        build_artifact "$artifact"
    done
    trap - EXIT INT TERM
    remove_older
    exec {lock}>&-
}

# Each artifact is made in the build directory and renamed into place, so what
# stands under its name is whole.
build_artifact() {
    local path
    path=$(artifact_path "$1")
    [[ ! -e $path ]] || return 0
    step "building $1"
    remove_tree "$LAB_BUILD"
    mkdir -p "$LAB_BUILD/out" "$LAB_CACHE/debs"
    case $1 in
        host) build_host "$LAB_BUILD/out" ;;
        cloud-init-*) build_cloud_init "${1##*-}" "$LAB_BUILD/out" ;;
        repository) build_repository "$LAB_BUILD/out" ;;
        ready | bare) build_guest "$1" "$LAB_BUILD" "$LAB_BUILD/out/$1.qcow2" ;;
    esac
    sync -f "$LAB_BUILD/out"
    mv -T "$LAB_BUILD/out" "$path"
    remove_tree "$LAB_BUILD"
    step "built $path"
}

# Artifacts of other recipes go once nobody uses the cache.
remove_older() {
    local fd artifact old
    exec {fd}>>"$LAB_CACHE/use.lock"
    if flock -n "$fd"; then
        for artifact in "${LAB_ARTIFACTS[@]}"; do
            for old in "$LAB_CACHE/$artifact"-????????????????; do
                [[ -e $old && $old != "$(artifact_path "$artifact")" ]] || continue
                step "removing the older $old"
                remove_tree "$old"
            done
        done
    fi
    exec {fd}>&-
}

# Never crosses into a mounted file system.
remove_tree() {
    [[ -e $1 ]] || return 0
    rm -rf --one-file-system -- "$1"
}

clean() {
    [[ -e $LAB_CACHE ]] || return 0
    local fd
    exec {fd}>>"$LAB_CACHE/use.lock"
    flock -n "$fd" || die "the cache is in use: 'lab down --all' first"
    remove_tree "$LAB_CACHE"
}

# The mirror that this machine's apt uses for Debian's main archive.
debian_mirror() {
    local uri
    uri=$(apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' |
        sed -n 's/^Debian|Debian|//p' | head -n 1)
    # Without downloaded lists apt knows the addresses only.
    [[ -n $uri ]] || uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' |
        grep -E '/debian/?$' | head -n 1) || true
    if [[ $uri == mirror+file:* ]]; then
        # A file that lists mirrors, as on Debian's cloud images; "//" is "/".
        uri=$(grep -m 1 -o '^[a-z]*://[^[:space:]]*' "${uri#mirror+file:}") || uri=
    fi
    [[ -n $uri ]] || unavailable "apt's configuration here names no Debian main archive to build from"
    printf '%s\n' "$uri"
}

# This machine's ways to reach the archive (proxies, clock) hold for the build.
apt_options() {
    local name value
    for name in Acquire::http::Proxy Acquire::https::Proxy \
        Acquire::Check-Valid-Until Acquire::Check-Date; do
        value=
        eval "$(apt-config shell value "$name")"
        [[ -z $value ]] || printf -- '--aptopt=%s "%s"\n' "$name" "$value"
    done
}

# debootstrap SUITE TARGET PACKAGES OPTION...: a minimal Debian in the directory.
debootstrap() {
    local suite=$1 target=$2 packages=$3 options mirror
    shift 3
    mirror=$(debian_mirror)
    mapfile -t options < <(apt_options)
    # In a process namespace of its own: mmdebstrap told to end would go on
    # installing for a minute, this way all of it ends with unshare.
    interruptible unshare --pid --fork --kill-child --mount-proc \
        mmdebstrap --quiet --mode=root --variant=minbase --format=directory \
        --keyring="$LAB_KEYRING" --include="$packages" "${options[@]}" \
        --aptopt='APT::Install-Recommends "false"' \
        --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --skip=download/empty,essential/unlink \
        --setup-hook="mkdir -p \"\$1/var/cache/apt/archives\" && cp -an '$LAB_CACHE/debs/.' \"\$1/var/cache/apt/archives/\"" \
        --customize-hook="cp -an \"\$1\"/var/cache/apt/archives/*.deb '$LAB_CACHE/debs/'; rm -rf \"\$1\"/var/cache/apt/archives/*.deb" \
        "$@" "$suite" "$target" "$mirror" </dev/null >&2
}

# package_list FILE...: the packages, joined by commas; '#' starts a comment.
package_list() {
    sed 's/#.*//' "$@" | tr -s '[:space:]' '\n' | sed '/^$/d' | paste -sd,
}
