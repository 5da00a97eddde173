"""Two drivers never fill a location together, and nobody clears one that is complete."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.errors import CorruptFileError, FencedError, RestoreError
from pyspark_ckpt.formats.layout import SEEDINGS, seeding_path
from pyspark_ckpt.restore.location.seedings import (
    begin_seeding,
    is_half_seeded,
    settle_seedings,
)
from pyspark_ckpt.restore.location.start_location import StartLocation
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.memory import MemoryStorage
from pyspark_ckpt.storage.open import LocalStorage, Storage
from tests.faults.epochs import OPERATORS
from tests.unit.restore.location.paused import Paused, pausing

MOST_STEPS = 40


PausedObjects = pausing(MemoryStorage, "exists", "write")
PausedDisk = pausing(LocalStorage, "exists", "write")


class KilledError(Exception):
    """The driver is killed."""


def views(kind: str, directory: Path, paused: Paused) -> tuple[Storage, Storage]:
    """Return a location as a driver sees it that is paused, and as another one does."""
    first: Storage
    other: Storage
    if kind == "objects":
        name = f"{secrets.token_hex(8)}/location"
        first, other = PausedObjects(name), MemoryStorage(name)
    else:
        first, other = PausedDisk(directory), LocalStorage(directory)
    first.paused = paused  # type: ignore[attr-defined]
    return first, other


def fill(location: Storage, epoch: int) -> str:
    """Fill a location with the state of an epoch as a restore does; return the query's id."""
    seeding = begin_seeding(location)
    seeding.clear(None)
    query_id = seeding.name_query()
    text = json.dumps([query_id, epoch]).encode()
    for name in filled_names(epoch):
        seeding.check()
        location.write(name, [text])
    seeding.end()
    return query_id


def filled_names(epoch: int) -> tuple[str, ...]:
    return f"state/0/{epoch + 1}.snapshot", f"offsets/{epoch}", f"commits/{epoch}"


def run(location: Storage, epoch: int) -> None:
    """Commit an epoch, as the query of a complete location does."""
    for name in (f"state/0/{epoch + 1}.delta", f"offsets/{epoch}", f"commits/{epoch}"):
        location.write(name, [json.dumps([SparkLog(location).query_id(), epoch]).encode()])


def content(location: Storage) -> dict[str, tuple[str, int]]:
    paths = [
        path for name in ("state", "offsets", "commits") for path in location.files_below(name)
    ]
    return {path: tuple(json.loads(location.read(path))) for path in paths}


def filled(query_id: str, epoch: int, *, has_run: bool) -> dict[str, tuple[str, int]]:
    last = epoch + has_run
    found = {f"state/0/{epoch + 1}.snapshot": (query_id, epoch)}
    if has_run:
        found[f"state/0/{last + 1}.delta"] = query_id, last
    for name in ("offsets", "commits"):
        found |= {f"{name}/{each}": (query_id, each) for each in range(epoch, last + 1)}
    return found


def check_filled(location: Storage, query_id: str, epoch: int, *, has_run: bool = False) -> None:
    """Check that a location has this content, and at most one file of a driver that was paused.

    Between its look and its next file, nothing stops a driver.
    """
    found, wanted = content(location), filled(query_id, epoch, has_run=has_run)
    assert wanted.items() <= found.items()
    more = found.keys() - wanted.keys()
    assert len(more) <= 1
    assert all(found[path][0] != query_id for path in more)


kinds = pytest.mark.parametrize("kind", ["objects", "disk"])


def has_unfinished(location: Storage) -> None:
    """Leave what a driver leaves that is killed while it fills a location."""
    seeding = begin_seeding(location)
    seeding.clear(None)
    seeding.name_query()
    location.write("state/0/4.snapshot", [b'["killed", 3]'])
    location.write("offsets/3", [b'["killed", 3]'])


