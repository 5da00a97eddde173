"""Every storage fulfils the contract: local files, memory, and real servers of S3 and HDFS."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from pyspark_ckpt.testing.contracts.storage_contract import StorageContract


class TestLocalStorage(StorageContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path / "check points")


class TestMemoryStorage(StorageContract):
    @pytest.fixture
    def url(self) -> str:
        return f"memory://{secrets.token_hex(8)}/check points"


class TestS3Storage(StorageContract):
    @pytest.fixture
    def url(self, s3_url: str) -> str:
        return f"{s3_url}/check points"


class TestHdfsStorage(StorageContract):
    @pytest.fixture
    def url(self, hdfs_url: str) -> str:
        return f"{hdfs_url}/check points"
