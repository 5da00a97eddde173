"""S3 alone: lost answers, uploads in parts, missing buckets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from pyspark_ckpt.checkpoint.cleaning import garbage
from pyspark_ckpt.checkpoint.file_check import check_files
from pyspark_ckpt.errors import CheckpointNotFoundError, ConfigurationError, CorruptFileError
from pyspark_ckpt.formats.layout import segment_path
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.storage.open import open_storage
from pyspark_ckpt.storage.servers import s3 as s3_storage
from pyspark_ckpt.storage.servers.remote import PART_BYTES
from pyspark_ckpt.storage.servers.s3 import S3Storage
from tests.servers import s3 as s3_server_module
from tests.servers.conflicting_s3 import Conflicts, conflicting_s3
from tests.servers.losing_server import Losses, is_deletion, losing_s3
from tests.servers.paging_s3 import paging_s3
from tests.servers.s3 import BUCKET, ask
from tests.servers.s3_front import Answer, Request, s3_front
from tests.servers.waiting_s3 import waiting_s3

LARGE = 2 * PART_BYTES + 1


class LostAnswers(S3Storage):
    """A storage that sends each naming request twice, as after a lost answer."""

    def _call(self, method: str, relative: str, **arguments: Any) -> dict[str, Any]:
        if method in ("put_object", "complete_multipart_upload"):
            super()._call(method, relative, **arguments)
        return super()._call(method, relative, **arguments)


class Failing(S3Storage):
    """A storage that fails at one method of the API, before the request."""

    fails_at = ""

    def _call(self, method: str, relative: str, **arguments: Any) -> dict[str, Any]:
        if method == self.fails_at:
            raise OSError(5, "Input/output error")
        return super()._call(method, relative, **arguments)


@pytest.fixture
def prefix(s3_url: str) -> str:
    return s3_url.removeprefix(f"s3://{BUCKET}/")


def uploads(prefix: str) -> list[str]:
    """Return the uploads below a prefix that are neither completed nor aborted."""
    file_system = fsspec.filesystem("s3", use_listings_cache=False)
    answer = file_system.call_s3("list_multipart_uploads", Bucket=BUCKET, Prefix=prefix)
    return [upload["Key"] for upload in answer.get("Uploads", [])]


@pytest.mark.parametrize("size", [1, LARGE])
def test_a_request_that_was_repeated_has_written_the_file_once(prefix: str, size: int) -> None:
    storage = LostAnswers(BUCKET, prefix)
    storage.write("chk-1/_metadata", [b"x" * size])
    assert storage.read("chk-1/_metadata") == b"x" * size
    with pytest.raises(FileExistsError):
        storage.write("chk-1/_metadata", [b"x" * size])


def creates(request: Request) -> bool:
    is_put = request.method == "PUT" and "partNumber=" not in request.path
    return is_put or (request.method == "POST" and "uploadId=" in request.path)


@pytest.fixture
def losses(s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Losses]:
    """The front that every storage asks from now on."""
    with losing_s3(s3_environment, creates, monkeypatch) as losses:
        yield losses


@pytest.mark.parametrize("carries_out", [False, True])
@pytest.mark.parametrize("size", [1, LARGE])
def test_a_file_whose_answer_got_lost_is_written_once(
    prefix: str, losses: Losses, size: int, carries_out: bool
) -> None:
    """S3 has forgotten an upload whose end is sent again."""
    storage = S3Storage(BUCKET, prefix)
    losses.left, losses.carries_out = 1, carries_out
    written = storage.write("chk-1/_metadata", [b"x" * size])
    assert losses.left == 0
    with storage.open_verified(written) as file:
        assert file.read() == b"x" * size
    with pytest.raises(FileExistsError):
        storage.write("chk-1/_metadata", [b"x" * size])
    assert uploads(prefix) == []


@pytest.fixture
def conflicts(
    s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Conflicts]:
    """Return the server that every storage asks from now on."""
    with conflicting_s3(s3_environment["AWS_ENDPOINT_URL"]) as conflicts:
        ask(conflicts.url, monkeypatch)
        yield conflicts


@pytest.mark.parametrize("does_it_all_the_same", [False, True])
def test_a_put_that_came_in_anothers_way_is_sent_again(
    prefix: str, conflicts: Conflicts, does_it_all_the_same: bool
) -> None:
    storage = S3Storage(BUCKET, prefix)
    conflicts.left, conflicts.does_it_all_the_same = 2, does_it_all_the_same
    storage.write("chk-1/_metadata", [b"x"])
    assert conflicts.answered == 2
    assert storage.read("chk-1/_metadata") == b"x"
    conflicts.left = 1
    with pytest.raises(FileExistsError):
        storage.write("chk-1/_metadata", [b"y"])
    assert conflicts.answered == 3
    assert storage.read("chk-1/_metadata") == b"x"


@pytest.mark.parametrize("size", [1, LARGE])
def test_conflicts_that_do_not_end_are_an_error_and_leave_nothing(
    prefix: str, conflicts: Conflicts, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(s3_storage, "_FIRST_PAUSE_SECONDS", 0)
    storage = S3Storage(BUCKET, prefix)
    conflicts.left = 1000
    with pytest.raises(OSError, match="conflicting operation") as failed:
        storage.write("shared/file", [b"x" * size])
    assert not isinstance(failed.value, FileExistsError)
    assert storage.list() == []
    assert uploads(prefix) == []


@pytest.mark.parametrize(
    "fails_at", ["create_multipart_upload", "upload_part", "complete_multipart_upload"]
)
def test_an_upload_that_fails_leaves_neither_file_nor_parts(prefix: str, fails_at: str) -> None:
    storage = Failing(BUCKET, prefix)
    storage.fails_at = fails_at
    with pytest.raises(OSError, match="Input/output"):
        storage.write("shared/file", [b"x" * LARGE])
    assert storage.list() == []
    assert uploads(prefix) == []


def test_an_upload_whose_content_fails_leaves_no_parts(prefix: str) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"x" * LARGE
        assert uploads(prefix)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        S3Storage(BUCKET, prefix).write("shared/file", chunks())
    assert uploads(prefix) == []


_KILLED_UPLOAD = """
import os, signal, sys
from pyspark_ckpt.storage.open import open_storage
def chunks():
    yield b"x" * int(sys.argv[3])
    os.kill(os.getpid(), signal.SIGKILL)
