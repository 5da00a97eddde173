"""A process that passes connections on to a server: killed, it is as if the server were gone."""

from __future__ import annotations

import select
import socket
import socketserver
import sys


class _Passing(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as behind:
            ends = {self.request: behind, behind: self.request}
            while True:
                for ready in select.select(list(ends), [], [])[0]:
                    content = ready.recv(1 << 16)
                    if not content:
                        return
                    ends[ready].sendall(content)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    with _Server(("127.0.0.1", int(sys.argv[1])), _Passing) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
