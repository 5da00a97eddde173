"""A front of an S3 server that looks at requests, and answers some of them itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_LEFT_OUT = ("transfer-encoding", "connection", "date", "server")
Answer = tuple[int, list[tuple[str, str]], bytes]


@dataclass(frozen=True)
class Request:
    """A request, and how the real server answers it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    behind: str

    def passed_on(self) -> Answer:
        connection = HTTPConnection(self.behind)
        connection.request(self.method, self.path, self.body, self.headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        headers = [pair for pair in answer.getheaders() if pair[0].lower() not in _LEFT_OUT]
        return answer.status, headers, content


@contextmanager
def s3_front(server_url: str, answer_to: Callable[[Request], Answer]) -> Iterator[str]:
    """Run a server in front of the one at `server_url`; yield its own URL."""
    behind = urlsplit(server_url).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = dict(self.headers.items())
            self.send(answer_to(Request(self.command, self.path, headers, body, behind)))

        def send(self, answer: Answer) -> None:
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
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
