"""Starts and stops the S3 server of the tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import pytest

from pyspark_ckpt.storage.servers import s3 as s3_storage

BUCKET = "checkpoints"


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Run an S3 server on a free port; yield the environment that its clients need."""
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("s3_server.py"))],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        assert port, "the S3 server did not start: run tests/servers/s3_server.py to see why"
        yield {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "NO_PROXY": "127.0.0.1",
        }
    finally:
        server.kill()
        server.wait()


def ask(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every storage ask another server from now on."""
    file_system = fsspec.filesystem(
        "s3", use_listings_cache=False, skip_instance_cache=True, endpoint_url=url
    )
    monkeypatch.setattr(s3_storage, "_file_system", lambda: file_system)
