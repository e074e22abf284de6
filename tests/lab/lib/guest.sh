# shellcheck shell=bash
# Recipe: the guest images (part of their content hash). They are plain Debian
# cloud images, trimmed to boot fast under software emulation.

readonly GUEST_LABEL=lab-root
readonly GUEST_SIZE_MIB=2560
readonly GUEST_ESP_MIB=64
# The first MiB holds the tables, the second GRUB for BIOS; a backup GPT needs the
# last 33 sectors.
readonly GUEST_BIOS_AT_MIB=1 GUEST_ESP_AT_MIB=2
readonly GUEST_ROOT_AT_MIB=$((GUEST_ESP_AT_MIB + GUEST_ESP_MIB))
readonly GUEST_ROOT_MIB=$((GUEST_SIZE_MIB - GUEST_ROOT_AT_MIB - 1))
readonly GUEST_BIOS_BOOT=21686148-6449-6E6F-744E-656564454649

readonly GUEST_CMDLINE="root=LABEL=$GUEST_LABEL ro console=ttyS0 \
mitigations=off audit=0 nokaslr random.trust_cpu=on rcupdate.rcu_expedited=1"

# Where guests install from; the address is that of libvirt's default network.
readonly GUEST_REPOSITORY=http://192.168.122.1:8080/debian

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
    debootstrap trixie "$work/root" "$(package_list "${lists[@]}")" \
        --essential-hook="copy-in '$LAB_RECIPE/guest/etc' /"
    step "settling the guest's configuration"
    settle_guest "$work/root"
    packages_of "$work/root" >"$(dirname "$3")/packages"
    add_bios_grub "$work/root"
    step "making the file systems"
    make_root_partition "$work"
    make_esp "$work"
    make_bios_grub "$work"
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
    rm -f "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/*
    printf 'deb [trusted=yes] %s ./\n' "$GUEST_REPOSITORY" >"$root/etc/apt/sources.list.d/lab.list"
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
    local work=$1
    cat >"$work/grub.cfg" <<GRUB
search --no-floppy --label $GUEST_LABEL --set=root
linux /vmlinuz $GUEST_CMDLINE loglevel=4
initrd /initrd.img
boot
GRUB
    mkdir -p "$work/efi"
    grub_mkimage x86_64-efi -p / -c "$work/grub.cfg" -o "$work/efi/BOOTX64.EFI" \
        part_gpt ext2 search search_label linux
    truncate -s "${GUEST_ESP_MIB}M" "$work/esp.vfat"
    mkfs.vfat -n ESP "$work/esp.vfat" >/dev/null
    mmd -i "$work/esp.vfat" ::/EFI ::/EFI/BOOT
    mcopy -i "$work/esp.vfat" "$work/efi/BOOTX64.EFI" ::/EFI/BOOT/BOOTX64.EFI
}

# The lab host's grub, run with its own loader and libraries: this machine may have
# none, or another.
grub_mkimage() {
    local host format=$1
    shift
    host=$(artifact_path host)
    "$host/lib64/ld-linux-x86-64.so.2" --library-path "$host/usr/lib/x86_64-linux-gnu" \
        "$host/usr/bin/grub-mkimage" -O "$format" -d "$host/usr/lib/grub/$format" "$@"
}

