"""Every storage fulfils the contract: local files, memory, and real servers."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contracts.storage_contract import StorageContract
from tests.servers.losing_server import is_deletion, losing_azure, losing_gcs, losing_s3


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

    @pytest.fixture
    def lose_deletions(
        self, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Callable[[int], None]]:
        with losing_s3(s3_environment, is_deletion, monkeypatch) as losses:
            yield losses.lose


@pytest.mark.soak
class TestHdfsStorage(StorageContract):
    @pytest.fixture
    def url(self, hdfs_url: str) -> str:
        return f"{hdfs_url}/check points"


@pytest.mark.soak
class TestAzureStorage(StorageContract):
    @pytest.fixture
    def url(self, azure_url: str) -> str:
        return f"{azure_url}/check points"

    @pytest.fixture
    def lose_deletions(
        self, azure_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Callable[[int], None]]:
        with losing_azure(azure_environment, is_deletion, monkeypatch) as losses:
            yield losses.lose


class TestGcsStorage(StorageContract):
    @pytest.fixture
    def url(self, gcs_url: str) -> str:
        return f"{gcs_url}/check points"

    @pytest.fixture
    def lose_deletions(
        self, gcs_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Callable[[int], None]]:
        with losing_gcs(gcs_environment, is_deletion, monkeypatch) as losses:
            yield losses.lose
