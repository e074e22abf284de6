# shellcheck shell=bash
# Whether KVM really runs a guest. /dev/kvm may be there, and even start a
# firmware, on machines where every guest dies; so boot one and see.

readonly KVM_DEADLINE=30

kvm() {
    local why
    need_deps
    if why=$(kvm_fault); then
        die "KVM is not usable: $why"
    fi
    say "KVM is usable"
}

# Print one sentence why KVM is not usable; status 1 when it is.
kvm_fault() {
    if [[ ! -c /dev/kvm ]]; then
        printf 'there is no /dev/kvm\n'
        return
    fi
    local host image
    host=$(artifact_path host)
    image=$(image_path bare)
    if [[ ! -d $host || ! -e $image ]]; then
        printf "the lab isn't built yet, so no guest could be tried\n"
        return
    fi
    kvm_trial "$host" "$image"
}

# Boot the bare image under KVM with the host's own QEMU, nothing written, and
# wait for the kernel's words on the serial console.
kvm_trial() {
    local host=$1 image=$2 dir pid fault=
    dir=$(mktemp -d)
    # Mounts and processes end with the namespaces.
    unshare --mount --pid --fork --kill-child --propagation private \
        bash -c "$(declare -f kvm_guest); kvm_guest \"\$@\"" kvm "$host" "$image" "$dir" \
        </dev/null >"$dir/log" 2>&1 &
    pid=$!
    wait_until "$KVM_DEADLINE" kvm_decided "$dir" "$pid" || true
    if ! kvm_booted "$dir"; then
        fault=$(grep -a -m 1 -iE 'error|fail|denied|kvm' "$dir/log" | tr -d '\r') || true
        fault=${fault:-"a guest's kernel said nothing within $KVM_DEADLINE s"}
    fi
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    rm -rf "$dir"
    [[ -n $fault ]] && printf 'a trial guest did not run: %s\n' "$fault"
}

kvm_booted() {
    grep -aqs -E 'Linux version|systemd\[1\]' "$1/serial"
}

# Decided when the guest's kernel speaks, QEMU reports an error or ends.
kvm_decided() {
    kvm_booted "$1" || [[ -s $1/log ]] || [[ ! -d /proc/$2 ]]
}

kvm_guest() {
    local host=$1 image=$2 dir=$3
    mount --rbind /dev "$host/dev"
    mount -t tmpfs tmpfs "$host/tmp"
    mkdir "$host/tmp/trial"
    mount --bind "$dir" "$host/tmp/trial"
    : >"$host/tmp/image"
    mount --bind "$image" "$host/tmp/image"
    # -snapshot keeps the writes in a temporary file.
    exec chroot "$host" qemu-system-x86_64 -machine q35 -accel kvm -cpu host -m 512 \
        -nodefaults -display none -vga none -no-reboot -snapshot \
        -drive if=pflash,format=raw,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.fd \
        -drive if=pflash,format=raw,file=/usr/share/OVMF/OVMF_VARS_4M.fd \
        -drive if=virtio,format=qcow2,file=/tmp/image \
        -serial file:/tmp/trial/serial
}
