"""Azure alone: lost answers, blocks of several writers, what is not a container, no credentials."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from pyspark_ckpt.errors import CheckpointNotFoundError, ConfigurationError
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.storage.open import open_storage
from pyspark_ckpt.storage.servers import azure as azure_storage
from pyspark_ckpt.storage.servers.remote import PART_BYTES
from tests.servers.azure import ACCOUNT, CONTAINER
from tests.servers.losing_server import Losses, losing_azure
from tests.servers.s3_front import Request

pytestmark = pytest.mark.soak

LARGE = 2 * PART_BYTES + 1
CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"
ADLS = f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net"


def creates(request: Request) -> bool:
    return request.method == "PUT" and "comp=block&" not in request.path


@pytest.fixture
def losses(azure_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Losses]:
    """The front that every storage asks from now on."""
    with losing_azure(azure_environment, creates, monkeypatch) as losses:
        yield losses


@pytest.mark.parametrize("carries_out", [False, True])
@pytest.mark.parametrize("size", [1, LARGE])
def test_a_request_that_was_repeated_has_written_the_file_once(
    azure_url: str, losses: Losses, size: int, carries_out: bool
) -> None:
    storage = open_storage(azure_url)
    losses.left, losses.carries_out = 2, carries_out
    if carries_out:
        losses.left = 1
    storage.write("chk-1/_metadata", [b"x" * size])
    assert losses.left == 0
    assert storage.read("chk-1/_metadata") == b"x" * size
    with pytest.raises(FileExistsError):
        storage.write("chk-1/_metadata", [b"x" * size])


def test_a_server_that_stays_busy_is_an_error_and_leaves_nothing(
    azure_url: str, losses: Losses
) -> None:
    storage = open_storage(azure_url)
    losses.left = 1000
    with pytest.raises(OSError, match="Service Unavailable") as failed:
        storage.write("shared/file", [b"x"])
    assert not isinstance(failed.value, FileExistsError)
    assert f"{azure_url}/shared/file" in str(failed.value)
    assert losses.answered == azure_storage._RETRIES["retry_total"] + 1
    assert storage.list() == []


def test_of_eight_large_files_of_one_name_one_is_written(azure_url: str) -> None:
    """All stage their blocks under the name before one of them commits."""
    storage = open_storage(azure_url)
    at_once = threading.Barrier(8)
    written, refused = [], []

    def write(number: int) -> None:
        def chunks() -> Iterator[bytes]:
            yield bytes([number]) * (LARGE - 1)
            at_once.wait()
            yield bytes([number])

        try:
            storage.write("chk-1/large", chunks())
        except FileExistsError:
            refused.append(number)
        else:
            written.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(written) == 1
    assert len(refused) == 7
    assert storage.read("chk-1/large") == bytes([written[0]]) * LARGE


def test_an_upload_whose_content_fails_leaves_nothing_to_be_seen(azure_url: str) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"x" * LARGE
        raise InterruptedError

    storage = open_storage(azure_url)
    with pytest.raises(InterruptedError):
        storage.write("shared/file", chunks())
    assert not storage.exists("shared/file")
    assert storage.list() == []
    storage.write("shared/file", [b"y" * LARGE])
    assert storage.read("shared/file") == b"y" * LARGE


def test_both_schemes_open_the_same_files(azure_url: str) -> None:
    open_storage(azure_url).write("file", [b"x"])
    path = azure_url.partition(CONTAINER)[2]
    for scheme in ("abfss", "abfs"):
        storage = open_storage(f"{ADLS.replace('abfss', scheme)}{path}/")
        assert storage.url == f"{ADLS}{path}"
        assert storage.child("a b").url == f"{ADLS}{path}/a b"
        assert storage.read("file") == b"x"


def test_a_container_that_is_not_there_is_named(azure_url: str) -> None:
    storage = open_storage("az://nobody-made-this/checkpoints")
    with pytest.raises(FileNotFoundError, match="az://nobody-made-this/checkpoints/chk-1"):
        storage.write("chk-1/_metadata", [b"x"])
    with pytest.raises(FileNotFoundError, match="nobody-made-this"):
        storage.list()
    with pytest.raises(CheckpointNotFoundError, match="az://nobody-made-this"):
        read_metadata(storage, "chk-1")


def test_a_wrong_key_is_no_permission(
    azure_environment: dict[str, str], azure_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = azure_environment[CONNECTION]
    monkeypatch.setenv(CONNECTION, connection.replace("Eby8", "AAAA"))
    monkeypatch.setattr(azure_storage, "_service", azure_storage._service.__wrapped__)
    with pytest.raises(PermissionError, match=f"{azure_url}/file"):
        open_storage(azure_url).write("file", [b"x"])


@pytest.mark.parametrize(
    "url",
    [
        "az:///x", "az://Upper/x", "abfss://a@secret:key@b.dfs.core.windows.net/x", "az://",
        "az:/x", "abfss://a@b.dfs.core.windows.net.evil.example/x", "abfss://a@evil.example/x",
    ],
)  # fmt: skip
def test_what_is_no_container_is_refused_and_no_secret_is_shown(url: str) -> None:
    with pytest.raises(ConfigurationError, match="names no container") as refused:
        open_storage(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("missing", "url", "environment", "says"),
    [
        ("azure.storage.blob", "az://c/x", {}, "pyspark_ckpt[azure]"),
        ("azure.identity", "abfss://c@acc.dfs.core.windows.net/x", {}, "pyspark_ckpt[azure]"),
        ("", "az://c/x", {}, "AZURE_STORAGE_ACCOUNT_NAME"),
        ("", "az://c/x", {"AZURE_STORAGE_ACCOUNT_NAME": "acc"}, "opened az://c/x"),
    ],
)
def test_what_is_missing_is_named(
    missing: str, url: str, environment: dict[str, str], says: str
) -> None:
    program = (
        "import sys\n"
        "if sys.argv[2]: sys.modules[sys.argv[2]] = None\n"
        "from pyspark_ckpt.storage.open import open_storage\n"
        "try: print('opened', open_storage(sys.argv[1]).url)\n"
        "except ValueError as refused: print(type(refused).__name__, refused)"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AZURE")}
    said = subprocess.check_output(
        [sys.executable, "-c", program, url, missing], text=True, env=kept | environment
    )
    assert says in said
    assert said.startswith(("ConfigurationError", "opened"))
