"""Starts and stops Azurite, an Azure Blob Storage on loopback, from npm."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.installed import free_port, installed, run, wait_for_port

CONTAINER = "checkpoints"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account and key that every Azurite has."""

_VERSION = "3.37.0"


@contextmanager
def azure_server() -> Iterator[dict[str, str]]:
    """Run Azurite on a free port; yields what the environment of its clients needs."""
    place = installed(f"azurite-{_VERSION}", _fill)
    port = free_port()
    program = place / "node_modules/.bin/azurite-blob"
    server = subprocess.Popen(
        [
            str(program), "--silent", "--skipApiVersionCheck", "--inMemoryPersistence",
            "--disableTelemetry", "--blobHost", "127.0.0.1", "--blobPort", str(port),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for_port(port, server)
        yield {
            "AZURE_STORAGE_CONNECTION_STRING": connection_string(f"http://127.0.0.1:{port}"),
            "NO_PROXY": "127.0.0.1",
        }
    finally:
        server.kill()
        server.wait()


def connection_string(url: str) -> str:
    """Return how clients find the account at a server's URL."""
    return (
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
        f"BlobEndpoint={url}/{ACCOUNT};"
    )


def _fill(directory: Path) -> None:
    run(["npm", "install", "--no-audit", "--no-fund", f"azurite@{_VERSION}"], directory)
