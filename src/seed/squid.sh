# Makes squid serve with /etc/squid/proxyd.conf, and installs it first where it is
# missing.
topic=squid
conf=/etc/squid/proxyd.conf
clients=/etc/squid/proxyd.clients

# Without a list of clients: the networks that this guest's own interface is in, by
# the routes that the kernel made for them. An address alone does not tell: one from
# DHCPv6 stands in a network of its own.
list_clients() {
    grep -q '^[0-9a-f]' "$clients" && return
    {
        ip -o -4 route show scope link
        ip -o -6 route show
    } 2>/dev/null | while read -r network rest; do
        case "$network $rest" in
            default* | multicast* | unreachable* | fe80:* | ff* | *" via "* | *" dev lo "*) ;;
            *) echo "$network" ;;
        esac
    done >"$clients"
}

open_firewall() {
    { has firewall-cmd && firewall-cmd --quiet --state; } || return 0
    port=$(sed -n 's/^http_port //p' "$conf")
    firewall-cmd --quiet --permanent --add-port="$port/tcp" && firewall-cmd --quiet --reload
}

# A stock squid takes half a minute to stop: one that runs reads its configuration anew.
start_squid() {
    cp "$conf" /etc/squid/squid.conf || return
    if has systemctl; then
        systemctl enable --quiet squid
        systemctl reload-or-restart squid && systemctl is-active --quiet squid
    else
        rc-update add squid default
        rc-service squid restart
    fi
}

# Debian starts what it installs at once: it shall find our configuration then. Others
# refuse to install over files that they don't know.
prepare() {
    if has apt-get; then cp "$conf" /etc/squid/squid.conf; fi
    install_package squid
}

bring_squid() {
    list_clients
    has squid || prepare || return
    if ! words=$(squid -k parse -f "$conf" 2>&1); then
        tell "failed: squid does not accept its configuration: $(printf '%s\n' "$words" | tail -n 1)"
        return 1
    fi
    open_firewall
    if start_squid; then
        tell "squid serves"
    else
        tell "failed: squid is installed and does not start"
        return 1
    fi
}

bring_squid
