"""An S3 server on loopback: moto, one request at a time, so that a conditional put is atomic.

Prints its port when it takes requests.
"""

from __future__ import annotations

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

if __name__ == "__main__":
    server = make_server(
        "127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False
    )
    print(server.server_port, flush=True)
    server.serve_forever()
