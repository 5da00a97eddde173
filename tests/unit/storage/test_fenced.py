"""A storage that is fenced: who has lost the lease changes nothing, and may read."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_ckpt.errors import FencedError
from pyspark_ckpt.storage.base import FileReference, Storage
from pyspark_ckpt.storage.fenced import FencedStorage
from pyspark_ckpt.storage.open import LocalStorage, open_storage
from tests.contracts.storage_contract import StorageContract


class Held:
    """A lease, until it is lost."""

    def __init__(self) -> None:
        self.is_lost = False

    def check(self) -> None:
        if self.is_lost:
            raise FencedError("lost")


class TestFencedStorage(StorageContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path / "check points")

    @pytest.fixture
    def any_storage(self, url: str) -> Storage:
        return FencedStorage(open_storage(url), Held())


def _reference(storage: Storage) -> FileReference:
    return storage.write("of-another/file", [b"content"])


CHANGES: dict[str, Callable[[Storage, Storage], object]] = {
    "write": lambda storage, _: storage.write("new", [b"x"]),
    "replace": lambda storage, _: storage.replace("new", b"x"),
    "make_directory": lambda storage, _: storage.make_directory("new"),
    "delete": lambda storage, _: storage.delete(["there/a"]),
    "delete_directory": lambda storage, _: storage.delete_directory("there"),
    "remove_directory": lambda storage, _: storage.remove_directory("there"),
    "remove_if_empty": lambda storage, _: storage.remove_if_empty("empty"),
    "move": lambda storage, _: storage.move("there", "elsewhere"),
    "move_files": lambda storage, _: storage.move_files("there", "elsewhere", lambda: None),
    "copy_within": lambda storage, _: storage.copy_within("there/a", "copy"),
    "copy_in": lambda storage, other: storage.copy_in(other, _reference(other), "copy"),
    "link_or_copy_in": lambda storage, other: storage.link_or_copy_in(
        other, _reference(other), "copy"
    ),
}
READS = {
    "check", "check_usable", "child", "chunks", "entries", "exists", "files_below", "fingerprint",
    "hadoop_url", "list", "local_path", "make_durable", "name", "open_verified", "parent", "read",
    "read_start", "requests", "sha256_of", "size_bytes", "url_of", "verify_size",
}  # fmt: skip
"""What changes nothing; `make_durable` keeps what others have written."""


def test_every_operation_is_known_to_change_something_or_not() -> None:
    """A new one that changes something, and does not ask the lease, would not be noticed."""
    names = {name for name, _ in inspect.getmembers(FencedStorage) if not name.startswith("_")}
    assert names - READS - {"is_remote", "is_shared", "moves_at_once"} == CHANGES.keys()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moves_at_once", [True, False])
@pytest.mark.parametrize("below", [False, True])
def test_who_has_lost_the_lease_changes_nothing(
    tmp_path: Path, change: str, moves_at_once: bool, below: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStorage, "moves_at_once", moves_at_once)
    lease = Held()
    raw = LocalStorage(tmp_path / "root" / "below" if below else tmp_path / "root")
    storage: Storage = FencedStorage(LocalStorage(tmp_path / "root"), lease)
    if below:
        storage = storage.child("below")
    raw.write("there/a", [b"a"])
    raw.make_directory("empty")
    other = LocalStorage(tmp_path / "other")
    before = sorted(path for path in (tmp_path / "root").rglob("*"))
    lease.is_lost = True
    with pytest.raises(FencedError):
        CHANGES[change](storage, other)
    assert sorted(path for path in (tmp_path / "root").rglob("*")) == before
    assert storage.read("there/a") == b"a"
    lease.is_lost = False
    other = LocalStorage(tmp_path / "another")
    CHANGES[change](storage, other)
    assert sorted(path for path in (tmp_path / "root").rglob("*")) != before


def test_who_loses_the_lease_during_a_move_deletes_nothing_more(tmp_path: Path) -> None:
    """Where files are moved one by one, each is deleted from its old place only by who has it."""

    class OneByOne(LocalStorage):
        moves_at_once = False

        def copy_within(self, relative: str, target: str) -> None:
            super().copy_within(relative, target)
            lease.is_lost = target.endswith("b")

    lease, inner = Held(), OneByOne(tmp_path)
    for name in ("a", "b", "c"):
        inner.write(f"there/{name}", [name.encode()])
    with pytest.raises(FencedError):
        FencedStorage(inner, lease).move("there", "elsewhere")
    assert inner.list("there") == ["b", "c"]
    assert sorted(inner.list("elsewhere")) == ["a", "b"]
