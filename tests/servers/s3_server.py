"""An S3 server on loopback: moto, one request at a time, so that a conditional put is atomic.

As S3, it refuses a request that was cut off; moto alone would store what has arrived. Prints its
port when it takes requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

_ENDS_HEADERS = (b"\r\n", b"\n")


class WholeHeaders(WSGIRequestHandler):
    """Does not answer a request whose headers were cut off."""

    def parse_request(self) -> bool:
        reads = self.rfile.readline
        lines: list[bytes] = []

        def readline(*size: int) -> bytes:
            lines.append(reads(*size))
            return lines[-1]

        self.rfile.readline = readline  # type: ignore[method-assign]
        try:
            return super().parse_request() and bool(lines) and lines[-1] in _ENDS_HEADERS
        finally:
            self.rfile.readline = reads  # type: ignore[method-assign]


class WholeBodies:
    """Refuses requests whose body was cut off."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        size = int(environ.get("CONTENT_LENGTH") or 0)
        if size:
            body = environ["wsgi.input"].read(size)
            if len(body) < size:
                start_response("400 Bad Request", [("Content-Length", "0")])
                return []
            environ["wsgi.input"] = BytesIO(body)
        return self._app(environ, start_response)


if __name__ == "__main__":
    moto = DomainDispatcherApplication(create_backend_app)
    server = make_server(
        "127.0.0.1", 0, WholeBodies(moto), threaded=False, request_handler=WholeHeaders
    )
    print(server.server_port, flush=True)
    server.serve_forever()
