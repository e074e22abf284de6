# shellcheck shell=bash
# The HTTP server inside an instance.

readonly HTTP_PORT=8080

serve() {
    need_root
    need_up "$1"
    install -D -m 0755 "$LAB_DIR/http_server.py" "$ROOT/usr/local/lib/proxyd-lab/http_server.py"
    inside systemctl stop lab-http.service 2>/dev/null || true
    inside systemd-run --quiet --unit=lab-http --collect \
        python3 -u /usr/local/lib/proxyd-lab/http_server.py "$HTTP_PORT" /srv/lab
    if ! wait_until 15 serve_answers; then
        inside journalctl --no-pager -u lab-http -n 20 >&2 || true
        die "the HTTP server does not answer after 15 s"
    fi
    printf 'http://192.168.122.1:%s/\n' "$HTTP_PORT"
}

serve_answers() {
    [[ $(inside curl -s -o /dev/null -w '%{http_code}' --max-time 2 \
        "http://192.168.122.1:$HTTP_PORT/generate_204") == 204 ]]
}
