"""The owner of a checkpoints directory: one location, even if moved, and no copy of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.errors import CorruptFileError, RestoreError
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage, Storage, open_storage
from pyspark_ckpt.stores.owner import Owner, check_owner, claim_directory


@pytest.fixture(params=["local", "memory", "s3"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """The query's directory below a checkpoints directory, on each storage."""
    if request.param == "s3":
        return open_storage(f"{request.getfixturevalue('s3_url')}/query")
    if request.param == "memory":
        return open_storage(f"memory://{tmp_path.name}/query")
    return LocalStorage(tmp_path / "checkpoints" / "query")


@pytest.fixture
def original(tmp_path: Path) -> LocalStorage:
    (tmp_path / "loc").mkdir()
    return LocalStorage(tmp_path / "loc")


def copy_of(location: LocalStorage, name: str) -> LocalStorage:
    """Copy a location as ``cp -a`` does, with its times."""
    copy = location.root.with_name(name)
    shutil.copytree(location.root, copy)
    return LocalStorage(copy)


def owns(location: LocalStorage, directory: Storage) -> bool:
    """Return whether a location may start, by the check and by the claim."""
    before = sorted(location.list()), directory.list("owners")
    try:
        check_owner(location, directory)
    except RestoreError as exc:
        message = str(exc)
    else:
        claim_directory(location, directory)
        return True
    assert directory.url in message
    assert "restoreFrom" in message
    with pytest.raises(RestoreError):
        claim_directory(location, directory)
    assert (sorted(location.list()), directory.list("owners")) == before
    return False


def test_a_copy_does_not_own_the_directory(original: LocalStorage, directory: Storage) -> None:
    check_owner(original, directory)
    assert not original.list()
    assert owns(original, directory)
    copy = copy_of(original, "copy")
    assert not owns(copy, directory)
    assert owns(original, directory)
    assert directory.list("owners") == ["1"]


def test_of_copies_without_an_identity_the_first_owns_it(
    original: LocalStorage, directory: Storage
) -> None:
    """They were copied before a first start; the second does not even get an identity."""
    second = copy_of(original, "second")
    assert owns(original, directory)
    assert not owns(second, directory)
    assert not second.list()


def test_of_starts_at_once_one_owns_it(original: LocalStorage, directory: Storage) -> None:
    copies = [original, *(copy_of(original, f"copy{number}") for number in range(3))]

    def claim(location: LocalStorage) -> bool:
        try:
            claim_directory(location, directory)
        except RestoreError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        claimed = list(pool.map(claim, copies))
    assert claimed.count(True) == 1
    assert [owns(location, directory) for location in copies] == claimed


def test_two_starts_of_one_location_both_own_it(original: LocalStorage, directory: Storage) -> None:
    """Which of the drivers is fenced is decided by their terms."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: claim_directory(original, directory), range(4)))
    assert owns(original, directory)


def test_a_crash_between_the_two_writes(original: LocalStorage, directory: Storage) -> None:
    claim_directory(original, directory)
    identity = original.read("_identity.json")
    directory.delete(["owners/1"])
    assert owns(original, directory)
    assert original.read("_identity.json") == identity


class Watched(LocalStorage):
    """Notes what is made durable and written."""

    def __init__(self, root: Path, events: list[str]) -> None:
        super().__init__(root)
        self.events = events

    def make_durable(self, directory: str | None = None) -> None:
        super().make_durable(directory)
        self.events.append(f"durable {directory or self.root.name}")

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        self.events.append(f"write {relative}")
        return super().write(relative, chunks)


def test_a_token_that_is_found_is_durable_before_the_record_has_it(tmp_path: Path) -> None:
    """Whoever wrote it may have been killed before its name was durable (simulated seed 10352)."""
    events: list[str] = []
    location = Watched(tmp_path / "loc", events)
    directory = Watched(tmp_path / "checkpoints" / "query", events)
    claim_directory(location, directory)
    directory.delete(["owners/1"])
    events.clear()
    claim_directory(location, directory)
    assert events == ["durable loc", "write owners/1"]


def test_a_location_that_is_moved_takes_its_directory_along(
    original: LocalStorage, directory: Storage
) -> None:
    """Another location at its old path does not own the directory, nor at its new path."""
    claim_directory(original, directory)
    moved = LocalStorage(original.root.with_name("moved"))
    original.root.rename(moved.root)
    assert owns(moved, directory)
    assert not owns(copy_of(moved, original.root.name), directory)
    assert owns(moved, directory)


def test_a_copy_by_hard_links_does_not_own_the_directory(
    original: LocalStorage, directory: Storage
) -> None:
    """As by ``cp -al`` and backups that link what has not changed: its files are the original's."""
    claim_directory(original, directory)
    copy = original.root.with_name("linked")
    shutil.copytree(original.root, copy, copy_function=os.link)
    assert not owns(LocalStorage(copy), directory)
    assert owns(original, directory)
    assert directory.list("owners") == ["1"]