# GRUB for BIOS as Debian 13's grub-cloud-amd64 configures it ("gfxterm serial"), in
# the words of grub-mkconfig: the same that hangs without a video device.
add_bios_grub() {
    local host grub=$1/boot/grub
    host=$(artifact_path host)
    mkdir -p "$grub/i386-pc" "$grub/fonts"
    cp "$host"/usr/lib/grub/i386-pc/*.{mod,lst} "$grub/i386-pc/"
    cp "$host/usr/share/grub/unicode.pf2" "$grub/fonts/"
    cat >"$grub/grub.cfg" <<GRUB
function load_video {
  if [ x\$feature_all_video_module = xy ]; then
    insmod all_video
  else
    insmod vbe
    insmod vga
    insmod video_bochs
    insmod video_cirrus
  fi
}
serial --speed=115200
if loadfont /boot/grub/fonts/unicode.pf2 ; then
  set gfxmode=auto
  load_video
  insmod gfxterm
fi
terminal_output gfxterm serial
set timeout=0
menuentry 'Debian GNU/Linux' --class debian --class gnu-linux --class gnu --class os {
  load_video
  insmod gzio
  insmod part_gpt
  insmod ext2
  search --no-floppy --label --set=root $GUEST_LABEL
  echo 'Loading Linux ...'
  linux /vmlinuz $GUEST_CMDLINE
  echo 'Loading initial ramdisk ...'
  initrd /initrd.img
}
GRUB
}

# What grub-bios-setup writes: the boot sector finds the core image at its first
# sector, and that sector finds the rest. It wants a device; here is a file.
make_bios_grub() {
    local work=$1 sector=$((GUEST_BIOS_AT_MIB * 2048)) sectors
    printf 'search --no-floppy --label --set=root %s\nset prefix=($root)/boot/grub\n' \
        "$GUEST_LABEL" >"$work/early.cfg"
    grub_mkimage i386-pc -p /boot/grub -c "$work/early.cfg" -o "$work/core.img" \
        biosdisk part_gpt ext2 search search_label normal
    head -c 440 "$(artifact_path host)/usr/lib/grub/i386-pc/boot.img" >"$work/boot.img"
    patch_at "$work/boot.img" $((0x5c)) "$(little_endian "$sector" 8)"
    patch_at "$work/boot.img" $((0x64)) '\xff'
    # Without the check for a floppy drive.
    patch_at "$work/boot.img" $((0x66)) '\x90\x90'
    sectors=$((($(stat -c %s "$work/core.img") + 511) / 512 - 1))
    patch_at "$work/core.img" $((0x1f4)) \
        "$(little_endian $((sector + 1)) 8)$(little_endian "$sectors" 2)$(little_endian $((0x820)) 2)"
}

# little_endian NUMBER BYTES: as escapes for printf.
little_endian() {
    local number=$1 count
    for ((count = 0; count < $2; count++)); do
        printf '\\x%02x' $((number & 255))
        number=$((number >> 8))
    done
}

# patch_at FILE OFFSET ESCAPES
patch_at() {
    printf '%b' "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

# No loop device: the partitions are laid in by offset.
make_disk() {
    local work=$1
    truncate -s "${GUEST_SIZE_MIB}M" "$work/disk.raw"
    sfdisk --quiet "$work/disk.raw" <<TABLE
label: gpt
start=${GUEST_BIOS_AT_MIB}MiB, size=1MiB, type=$GUEST_BIOS_BOOT, name=bios
start=${GUEST_ESP_AT_MIB}MiB, size=${GUEST_ESP_MIB}MiB, type=uefi, name=esp
start=${GUEST_ROOT_AT_MIB}MiB, size=${GUEST_ROOT_MIB}MiB, type=linux, name=root
TABLE
    lay "$work" core.img "$GUEST_BIOS_AT_MIB"
    lay "$work" esp.vfat "$GUEST_ESP_AT_MIB"
    lay "$work" root.ext4 "$GUEST_ROOT_AT_MIB"
    # The tables stand after the boot sector's code.
    dd if="$work/boot.img" of="$work/disk.raw" conv=notrunc status=none
}

# lay WORK FILE MIB
lay() {
    dd if="$1/$2" of="$1/disk.raw" bs=1M seek="$3" conv=notrunc,sparse status=none
}

# The installed packages, by the names of their files.
packages_of() {
    chroot "$1" dpkg-query -W -f '${Package}_${Version}_${Architecture}.deb\n' | sed 's/:/%3a/' | sort
}

# build_repository TARGET: what `ready` has beyond `bare`, as guests of `bare` find it.
build_repository() {
    local target=$1 name
    comm -23 "$(artifact_path ready)/packages" "$(artifact_path bare)/packages" |
        while read -r name; do
            cp "$LAB_CACHE/debs/$name" "$target/"
        done
    (
        cd "$target"
        for name in *.deb; do
            dpkg-deb -f "$name"
            printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' \
                "$name" "$(stat -c %s "$name")" "$(sha256sum "$name" | cut -d' ' -f1)"
        done >Packages
        printf 'Origin: lab\nSuite: lab\nDate: %s\nSHA256:\n %s %s Packages\n' "$(date -uR)" \
            "$(sha256sum Packages | cut -d' ' -f1)" "$(stat -c %s Packages)" >Release
    )
}
