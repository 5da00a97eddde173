"""What stands before an object store dies by ``kill -9`` in the middle of an upload.

A file is whole or not there, whatever the writer was answered. A seed is printed for each test.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from pyspark_ckpt.storage.open import open_storage
from pyspark_ckpt.storage.servers import azure as azure_storage
from pyspark_ckpt.storage.servers import gcs as gcs_storage
from tests.external.front import Front
from tests.servers.azure import ACCOUNT, connection_string
from tests.servers.s3 import ask

pytestmark = [pytest.mark.external, pytest.mark.timeout(1200)]

SIZES = (1 << 10, 17 << 20)
"""One request, and for S3 and Azure several of them."""

ROUNDS = 4
AZURE = "AZURE_STORAGE_CONNECTION_STRING"
GCS = "STORAGE_EMULATOR_HOST"


@dataclass(frozen=True)
class Store:
    """A separate directory for the test on a storage whose server has a front."""

    url: str
    front: Front


@pytest.fixture(params=["s3", "azure", "gcs"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    kind = request.param
    environment = request.getfixturevalue(f"{kind}_environment")
    if kind == "s3":
        front = Front(environment["AWS_ENDPOINT_URL"])
        ask(front.url, monkeypatch)
    elif kind == "azure":
        connection = environment[AZURE]
        front = Front(connection.partition("BlobEndpoint=")[2].partition(f"/{ACCOUNT}")[0])
        monkeypatch.setenv(AZURE, connection_string(front.url))
        monkeypatch.setattr(azure_storage, "_service", azure_storage._service.__wrapped__)
    else:
        front = Front(environment[GCS])
        monkeypatch.setenv(GCS, front.url)
    yield Store(request.getfixturevalue(f"{kind}_url"), front)
    front.kill()


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("CKPT_TEST_SEED") or secrets.randbits(32))
    print(f"CKPT_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_file_is_whole_or_not_there(
    store: Store,
    chance: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    comes_back: bool,
) -> None:
    if not comes_back:  # then pauses between repeated requests only take time
        monkeypatch.setattr(gcs_storage, "_FIRST_PAUSE_SECONDS", 0)
        for name in ("initial_backoff", "increment_base", "random_jitter_range"):
            monkeypatch.setitem(azure_storage._RETRIES, name, 0)
    storage = open_storage(store.url)
    for number in range(ROUNDS):
        name, content = f"chk-{number}/_metadata", chance.randbytes(size)
        store.front.kill()
        store.front.start(dies_after=chance.randrange(size))
        back = threading.Thread(target=_start_again, args=(store.front,))
        if comes_back:
            back.start()
        try:
            storage.write(name, [content])
            is_written = True
        except FileExistsError:
            raise
        except OSError:
            is_written = False
        assert is_written or not comes_back
        if comes_back:
            back.join()
        else:
            _start_again(store.front)
        assert open_storage(store.url).exists(name) is is_written
        if not is_written:
            storage.write(name, [content])
        assert storage.read(name) == content
        with pytest.raises(FileExistsError):
            storage.write(name, [b"other"])


def _start_again(front: Front) -> None:
    """Wait for the front to die, and start it."""
    assert front.wait() < 0
    front.start()
