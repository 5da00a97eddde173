"""Google Cloud Storage alone: lost answers, large objects, pages, missing buckets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import pytest

from pyspark_ckpt.errors import CheckpointNotFoundError, ConfigurationError
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.storage.open import open_storage
from pyspark_ckpt.storage.servers import gcs as gcs_storage
from pyspark_ckpt.storage.servers.gcs import GcsStorage
from tests.servers.losing_server import Losses, losing_gcs
from tests.servers.s3_front import Answer, Request, s3_front

EMULATOR = "STORAGE_EMULATOR_HOST"
LARGE = 17 << 20
"""More than is kept in memory before it is sent."""


def creates(request: Request) -> bool:
    return request.method == "POST"


@pytest.fixture
def losses(gcs_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Losses]:
    """The front that every storage asks from now on."""
    with losing_gcs(gcs_environment, creates, monkeypatch) as losses:
        yield losses


@pytest.mark.parametrize("carries_out", [False, True])
@pytest.mark.parametrize("size", [1, LARGE])
def test_a_request_that_was_repeated_has_written_the_file_once(
    gcs_url: str, losses: Losses, size: int, carries_out: bool
) -> None:
    storage = open_storage(gcs_url)
    losses.left, losses.carries_out = (1 if carries_out else 2), carries_out
    storage.write("chk-1/_metadata", [b"x" * size])
    assert losses.left == 0
    assert storage.read("chk-1/_metadata") == b"x" * size
    with pytest.raises(FileExistsError):
        storage.write("chk-1/_metadata", [b"x" * size])


def test_a_server_that_stays_busy_is_an_error_and_leaves_nothing(
    gcs_url: str, losses: Losses
) -> None:
    storage = open_storage(gcs_url)
    losses.left = 1000
    with pytest.raises(OSError, match="503") as failed:
        storage.write("shared/file", [b"x"])
    assert not isinstance(failed.value, FileExistsError)
    assert f"{gcs_url}/shared/file" in str(failed.value)
    assert losses.answered == gcs_storage._ATTEMPTS
    assert storage.list() == []


def test_a_server_that_is_away_is_an_error(gcs_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs_storage, "_FIRST_PAUSE_SECONDS", 0)
    monkeypatch.setenv(EMULATOR, "http://127.0.0.1:9")
    with pytest.raises(OSError, match=f"refused.*{gcs_url}/file"):
        open_storage(gcs_url).write("file", [b"x"])


def test_a_listing_has_all_pages(gcs_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage(gcs_url)
    assert isinstance(storage, GcsStorage)
    for number in range(7):
        storage.write(f"shared/{number}", [b"x"])
        storage.write(f"shared/deep-{number}/file", [b"x"])
    page = GcsStorage._page
    asked = []

    def small_page(self: GcsStorage, prefix: str, **arguments: str) -> dict[str, object]:
        asked.append(arguments)
        return page(self, prefix, **{"maxResults": "3", **arguments})

    monkeypatch.setattr(GcsStorage, "_page", small_page)
    assert storage.list("shared") == sorted(
        [*map(str, range(7)), *(f"deep-{number}" for number in range(7))]
    )
    assert len(asked) >= 3
    storage.delete_directory("shared")
    assert not storage.exists("shared")


def test_an_empty_page_before_others_hides_no_directory(
    gcs_environment: dict[str, str], gcs_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may answer so while it passes over what was deleted."""
    content = b'{"nextPageToken": "next"}'

    def answer(request: Request) -> Answer:
        if request.method != "GET" or "prefix=" not in request.path:
            return request.passed_on()
        if "pageToken=next" in request.path:
            return replace(request, path=request.path.replace("pageToken=next", "")).passed_on()
        return 200, [("Content-Type", "application/json")], content

    with s3_front(gcs_environment[EMULATOR], answer) as front:
        monkeypatch.setenv(EMULATOR, front)
        storage = open_storage(gcs_url)
        storage.write("state/0/1.delta", [b"x"])
        assert storage.exists("state")
        assert not storage.exists("state/1")
        assert storage.list() == ["state"]
        storage.remove_directory("state")
        assert not storage.exists("state")


def test_a_bucket_that_is_not_there_is_named(gcs_url: str) -> None:
    storage = open_storage("gs://nobody-made-this/checkpoints")
    with pytest.raises(FileNotFoundError, match="gs://nobody-made-this/checkpoints/chk-1"):
        storage.write("chk-1/_metadata", [b"x"])
    with pytest.raises(CheckpointNotFoundError, match="gs://nobody-made-this"):
        read_metadata(storage, "chk-1")


@pytest.mark.parametrize("url", ["gs:///x", "gs://Upper/x", "gs://key:secret@bucket/x", "gs://"])
def test_what_is_no_bucket_is_refused_and_no_secret_is_shown(url: str) -> None:
    with pytest.raises(ConfigurationError, match="not a bucket's name") as refused:
        open_storage(url)
    assert "secret" not in str(refused.value)


@pytest.mark.soak_variants
@pytest.mark.parametrize(
    ("missing", "says"), [("google.auth", "pyspark_ckpt[gcs]"), ("", "finds no credentials")]
)
def test_what_is_missing_is_named(missing: str, says: str) -> None:
    program = (
        "import sys\n"
        "if sys.argv[1]: sys.modules[sys.argv[1]] = None\n"
        "from pyspark_ckpt.storage.open import open_storage\n"
        "try: open_storage('gs://bucket/x')\n"
        "except ValueError as refused: print(type(refused).__name__, refused)"
    )
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GOOGLE", "STORAGE_EMULATOR"))
    }
    nowhere = {"HOME": "/nonexistent", "NO_GCE_CHECK": "true"}
    said = subprocess.check_output(
        [sys.executable, "-c", program, missing], text=True, env=kept | nowhere
    )
    assert said.startswith("ConfigurationError")
    assert says in said


@pytest.mark.parametrize("markers", [[""], ["state/", "state/0/"], ["", "state/"]])
def test_the_objects_that_hadoop_makes_for_directories_are_no_files(
    gcs_url: str, gcs_environment: dict[str, str], markers: list[str]
) -> None:
    """A location on Google's connector has them, and a restore copies the files of directories."""
    storage = open_storage(gcs_url)
    storage.write("seed/state/0/1.delta", [b"x"])
    bucket, _, root = gcs_url.removeprefix("gs://").partition("/")
    upload = f"{gcs_environment[EMULATOR]}/upload/storage/v1/b/{bucket}/o?uploadType=media"

    def put_markers() -> None:
        for marker in markers:
            name = quote(f"{root}/seed/{marker}", safe="")
            urlopen(HttpRequest(f"{upload}&name={name}", b"", method="POST")).close()

    put_markers()
    assert storage.files_below("seed") == ("seed/state/0/1.delta",)
    assert storage.entries("seed") == {"state": True}
    assert storage.list("seed/state") == ["0"]
    storage.remove_directory("seed")
    assert not storage.exists("seed")
    put_markers()
    for directory in ("seed/state/0", "seed/state", "seed"):
        storage.remove_if_empty(directory)
    assert not storage.exists("seed")
