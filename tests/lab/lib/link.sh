# shellcheck shell=bash
# A private network between two instances.

readonly LINK=link0
readonly LINK_NET=10.77.1

# link ONE OTHER: ONE gets 10.77.1.1, and OTHER 10.77.1.2. It goes with either.
link() {
    need_root
    local one other
    need_up "$1"
    one=$INIT
    need_up "$2"
    other=$INIT
    ip link add "$LINK" netns "$one" type veth peer name "$LINK" netns "$other" ||
        die "'$1' and '$2' can't be joined"
    join_link "$one" 1
    join_link "$other" 2
}

# join_link PID NUMBER: gives the end in that process's network its address.
join_link() {
    nsenter --target "$1" --net -- ip address add "$LINK_NET.$2/24" dev "$LINK"
    nsenter --target "$1" --net -- ip link set "$LINK" up
}