open_storage(sys.argv[1]).write(sys.argv[2], chunks())
"""


def test_the_parts_of_a_killed_upload_are_garbage_once_their_epoch_is_over(
    s3_url: str, prefix: str
) -> None:
    storage = open_storage(s3_url)
    running = storage.write(segment_path("op", 0, 5), [b"x"])
    arguments = [s3_url, segment_path("op", 0, 5), str(LARGE)]
    killed = subprocess.run([sys.executable, "-c", _KILLED_UPLOAD, *arguments], check=False)
    assert killed.returncode < 0
    assert len(uploads(prefix)) == 1
    assert garbage(storage, [running.path], 4) == []
    (left,) = garbage(storage, [running.path], 5)
    assert not storage.child("shared").list()
    assert storage.list() == ["taskowned"]
    storage.delete([left, left])
    assert uploads(prefix) == []
    assert garbage(storage, [running.path], 5) == []
    assert storage.read(running.path) == b"x"


def test_a_bucket_that_is_not_there_is_named(s3_url: str) -> None:
    storage = open_storage("s3://nobody-made-this/checkpoints")
    with pytest.raises(
        FileNotFoundError, match="s3://nobody-made-this/checkpoints/chk-1/_metadata"
    ):
        storage.write("chk-1/_metadata", [b"x"])
    for directory in (None, "shared"):
        with pytest.raises(FileNotFoundError, match="nobody-made-this"):
            storage.list(directory)
    with pytest.raises(CheckpointNotFoundError, match="s3://nobody-made-this"):
        read_metadata(storage, "chk-1")


def test_a_storage_of_another_bucket_has_other_files(s3_url: str) -> None:
    fsspec.filesystem("s3", use_listings_cache=False).mkdir("other-bucket")
    other = open_storage(s3_url.replace(BUCKET, "other-bucket"))
    other.write("file", [b"other"])
    mine = open_storage(s3_url)
    mine.copy_in(other, other.write("second", [b"copied"]), "copy")
    assert mine.list() == ["copy"]
    assert mine.read("copy") == b"copied"


def test_unfinished_uploads_on_every_page_are_garbage(
    prefix: str, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 lists a thousand per page; here three, and some have equal names."""
    file_system = fsspec.filesystem("s3", use_listings_cache=False)
    paths = [segment_path("op", number, 5) for number in range(8)]
    for path in [*paths, *paths[:3]]:
        file_system.call_s3("create_multipart_upload", Bucket=BUCKET, Key=f"{prefix}/{path}")
    assert len(uploads(prefix)) == 11
    with paging_s3(s3_environment["AWS_ENDPOINT_URL"], size=3) as pages:
        ask(pages.url, monkeypatch)
        storage = S3Storage(BUCKET, prefix)
        left = garbage(storage, [], 5)
        assert len(set(left)) == 11
        assert pages.asked == 4 + 1  # those in `shared` fit on one page
        pages.asked = 0
        storage.delete(left)
        assert pages.asked == 4  # not once for each file
    assert uploads(prefix) == []


