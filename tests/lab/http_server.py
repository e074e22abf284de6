#!/usr/bin/env python3
"""The lab's HTTP server: files of one directory, and two fixed pages.

Usage: http_server.py PORT DIRECTORY

Serves every regular file below DIRECTORY with
Content-Length, ETag, Last-Modified and Range, `/generate_204` (status 204)
and `/page.html`. One line a request goes to standard error.
"""

import email.utils
import http.server
import os
import re
import sys
import urllib.parse
from http import HTTPStatus

PAGE = b"""<!doctype html>
<html><head><meta charset="utf-8"><title>proxyd lab</title></head>
<body><p>If you can read this, the proxy works.</p></body></html>
"""


class RangeError(Exception):
    """The requested range lies outside the file."""


def parse_range(header, size):
    """Return (start, end) inclusive for one byte range, or None to ignore it."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header.strip())
    if not match or match.group(0) == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        if int(last) == 0 or size == 0:
            raise RangeError
        return max(0, size - int(last)), size - 1
    start = int(first)
    end = min(int(last), size - 1) if last else size - 1
    if last and int(last) < start:
        return None
    if start >= size:
        raise RangeError
    return start, end


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "proxyd-lab"
    directory = "."
    # A client that stalls for good must not hold a thread for ever.
    timeout = 300

    def do_GET(self):
        self.respond(body=True)

    def do_HEAD(self):
        self.respond(body=False)

    def respond(self, body):
        path = self.path.partition("?")[0]
        # Through a proxy the request line may hold the whole URL.
        path = re.sub(r"^https?://[^/]*", "", path) or "/"
        if path == "/generate_204":
            self.send_response(HTTPStatus.NO_CONTENT)
            self.end_headers()
        elif path == "/page.html":
            self.send_bytes(PAGE, "text/html; charset=utf-8", body)
        else:
            self.send_file(path.lstrip("/"), body)

    def send_bytes(self, data, content_type, body):
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def send_file(self, name, body):
        # Rooted first, so that neither ".." nor an escaped "/" leads out.
        name = os.path.normpath("/" + urllib.parse.unquote(name)).lstrip("/")
        path = os.path.join(self.directory, name)
        if not os.path.isfile(path):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        file = open(path, "rb")
        with file:
            info = os.fstat(file.fileno())
            etag = f'"{info.st_size:x}-{info.st_mtime_ns:x}"'
            modified = email.utils.formatdate(int(info.st_mtime), usegmt=True)
            if self.is_unchanged(etag, info.st_mtime):
                self.send_response(HTTPStatus.NOT_MODIFIED)
                self.send_header("ETag", etag)
                self.end_headers()
                return
            self.send_part(file, info.st_size, etag, modified, body)

    def is_unchanged(self, etag, mtime):
        tags = self.headers.get("If-None-Match")
        if tags is not None:
            return tags.strip() == "*" or etag in re.findall(r'"[^"]*"', tags)
        since = self.headers.get("If-Modified-Since")
        try:
            return since is not None and int(mtime) <= email.utils.parsedate_to_datetime(since).timestamp()
        except (TypeError, ValueError):
            return False

    def wanted_range(self, size, etag, modified):
        """The range to send, None for all; only GET knows ranges."""
        header = self.headers.get("Range")
        condition = self.headers.get("If-Range", etag)
        if header is None or self.command != "GET" or condition not in (etag, modified):
            return None
        return parse_range(header, size)

    def send_part(self, file, size, etag, modified, body):
        try:
            part = self.wanted_range(size, etag, modified)
        except RangeError:
            self.send_response(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start, end = part or (0, size - 1)
        self.send_response(HTTPStatus.PARTIAL_CONTENT if part else HTTPStatus.OK)
        if part:
            self.send_header("Content-Range", f"bytes {start}-{end}/{size}")
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(end - start + 1))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", etag)
        self.send_header("Last-Modified", modified)
        self.end_headers()
        if body and end >= start:
            self.copy(file, start, end - start + 1)

    def copy(self, file, offset, count):
        if self.connection.sendfile(file, offset, count) < count:
            # The file shrank: cut the connection, so that nobody takes the
            # short body for whole.
            self.close_connection = True

    def log_message(self, format, *args):
        print(f"{self.client_address[0]} {format % args}", file=sys.stderr, flush=True)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        # Clients that hang up are everyday life here.
        print(f"{client_address[0]} {sys.exc_info()[1]!r}", file=sys.stderr, flush=True)


def main():
    if len(sys.argv) != 3:
        print(__doc__.strip(), file=sys.stderr)
        return 64
    Handler.directory = sys.argv[2]
    Server(("0.0.0.0", int(sys.argv[1])), Handler).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