@pytest.mark.parametrize("is_used", [False, True])
@kinds
def test_a_paused_driver_adds_nothing_to_what_another_has_filled(
    kind: str, is_used: bool, tmp_path: Path
) -> None:
    """The other one restores another snapshot and runs an epoch; epochs 3 and 7 differ in names."""
    fenced = 0
    for at in range(1, MOST_STEPS):
        paused = Paused(at)
        first, other = views(kind, tmp_path / str(at), paused)
        if is_used:
            has_unfinished(other)
        ids = []

        def start(other: Storage = other, ids: list[str] = ids) -> None:
            if is_half_seeded(other) or SparkLog(other).committed_epoch() is None:
                ids.append(fill(other, 7))
            run(other, SparkLog(other).committed_epoch() + 1)  # type: ignore[operator]

        paused.meanwhile = start
        try:
            query_id = fill(first, 3)
        except (FencedError, RestoreError, OSError):  # the last: what it deleted is there again
            fenced += 1
            check_filled(other, ids[0], 7, has_run=True)
        else:
            check_filled(other, query_id, 3, has_run=paused.left <= 0)
            assert not ids
        assert not is_half_seeded(other)  # whether the marker came late or not
    assert 10 < fenced < MOST_STEPS - 5


@pytest.mark.soak
@kinds
def test_a_paused_driver_never_completes_what_another_has_half_filled(
    kind: str, tmp_path: Path
) -> None:
    """The other driver is killed at any of its steps; the next one that starts clears all of it."""
    half = 0
    for at in range(1, MOST_STEPS, 3):
        for killed_at in range(1, MOST_STEPS, 2):
            paused, killed = Paused(at), Paused(killed_at)
            place = tmp_path / f"{at}-{killed_at}"
            first, other = views(kind, place, paused)
            second = (
                PausedDisk(place)
                if kind == "disk"
                else PausedObjects(first.url.removeprefix("memory://"))
            )
            second.paused = killed

            def killed_now() -> None:
                raise KilledError

            def start(second: Storage = second) -> None:
                with suppress(KilledError, RestoreError):
                    fill(second, 7)

            killed.meanwhile, paused.meanwhile = killed_now, start
            query_id = None
            with suppress(FencedError, RestoreError):
                query_id = fill(first, 3)
            if is_half_seeded(other):
                assert query_id is None
                half += 1
                query_id = fill(other, 5)
                check_filled(other, query_id, 5)
            elif content(other):
                query_id = SparkLog(other).query_id()
                assert query_id is not None
                epoch = SparkLog(other).committed_epoch()
                assert epoch in (3, 7)
                check_filled(other, query_id, epoch)
    assert half > 20


OF_CLEARING = ("exists", "write", "list", "files_below", "size_bytes", "delete", "delete_directory")
ClearingObjects = pausing(MemoryStorage, *OF_CLEARING, "remove_if_empty")
ClearingDisk = pausing(LocalStorage, *OF_CLEARING, "remove_if_empty")


@kinds
def test_a_paused_driver_that_clears_a_location_removes_one_file_of_another_at_most(
    kind: str, tmp_path: Path
) -> None:
    """Both clear what a third one left, and the other one fills it with files of the same names."""
    names = [f"{name}/0/{number}" for name in ("sources", "state") for number in range(2)]
    fenced = 0
    for at in range(1, 200):
        first: Any
        other: Storage
        if kind == "objects":
            place = secrets.token_hex(8)
            first, other = ClearingObjects(place), MemoryStorage(place)
        else:
            first, other = ClearingDisk(tmp_path / str(at)), LocalStorage(tmp_path / str(at))
        has_unfinished(other)
        for name in names:
            other.write(name, [b"of the killed driver"])

        def fill_it(other: Storage = other) -> None:
            fill(other, 7)
            for name in names:
                other.write(name, [b"of the other driver"])

        seeding = begin_seeding(first)
        first.paused = Paused(at, fill_it)
        try:
            seeding.clear(None)
            seeding.name_query()
        except (FencedError, OSError):  # the second: there are files again
            fenced += 1
        else:
            break
        present = {path for name in other.list() for path in (name, *other.files_below(name))}
        wanted = {*names, *filled_names(7), "metadata"}
        assert len(wanted - present) <= 1
        assert not is_half_seeded(other)
    assert first.paused.left > 0
    assert fenced > 20


