# shellcheck shell=bash
# Real cloud-init, as Debian 12 and 13 have it, at work on seeds without a guest
# (part of its roots' content hash).

# cloud_init_suite NUMBER
cloud_init_suite() {
    case $1 in
        12) echo bookworm ;;
        13) echo trixie ;;
        *) usage_error "no cloud-init '$1': there are '12' and '13', as in Debian 12 and 13" ;;
    esac
}

# build_cloud_init NUMBER TARGET: only unpacked, since nothing is started in it.
build_cloud_init() {
    local directory certificates=$2/etc/ssl/certs/ca-certificates.crt
    debootstrap "$(cloud_init_suite "$1")" "$2" "$(package_list "$LAB_RECIPE/cloud-init.packages")" \
        --variant=extract
    # What maintainer scripts would have made.
    for directory in bin sbin lib lib64; do
        [[ -e $2/$directory ]] || ln -s "usr/$directory" "$2/$directory"
    done
    [[ -e $certificates ]] || cat "$2"/usr/share/ca-certificates/mozilla/*.crt >"$certificates"
}

# process_seeds NUMBER CORPUS: see cloud_init.py. Mounts and processes end with the
# namespaces; the cached root stays as it is, below an overlay.
process_seeds() {
    need_root
    cloud_init_suite "$1" >/dev/null
    [[ -d $2 ]] || usage_error "no directory '$2'"
    use_cache
    build
    mkdir -p "$LAB_RUN"
    SCRATCH=$(mktemp -d "$LAB_RUN/.cloud-init.XXXXXX")
    trap 'end_child; remove_tree "$SCRATCH"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    mkdir "$SCRATCH"/{upper,work,root}
    interruptible unshare --mount --pid --fork --kill-child \
        bash -euc "$(declare -f enter_cloud_init); enter_cloud_init \"\$@\"" bash \
        "$(artifact_path "cloud-init-$1")" "$SCRATCH" "$(realpath "$2")" "$LAB_DIR/cloud_init.py"
}

enter_cloud_init() {
    local root=$2/root
    mount -t overlay cloud-init "$root" -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work"
    mkdir -p "$root/corpus" "$root/proc" "$root/dev"
    mount --bind "$3" "$root/corpus"
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    cp "$4" "$root/cloud_init.py"
    exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
        chroot "$root" python3 /cloud_init.py /corpus
}
