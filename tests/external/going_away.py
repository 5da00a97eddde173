"""A process that passes connections on to a server: killed, it is as if the server were gone.

Its arguments are its port, the server's port, and after how many bytes of requests it kills itself.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import socketserver
import sys
import threading

_left = int(sys.argv[3]) if len(sys.argv) > 3 else sys.maxsize
_guard = threading.Lock()


def _passes(size: int) -> int:
    """Return how many more bytes of requests may pass before it dies."""
    global _left
    with _guard:
        _left -= size
        return size if _left >= 0 else max(size + _left, 0)


class _Passing(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as behind:
            ends = {self.request: behind, behind: self.request}
            while True:
                for ready in select.select(list(ends), [], [])[0]:
                    content = ready.recv(1 << 16)
                    if not content:
                        return
                    size = _passes(len(content)) if ready is self.request else len(content)
                    ends[ready].sendall(content[:size])
                    if size < len(content):
                        os.kill(os.getpid(), signal.SIGKILL)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    with _Server(("127.0.0.1", int(sys.argv[1])), _Passing) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
