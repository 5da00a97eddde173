"""A stub of Kubernetes' API: ConfigMaps with ``resourceVersion``, and nothing else.

No server of Kubernetes can be had from a package registry. The stub answers as the real one is
documented to: 404 for what is not there, 409 for a name in use and for an older
``resourceVersion``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class ConfigMaps:
    """The ConfigMaps of the server, by namespace and name; `before_put` is called in between.

    Of each request for a change, `conflicts` are answered as if another client had come first.
    """

    def __init__(self) -> None:
        self.maps: dict[tuple[str, str], dict[str, Any]] = {}
        self.conflicts = 0
        self.answered: list[tuple[str, int]] = []
        self.before_put: Callable[[], None] | None = None
        self._revision = 0
        self._lock = threading.Lock()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        if method == "PUT" and self.before_put is not None:
            call, self.before_put = self.before_put, None
            call()
        with self._lock:
            code, content = self._answer(method, path.partition("?")[0].split("/")[1:], body)
            self.answered.append((method, code))
            return code, content

    def _answer(self, method: str, parts: list[str], body: bytes) -> tuple[int, dict[str, Any]]:
        assert parts[:3] == ["api", "v1", "namespaces"]
        assert parts[4] == "configmaps"
        sent = json.loads(body) if body else {}
        name = parts[5] if len(parts) == 6 else sent["metadata"]["name"]
        key = (parts[3], name)
        known = self.maps.get(key)
        if method == "POST":
            if known is not None:
                return _failure(409, "AlreadyExists")
        elif known is None:
            return _failure(404, "NotFound")
        if method == "GET":
            assert known is not None
            return 200, known
        if method == "PUT":
            assert known is not None
            version = sent["metadata"].get("resourceVersion")
            if self.conflicts or version != known["metadata"]["resourceVersion"]:
                self.conflicts -= bool(self.conflicts)
                return _failure(409, "Conflict")
        assert all(isinstance(value, str) for value in sent["data"].values())
        self._revision += 1
        metadata = {**sent["metadata"], "namespace": key[0]}
        metadata["resourceVersion"] = str(self._revision)
        self.maps[key] = {**sent, "metadata": metadata}
        return 201 if method == "POST" else 200, self.maps[key]


def _failure(code: int, reason: str) -> tuple[int, dict[str, Any]]:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason}
    return code, {**status, "code": code}


@contextmanager
def kubernetes_api(config_maps: ConfigMaps, kubeconfig: Path) -> Iterator[str]:
    """Run the server and write a configuration for its clients; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            code, content = config_maps.answer(self.command, self.path, body)
            encoded = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        do_GET = do_PUT = do_POST = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    write_kubeconfig(kubeconfig, address)
    try:
        yield address
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_kubeconfig(path: Path, address: str) -> None:
    """Write a configuration for clients of the server at an address."""
    name = "stub"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": name,
                "clusters": [{"name": name, "cluster": {"server": address}}],
                "users": [{"name": name, "user": {}}],
                "contexts": [
                    {"name": name, "context": {"cluster": name, "user": name, "namespace": "jobs"}}
                ],
            }
        )
    )
