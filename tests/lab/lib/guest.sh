# shellcheck shell=bash
# Recipe: the guest images (part of their content hash). They are plain Debian
# cloud images, trimmed to boot fast under software emulation.

readonly GUEST_LABEL=lab-root
readonly GUEST_SIZE_MIB=2560
readonly GUEST_ESP_MIB=64
# The first partition starts at 1 MiB; a backup GPT needs the last 33 sectors.
readonly GUEST_ROOT_MIB=$((GUEST_SIZE_MIB - GUEST_ESP_MIB - 2))

readonly GUEST_CMDLINE="root=LABEL=$GUEST_LABEL ro console=ttyS0 loglevel=4 \
mitigations=off audit=0 nokaslr random.trust_cpu=on rcupdate.rcu_expedited=1"

readonly GUEST_MASKED=(
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer man-db.timer
    e2scrub_all.timer e2scrub_reap.service fstrim.timer
    systemd-timesyncd.service
)

# build_guest ready|bare WORK IMAGE
build_guest() {
    local lists=("$LAB_RECIPE/guest.packages") work=$2
    [[ $1 != ready ]] || lists+=("$LAB_RECIPE/ready.packages")
    # The configuration comes before the packages, so that the initramfs is
    # built once, with it.
    debootstrap "$work/root" "$(package_list "${lists[@]}")" \
        --essential-hook="copy-in '$LAB_RECIPE/guest/etc' /"
    step "settling the guest's configuration"
    settle_guest "$work/root"
    step "making the file systems"
    make_root_partition "$work"
    make_esp "$work"
    step "laying out the disk"
    make_disk "$work"
    qemu-img convert -c -W -m 4 -f raw -O qcow2 "$work/disk.raw" "$3"
}

settle_guest() {
    local root=$1 unit
    rm -f "$root/etc/hostname" "$root/etc/apt/apt.conf.d/99mmdebstrap"
    # Empty: each guest makes its own, so that no two ask DHCP as one.
    : >"$root/etc/machine-id"
    ln -sf ../run/systemd/resolve/stub-resolv.conf "$root/etc/resolv.conf"
    printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
    printf 'LABEL=%s / ext4 defaults,noatime 0 0\n' "$GUEST_LABEL" >"$root/etc/fstab"
    for unit in "${GUEST_MASKED[@]}"; do
        ln -sf /dev/null "$root/etc/systemd/system/$unit"
    done
    chroot "$root" passwd --quiet --lock root
    # Without /proc it works, and says at length that it is not meant to.
    chroot "$root" systemctl enable --quiet systemd-networkd.service 2>/dev/null
    if [[ -e $root/usr/lib/systemd/system/squid.service ]]; then
        # It runs once somebody has configured it.
        chroot "$root" systemctl disable --quiet squid.service 2>/dev/null
    fi
    rm -rf "$root"/var/log/*.log "$root"/var/log/apt "$root"/var/cache/debconf/*-old
}

make_root_partition() {
    truncate -s "${GUEST_ROOT_MIB}M" "$1/root.ext4"
    mkfs.ext4 -q -F -L "$GUEST_LABEL" -d "$1/root" "$1/root.ext4"
}

# The boot loader finds the kernel by the root's label; the links in / follow
# kernel updates.
make_esp() {
    local work=$1 host
    host=$(artifact_path host)
    cat >"$work/grub.cfg" <<GRUB
search --no-floppy --label $GUEST_LABEL --set=root
linux /vmlinuz $GUEST_CMDLINE
initrd /initrd.img
boot
GRUB
    mkdir -p "$work/efi"
    # The lab host's grub, run with its own loader and libraries: this machine may
    # have none, or another.
    "$host/lib64/ld-linux-x86-64.so.2" --library-path "$host/usr/lib/x86_64-linux-gnu" \
        "$host/usr/bin/grub-mkimage" -O x86_64-efi -d "$host/usr/lib/grub/x86_64-efi" -p / \
        -c "$work/grub.cfg" -o "$work/efi/BOOTX64.EFI" \
        part_gpt ext2 search search_label linux
    truncate -s "${GUEST_ESP_MIB}M" "$work/esp.vfat"
    mkfs.vfat -n ESP "$work/esp.vfat" >/dev/null
    mmd -i "$work/esp.vfat" ::/EFI ::/EFI/BOOT
    mcopy -i "$work/esp.vfat" "$work/efi/BOOTX64.EFI" ::/EFI/BOOT/BOOTX64.EFI
}

# No loop device: the partitions are laid in by offset.
make_disk() {
    local work=$1 esp_at=1 root_at=$((GUEST_ESP_MIB + 1))
    truncate -s "${GUEST_SIZE_MIB}M" "$work/disk.raw"
    sfdisk --quiet "$work/disk.raw" <<TABLE
label: gpt
start=${esp_at}MiB, size=${GUEST_ESP_MIB}MiB, type=uefi, name=esp
start=${root_at}MiB, size=${GUEST_ROOT_MIB}MiB, type=linux, name=root
TABLE
    dd if="$work/esp.vfat" of="$work/disk.raw" bs=1M seek="$esp_at" conv=notrunc,sparse status=none
    dd if="$work/root.ext4" of="$work/disk.raw" bs=1M seek="$root_at" conv=notrunc,sparse status=none
}