def test_a_location_with_two_paths_owns_its_directory(
    original: LocalStorage, directory: Storage
) -> None:
    """As with a directory that is mounted at a second place."""
    claim_directory(original, directory)
    other = original.root.with_name("mounted")
    other.symlink_to(original.root)
    record = msgspec.json.decode(directory.read("owners/1"), type=Owner)
    record = msgspec.structs.replace(record, location=str(other))
    directory.write("owners/2", [msgspec.json.encode(record)])
    assert owns(original, directory)


def test_a_location_that_is_put_back_at_its_path_takes_the_directory(
    original: LocalStorage, directory: Storage
) -> None:
    """It may come from a backup; the location that was moved aside is not an owner any more."""
    claim_directory(original, directory)
    aside = LocalStorage(original.root.with_name("aside"))
    original.root.rename(aside.root)
    put_back = copy_of(aside, original.root.name)
    assert owns(put_back, directory)
    assert not owns(aside, directory)
    assert owns(put_back, directory)


def test_another_location_at_the_same_path(original: LocalStorage, directory: Storage) -> None:
    claim_directory(original, directory)
    original.delete(["_identity.json"])
    assert not owns(original, directory)


def test_the_way_out_of_a_location_that_was_moved_to_another_disk(
    original: LocalStorage, directory: Storage
) -> None:
    """As the message says: if the owner is gone, its records are deleted by hand."""
    claim_directory(original, directory)
    copy = copy_of(original, "copy")
    shutil.rmtree(original.root)
    with pytest.raises(RestoreError, match="delete"):
        claim_directory(copy, directory)
    directory.delete_directory("owners")
    assert owns(copy, directory)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"token": 1}', b"\xff\xfe"])
def test_changed_files_are_errors(original: LocalStorage, directory: Storage, text: bytes) -> None:
    claim_directory(original, directory)
    directory.write("owners/2", [text])
    with pytest.raises(CorruptFileError, match="owners"):
        check_owner(original, directory)
    directory.delete(["owners/2"])
    (original.root / "_identity.json").write_bytes(text)
    with pytest.raises(CorruptFileError, match=r"_identity\.json"):
        check_owner(original, directory)


def test_many_records(original: LocalStorage, directory: Storage) -> None:
    """The newest counts, even if each start makes one: on some mounts file numbers change."""
    copies = [copy_of(original, f"loc{number}") for number in range(2)]
    claim_directory(copies[0], directory)
    for _ in range(9):
        content = copies[0].read("_identity.json")
        (copies[0].root / "new").write_bytes(content)
        (copies[0].root / "new").replace(copies[0].root / "_identity.json")
        assert owns(copies[0], directory)
    assert len(directory.list("owners")) == 10
    assert not owns(copies[1], directory)


def test_a_location_in_an_object_store_owns_it_at_its_path_alone(
    s3_url: str, directory: Storage
) -> None:
    """There a moved file cannot be told from a copy, and a file that is put back has its name."""
    original, copy = open_storage(f"{s3_url}/loc"), open_storage(f"{s3_url}/copy")
    claim_directory(original, directory)
    check_owner(open_storage(original.url.replace("s3://", "s3a://")), directory)
    name, content = original.list()[0], original.read(original.list()[0])
    copy.write(name, [content])
    for use in (check_owner, claim_directory):
        with pytest.raises(RestoreError, match=copy.url):
            use(copy, directory)
    original.delete([name])
    original.write(name, [content])
    check_owner(original, directory)
    claim_directory(original, directory)
    assert directory.list("owners") == ["1"]