def test_a_server_that_lists_no_uploads_lists_its_files(
    prefix: str, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"<Error><Code>NotImplemented</Code><Message>not supported</Message></Error>"

    def answer(request: Request) -> Answer:
        if request.method == "GET" and "uploads" in request.path:
            return 501, [("Content-Type", "application/xml")], content
        return request.passed_on()

    with s3_front(s3_environment["AWS_ENDPOINT_URL"], answer) as url:
        ask(url, monkeypatch)
        storage = S3Storage(BUCKET, prefix)
        written = storage.write(segment_path("op", 0, 5), [b"x" * LARGE])
        assert storage.list() == ["taskowned"]
        assert garbage(storage, [], 5) == [written.path]
        storage.delete([written.path, "taskowned/.file.0123abcd.tmp"])
        assert storage.list() == []


@pytest.mark.parametrize("url", ["s3://bucket/a?versionId=1", "s3a://bucket/a?versionId=/b"])
def test_a_path_that_is_taken_for_a_version_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"\?versionId= .* choose a path without it"):
        open_storage(url)
    with pytest.raises(ConfigurationError, match="versionId"):
        open_storage("s3://bucket").child("a?versionId=1")


def is_look(request: Request) -> bool:
    return request.method == "HEAD"


def test_a_look_at_many_files_is_many_requests_at_once(
    prefix: str, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers none of the first requests before eight of them are under way."""
    storage = S3Storage(BUCKET, prefix)
    files = [storage.write(f"shared/{number}", [b"x" * number]) for number in range(12)]
    with waiting_s3(s3_environment["AWS_ENDPOINT_URL"], 8, is_look) as waiting:
        ask(waiting.url, monkeypatch)
        check_files(S3Storage(BUCKET, prefix), [*files, *files])
        assert (waiting.came, waiting.gave_up) == (12, 0)
        storage.delete([files[7].path])
        with pytest.raises(CorruptFileError, match="shared/7 is missing"):
            check_files(S3Storage(BUCKET, prefix), files)


def test_many_deletions_are_many_requests_at_once(
    prefix: str, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few stay in their order, one after the other."""
    storage = S3Storage(BUCKET, prefix)
    files = [storage.write(f"shared/{number}", [b"x"]).path for number in range(40)]
    with waiting_s3(s3_environment["AWS_ENDPOINT_URL"], 8, is_deletion) as waiting:
        ask(waiting.url, monkeypatch)
        S3Storage(BUCKET, prefix).delete(files)
        assert (waiting.came, waiting.gave_up) == (40, 0)
    assert storage.list("shared") == []


@pytest.mark.parametrize("markers", [[""], ["state/", "state/0/"], ["", "state/"]])
def test_a_directory_goes_with_the_objects_that_hadoop_makes_for_it(
    prefix: str, markers: list[str]
) -> None:
    storage = S3Storage(BUCKET, prefix)
    storage.write("seed/state/0/1.delta", [b"x"])
    storage.write("seeds", [b"stays"])
    file_system = fsspec.filesystem("s3", use_listings_cache=False)

    def put_markers() -> None:
        for marker in markers:
            key = f"{prefix}/seed/{marker}"
            file_system.call_s3("put_object", Bucket=BUCKET, Key=key, Body=b"")

    put_markers()
    storage.remove_directory("seed")
    assert not storage.exists("seed")
    put_markers()
    for directory in ("seed/state/0", "seed/state", "seed"):
        storage.remove_if_empty(directory)
    assert not storage.exists("seed")
    assert storage.list() == ["seeds"]


@pytest.mark.soak
@pytest.mark.parametrize("size", [1, LARGE])
def test_a_server_that_is_killed_during_a_write_is_an_error(
    s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The write never succeeds for the caller, whatever had arrived at the server."""
    program = str(Path(s3_server_module.__file__).with_name("s3_server.py"))
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        ask(f"http://127.0.0.1:{server.stdout.readline().strip()}", monkeypatch)
        s3_storage._file_system().mkdir(BUCKET)
        storage = open_storage(f"s3://{BUCKET}/killed")
        storage.write("shared/before", [b"x"])

        def chunks() -> Iterator[bytes]:
            yield b"x" * size
            server.kill()
            server.wait()
            yield b"x"

        with pytest.raises(OSError, match="s3://checkpoints/killed/shared/file") as failed:
            storage.write("shared/file", chunks())
    assert not isinstance(failed.value, FileExistsError)
