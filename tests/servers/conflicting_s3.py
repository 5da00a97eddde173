"""Stands before an S3 server and answers some requests as S3 does while others are under way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_CONFLICT = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>ConditionalRequestConflict</Code>'
    b"<Message>The conditional request cannot succeed due to a conflicting operation against this "
    b"resource.</Message></Error>"
)
_LEFT_OUT = ("transfer-encoding", "connection", "date", "server")
_Answer = tuple[int, list[tuple[str, str]], bytes]


class Conflicts:
    """How many conditional requests are still to be answered with 409, and how many were.

    `does_it_all_the_same`: requests that are answered so have been carried out.
    """

    def __init__(self) -> None:
        self.url = ""
        self.left = 0
        self.answered = 0
        self.does_it_all_the_same = False


@contextmanager
def conflicting_s3(server_url: str) -> Iterator[Conflicts]:
    """Run the server in front of the one at `server_url`; its own is in what is yielded."""
    conflicts = Conflicts()
    behind = urlsplit(server_url).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if "If-None-Match" in self.headers and conflicts.left > 0:
                conflicts.left -= 1
                conflicts.answered += 1
                if conflicts.does_it_all_the_same:
                    self.passed_on(body)
                self.send((409, [("Content-Length", str(len(_CONFLICT)))], _CONFLICT))
            else:
                self.send(self.passed_on(body))

        def passed_on(self, body: bytes) -> _Answer:
            connection = HTTPConnection(behind)
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            headers = [pair for pair in answer.getheaders() if pair[0].lower() not in _LEFT_OUT]
            return answer.status, headers, content

        def send(self, answer: _Answer) -> None:
            status, headers, content = answer
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            if not any(name.lower() == "content-length" for name, _ in headers):
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    conflicts.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield conflicts
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
