"""The storages that the contract is for."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from pyspark_ckpt.storage.open import Storage, open_storage

KINDS = ("local", "memory", "s3")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Where nothing is yet; the name has characters that mean something to others."""
    above = {
        "local": lambda: str(tmp_path),
        "memory": lambda: f"memory://{secrets.token_hex(8)}",
        "s3": lambda: request.getfixturevalue("s3_url"),
    }[kind]()
    return f"{above}/check points"


@pytest.fixture
def any_storage(url: str) -> Storage:
    return open_storage(url)
