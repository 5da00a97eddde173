"""An S3 server on loopback: moto, one request at a time, so that a conditional put is atomic.

As S3, it refuses a request that was cut off; moto alone would store what has arrived. As S3, it
forgets an upload that has ended; moto alone would look at the condition of the repeated end first.
Prints its port when it takes requests.
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


_FORGOTTEN = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>NoSuchUpload</Code><Message>The specified '
    b"upload does not exist. The upload ID may be invalid, or the upload may have been aborted or "
    b"completed.</Message></Error>"
)


class EndedUploads:
    """Does not find an upload that was completed."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._ended: set[str] = set()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        query = environ.get("QUERY_STRING", "")
        if environ["REQUEST_METHOD"] != "POST" or "uploadId=" not in query:
            return self._app(environ, start_response)
        if query in self._ended:
            headers = [
                ("Content-Type", "application/xml"),
                ("Content-Length", str(len(_FORGOTTEN))),
            ]
            start_response("404 Not Found", headers)
            return [_FORGOTTEN]

        def noted(status: str, *answer: Any) -> Any:
            if status.startswith("200"):
                self._ended.add(query)
            return start_response(status, *answer)

        return self._app(environ, noted)


if __name__ == "__main__":
    moto = DomainDispatcherApplication(create_backend_app)
    app = WholeBodies(EndedUploads(moto))
    server = make_server("127.0.0.1", 0, app, threaded=False, request_handler=WholeHeaders)
    print(server.server_port, flush=True)
    server.serve_forever()
