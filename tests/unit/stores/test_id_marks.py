"""How far ids have come is known without a listing."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.layout import id_mark_path
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import IDS_OF_MARK, CompletedCheckpoints, IdMarks


class Lagging(LocalStorage):
    """Its listings have no checkpoint yet."""

    def list(self, directory: str | None = None) -> list[str]:
        return [name for name in super().list(directory) if not name.startswith("chk-")]


def last_id_at_next_start(root: Path) -> int:
    store = CompletedCheckpoints(Lagging(root))
    store.claim()
    return store.last_id()


@pytest.mark.parametrize("last", [1, 9, IDS_OF_MARK, IDS_OF_MARK + 1, 5 * IDS_OF_MARK + 3])
def test_no_id_is_used_twice_although_a_listing_lacks_all(
    storage: LocalStorage, snapshot: CheckpointMetadata, last: int
) -> None:
    """Only the newest checkpoint is retained, as after a claim (simulated seed 64229)."""
    store = CompletedCheckpoints(storage)
    for number in range(1, last + 1):
        store.add(number, snapshot)
        store.remove(number - 1)
    storage.delete([f"chk-{last}/_metadata"])
    assert last_id_at_next_start(storage.root) == last


@pytest.mark.parametrize(
    ("retained", "last"),
    [(3, IDS_OF_MARK + 1), (3, IDS_OF_MARK), (40, 5 * IDS_OF_MARK + 3), (40, 20)],
)
def test_all_retained_checkpoints_are_found_although_a_listing_lacks_them(
    storage: LocalStorage, snapshot: CheckpointMetadata, retained: int, last: int
) -> None:
    """They may have been made before the newest mark."""
    store = CompletedCheckpoints(storage)
    for number in range(1, last + 1):
        store.add(number, snapshot)
        store.remove(number - retained)
    next_start = CompletedCheckpoints(Lagging(storage.root))
    next_start.claim()
    assert next_start.ids() == list(range(max(last - retained, 0) + 1, last + 1))


def test_ids_below_the_listing_s_highest_are_not_looked_for(
    storage: LocalStorage, snapshot: CheckpointMetadata
) -> None:
    """A start needs few requests, however many checkpoints there were."""
    store = CompletedCheckpoints(storage)
    for number in range(1, 4 * IDS_OF_MARK + 1):
        store.add(number, snapshot)
        store.remove(number - 3)
    looked: list[str] = []

    class Noted(LocalStorage):
        def exists(self, relative: str) -> bool:
            looked.append(relative)
            return super().exists(relative)

    CompletedCheckpoints(Noted(storage.root)).claim()
    assert not [path for path in looked if path.startswith("chk-")]


def test_an_id_that_was_marked_and_never_reserved_is_left_out(storage: LocalStorage) -> None:
    """Its driver may be about to reserve it."""
    IdMarks(storage).cover(40)
    assert last_id_at_next_start(storage.root) == 40


def test_ids_of_a_directory_without_marks_are_those_of_its_listing(
    storage: LocalStorage, snapshot: CheckpointMetadata
) -> None:
    CompletedCheckpoints(storage).add(500, snapshot)
    for number in (1, 2):
        storage.delete([id_mark_path(number)])
    store = CompletedCheckpoints(storage)
    store.claim()
    assert store.last_id() == 500
    store.add(501, snapshot)
    assert IdMarks(storage).read() == range(501, 501 + IDS_OF_MARK)


def test_one_mark_stands_for_several_ids_and_two_drivers_share_them(
    storage: LocalStorage,
) -> None:
    first, second = IdMarks(storage), IdMarks(storage)
    assert list(first.read()) == list(second.read()) == []
    for number in range(1, 2 * IDS_OF_MARK + 1):
        first.cover(number)
        second.cover(number)
    assert storage.exists(id_mark_path(2))
    assert not storage.exists(id_mark_path(3))
    second.cover(10 * IDS_OF_MARK)
    first.cover(3 * IDS_OF_MARK)  # it lost the third number, and its id is lower than that mark
    assert IdMarks(storage).read()[0] == 10 * IDS_OF_MARK


@pytest.mark.parametrize("content", [b"", b"x", b"-1", b"1" * 40])
def test_a_changed_mark_is_named(storage: LocalStorage, content: bytes) -> None:
    storage.write(id_mark_path(1), [content])
    with pytest.raises(CorruptFileError, match="ids-1"):
        IdMarks(storage).read()
