# Brings qemu-guest-agent, by which the host learns this guest's address. It never
# fails: that would mark the whole boot as failed.
topic=agent

is_running() {
    pidof qemu-ga >/dev/null 2>&1 || systemctl is-active --quiet qemu-guest-agent 2>/dev/null
}

# Debian's unit is static, so it is started rather than enabled; a rule of udev starts
# it at the next boot, and now, if it is asked again. Older openSUSE says qemu-ga.
start_agent() {
    if has systemctl; then
        udevadm trigger --subsystem-match=virtio-ports 2>/dev/null
        systemctl enable --quiet qemu-guest-agent 2>/dev/null
        systemctl start --no-block qemu-guest-agent || systemctl start --no-block qemu-ga
    else
        rc-update add qemu-guest-agent default
        rc-service qemu-guest-agent start
    fi
}

await_agent() {
    tries=0
    until is_running; do
        [ "$tries" -lt 30 ] || return 1
        sleep 1
        tries=$((tries + 1))
    done
}

bring_agent() {
    is_running && return
    if ! has qemu-ga; then
        tell "installing qemu-guest-agent"
        install_package qemu-guest-agent || return
    fi
    if start_agent && await_agent; then
        tell "qemu-guest-agent runs"
    else
        tell "failed: qemu-guest-agent is installed and does not start"
    fi
}

bring_agent
exit 0