@kinds
def test_a_location_with_epochs_is_never_cleared(kind: str, tmp_path: Path) -> None:
    _, location = views(kind, tmp_path / "a", Paused())
    location.write("offsets/0", [b"x"])
    with pytest.raises(RestoreError, match="is not empty and has no committed epoch"):
        begin_seeding(location)
    assert location.list() == ["offsets"]


def test_an_epoch_that_begins_at_the_same_time_is_not_cleared(tmp_path: Path) -> None:
    """The restore found a fresh location, and a query without one began there before its file."""

    class Overtaken(LocalStorage):
        def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
            if relative == seeding_path(1):
                super().write("offsets/0", [b"x"])
            return super().write(relative, chunks)

    location = Overtaken(tmp_path / "location")
    with pytest.raises(RestoreError, match="is not empty and has no committed epoch"):
        begin_seeding(location)
    assert location.read("offsets/0") == b"x"
    assert not is_half_seeded(location)


def test_a_start_sees_a_restore_that_began_or_ended_meanwhile(tmp_path: Path) -> None:
    location = LocalStorage(tmp_path / "location")
    start = StartLocation(location, None, OPERATORS)
    query_id = start.make_query_id()
    start.check_unchanged(query_id)
    seeding = begin_seeding(location)
    with pytest.raises(FencedError, match="another driver has restored a query into this location"):
        start.check_unchanged(query_id)
    seeding.clear(None)
    restored = seeding.name_query()
    seeding.end()
    with pytest.raises(FencedError, match="another driver has restored a query into this location"):
        start.check_unchanged(query_id)
    start.check_unchanged(restored)


def test_a_start_relies_on_no_end_that_a_power_loss_may_take(tmp_path: Path) -> None:
    """A driver was killed after it had named the end, before the name was durable."""
    location = Noting(tmp_path / "location")
    fill(location, 3)
    location.durable.clear()
    settle_seedings(location)
    assert location.durable == [SEEDINGS]
    assert not is_half_seeded(location)


class Noting(LocalStorage):
    """A location that notes which directories were made durable."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.durable: list[str | None] = []

    def make_durable(self, directory: str | None = None) -> None:
        self.durable.append(directory)
        super().make_durable(directory)


def test_a_seeding_that_has_changed_nothing_locks_no_location(tmp_path: Path) -> None:
    """Its driver was killed between its number and its second look; a query has begun there."""
    location = LocalStorage(tmp_path / "location")
    location.write(seeding_path(1), [b"begun\n"])
    run(location, 0)
    settle_seedings(location)
    assert not is_half_seeded(location)
    assert SparkLog(location).committed_epoch() == 0
    with pytest.raises(FencedError, match="has filled this location"):
        begin_seeding(location)
    assert SparkLog(location).committed_epoch() == 0


def test_a_driver_that_was_overtaken_before_it_did_anything_is_fenced(tmp_path: Path) -> None:
    """Another start ends its seeding, which has a number and no note that all was fresh."""
    fenced = 0
    for at in range(1, 10):
        paused = Paused(at)
        first, other = views("disk", tmp_path / str(at), paused)
        paused.meanwhile = lambda other=other: settle_seedings(other)  # type: ignore[misc]
        try:
            begin_seeding(first).check()
        except FencedError:
            fenced += 1
        assert is_half_seeded(other) == (not other.exists(seeding_path(2)))
    assert fenced == 1


def test_a_changed_file_of_a_seeding_is_not_taken_for_its_end(tmp_path: Path) -> None:
    location = LocalStorage(tmp_path / "location")
    location.write(seeding_path(1), [b""])
    with pytest.raises(CorruptFileError, match="fresh checkpointLocation"):
        is_half_seeded(location)
    assert location.list() == [SEEDINGS]
