"""A storage counts its requests as its server does."""

from __future__ import annotations

from collections.abc import Iterator

import fsspec
import pytest

from pyspark_ckpt.storage.open import open_storage
from pyspark_ckpt.storage.retrying import RetryingStorage
from pyspark_ckpt.storage.servers import s3 as s3_storage
from pyspark_ckpt.storage.servers.remote import between
from tests.servers.counting_server import Counting, counting_server

LARGE = 17 << 20


@pytest.fixture
def counting(s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    with counting_server(s3_environment["AWS_ENDPOINT_URL"]) as counting:
        file_system = fsspec.filesystem(
            "s3", use_listings_cache=False, skip_instance_cache=True, endpoint_url=counting.url
        )
        monkeypatch.setattr(s3_storage, "_file_system", lambda: file_system)
        yield counting


def test_the_counts_are_the_servers(s3_url: str, counting: Counting) -> None:
    storage = RetryingStorage(open_storage(s3_url))
    before, at_server = storage.requests(), counting.so_far()
    reference = storage.write("chk-1/_metadata", [b"x"])
    storage.child("shared").write("large", [b"x" * LARGE])
    storage.child("shared").parent().read("chk-1/_metadata")
    with storage.open_verified(reference) as file:
        file.read()
    assert storage.size_bytes("chk-1/_metadata") == 1
    assert not storage.exists("chk-2")
    assert storage.exists("shared")
    assert storage.list("shared") == ["large"]
    assert storage.list("requests") == []
    storage.delete(["chk-1/_metadata"])
    counted = between(before, storage.requests())
    assert counted == between(at_server, counting.so_far())
    # A large file: begin, three parts, end. A look for what is not a file lists a directory, and
    # a listing also asks for unfinished uploads.
    assert counted == {"delete": 1, "get": 2, "head": 5, "list": 2 + 2 + 3, "put": 1 + 5}


@pytest.mark.soak_variants
@pytest.mark.parametrize("fixture", ["gcs_url", "hdfs_url", "azure_url"])
def test_every_server_counts_one_write_and_one_read(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    storage = open_storage(request.getfixturevalue(fixture))
    storage.write("file", [b"x"])
    storage.read("file")
    assert storage.exists("file")
    assert storage.list() == ["file"]
    storage.delete(["file"])
    assert storage.requests() == {"put": 1, "get": 1, "head": 1, "list": 1, "delete": 1}


def test_a_disk_sends_no_requests(tmp_path: object) -> None:
    storage = open_storage(str(tmp_path))
    storage.write("file", [b"x"])
    assert storage.requests() == {}


def test_other_kinds_are_left_out() -> None:
    assert between({"put": 1, "get": 2}, {"put": 4, "get": 2, "list": 1}) == {"list": 1, "put": 3}
