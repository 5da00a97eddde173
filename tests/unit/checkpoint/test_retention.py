"""Scenario 46: files are deleted when nothing refers to them any more, and not before.

The test itself counts the references to a file: from the handles that tasks returned and from the
directories that are there. It knows which call wrote a file because it looked before and after.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ckpt.checkpoint.cleaning import CheckpointFiles, garbage_of
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.settings import Materialization
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.faults.keyed_query import KEYS, KeyedQuery, by_subtask
from tests.faults.query_oracle import files_in, restored, tree, uploaded_of
from tests.unit.operator.materialized_subtask import ALWAYS, NEVER
from tests.unit.operator.subtask_epochs import IN_MEMORY

EPOCHS = 40
CALLS_KEPT = 6
"""A file may stay for so many calls of its subtask although nothing refers to it."""

EVERY_FEW = Materialization(interval_ms=10**15, min_changelog_bytes=10**15, max_segments=3)


@pytest.fixture
def directory() -> Iterator[Path]:
    """In memory, because the histories are long."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as path:
        yield Path(path)


class Files:
    """The state files of a query: which call wrote each, its size, and what refers to it."""

    def __init__(self, query: KeyedQuery) -> None:
        self.query = query
        self.sizes: dict[str, int] = {}
        self.calls: dict[tuple[str, int], list[set[str]]] = {}
        self.referred: dict[int, set[str]] = {}

    def epoch(self, chance: random.Random) -> None:
        """Run an epoch: "count" has few rows, "rare" has none in most epochs."""
        query = self.query
        writes = {"count": {chance.choice(KEYS): chance.randbytes(9) for _ in range(2)}, "rare": {}}
        if query.epoch in (None, 20) or chance.random() < 0.05:
            writes["rare"] = {key: chance.randbytes(90) for key in chance.sample(KEYS, 2)}
        number = 0 if query.epoch is None else query.epoch + 1
        made: dict[str, dict[int, Handle]] = {}
        for uid, place, changes in by_subtask(query, writes):
            subtask = query.subtask(uid, place)
            subtask.settings = EVERY_FEW
            before = query.state_files()
            handle = subtask.call(number, changes, twin=chance.random() < 0.1, from_loser=False)
            assert subtask.uploads is not None
            subtask.uploads.run()
            made.setdefault(uid, {})[place] = handle
            self.calls.setdefault((uid, place), []).append(query.state_files() - before)
        query.commit(writes, made)

    def note(self) -> set[str]:
        """Note the files that exist, and return them."""
        there = self.query.state_files()
        for path in there - self.sizes.keys():
            self.sizes[path] = (self.query.storage.root / path).stat().st_size
        return there

    def must_stay(self, retained: int) -> set[str]:
        """Return what the newest checkpoints and the committed handles refer to."""
        handles = [each for those in self.query.handles.values() for each in those.values()]
        newest = sorted(self.referred)[-retained:]
        return set().union(
            *(files_in(each) for each in handles), *(self.referred[number] for number in newest)
        )

    def may_stay(self) -> set[str]:
        """Return what the last calls of each subtask wrote, or referred to."""
        referred = (
            files_in(handle)
            for subtask in self.query.subtasks.values()
            for handle in subtask.line[-CALLS_KEPT:]
        )
        written = (path for calls in self.calls.values() for path in calls[-CALLS_KEPT:])
        return set().union(*referred, *written)


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize(("retained", "backend"), [(1, "rocksdb"), (3, "heap")])
def test_files_stay_as_long_as_they_are_referred_to_and_their_bytes_are_freed(
    directory: Path, retained: int, backend: str
) -> None:
    """Scenario 46: with idle subtasks, twins and savepoints; the dry run predicts the deletions."""
    chance = random.Random(retained)
    query = KeyedQuery(directory / "query", 4, backend, retained)
    files = Files(query)
    outlived, freed = set(), 0
    for number in range(1, EPOCHS + 1):
        files.epoch(chance)
        with query.runner.hold.held():  # nothing is cleaned yet
            assert query.take()
        if number % 20 == 0:
            query.savepoint(SavepointFormat.NATIVE)
        metadata = read_metadata(query.storage, f"chk-{number}")
        files.referred[number] = set(files_in(metadata))
        before = files.note()
        bytes_before = _bytes_in(query.storage.root)
        kept = sorted(files.referred)[-retained:]
        said = _said_to_go(query, kept)
        cleaner = CheckpointFiles(query.storage, CompletedCheckpoints(query.storage))
        cleaner.clean(kept, [], kept[0])

        left = query.state_files()
        gone = before - left
        assert gone == said, "the dry run said otherwise"
        assert bytes_before - _bytes_in(query.storage.root) == sum(files.sizes[p] for p in gone)
        freed += sum(files.sizes[path] for path in gone)
        must = files.must_stay(retained)
        assert must <= left, "referred to and gone"
        assert left <= must | files.may_stay(), "left for nobody"
        assert sorted(query.checkpoints()) == kept
        outlived |= left & files.referred.get(number - retained, set())
    assert freed > 0
    assert outlived, "no file was shared by a checkpoint that went and one that stayed"
    for path, epoch in query.savepoints.items():
        assert restored(path) == query.models[epoch]
    query.runner.close()


def test_what_a_savepoint_copies_stays_until_it_is_written(directory: Path) -> None:
    """Scenario 46: files of no retained checkpoint are deleted only after the savepoint."""
    chance = random.Random(5)
    query = KeyedQuery(directory / "query", 4, "heap", 1)
    files = Files(query)
    files.epoch(chance)
    assert query.epoch is not None
    snapshot = query.gathered(query.epoch)
    needed = set(files_in(snapshot))
    with query.runner.hold.held():
        for _ in range(20):
            files.epoch(chance)
            assert query.take()
            assert needed <= query.state_files()
    files.epoch(chance)
    assert query.take()
    assert sorted(query.checkpoints()) == [21]
    assert needed - query.state_files()
    query.runner.close()


def test_what_is_uploaded_of_a_pending_snapshot_stays_until_it_is_the_base(
    directory: Path,
) -> None:
    """Scenario 46: an upload that takes many epochs does not start again after a checkpoint."""
    query = KeyedQuery(directory / "query", 1, "rocksdb", 1)
    subtask = query.subtask("count", 0)
    assert subtask.uploads is not None
    uploaded: dict[str, set[str]] = {}
    bases = 0
    for number in range(12):
        writes = {"count": {"a": bytes([number])}, "rare": {}}
        ((_, _, changes),) = by_subtask(query, writes)
        subtask.settings = ALWAYS if number else NEVER
        for waiting in list(subtask.uploads.waiting):
            subtask.uploads.step(waiting)
        handle = subtask.call(number, changes)
        query.commit(writes, {"count": {0: handle}})
        before = uploaded_of(query)
        assert query.take()
        assert uploaded_of(query) == before
        if handle.base is not None and handle.base.snapshot_id in uploaded:
            bases += 1
            assert uploaded.pop(handle.base.snapshot_id) <= set(files_in(handle))
        uploaded.update({each: paths for each, paths in before.items() if paths})
    assert bases >= 2
    query.runner.close()


def test_a_savepoint_outlives_all_checkpoints_and_they_outlive_it(directory: Path) -> None:
    """Scenario 46: neither needs a file of the other."""
    chance = random.Random(6)
    query = KeyedQuery(directory / "query", 3, "rocksdb", 2)
    files = Files(query)
    for _ in range(4):
        files.epoch(chance)
        assert query.take()
    kinds = list(SavepointFormat)
    first, other = (query.savepoint(kind) for kind in kinds)
    content = tree(query.storage.root)
    for path in other.iterdir():
        _remove(path)
    assert tree(query.storage.root) == content
    (newest,) = list(query.checkpoints().values())[-1:]
    assert restored(newest) == query.model
    model = query.model
    query.runner.discard_all()
    query.runner.close()
    for path in query.storage.root.iterdir():
        _remove(path)
    assert restored(first) == model


def _said_to_go(query: KeyedQuery, kept: list[int]) -> set[str]:
    """Ask the library which files it would delete if it kept this many checkpoints."""
    retained = [read_metadata(query.storage, f"chk-{number}") for number in kept]
    needed = {path for metadata in retained for path in files_in(metadata)}
    return set(garbage_of(query.storage, retained[-1], needed))


def _bytes_in(root: Path) -> int:
    """Return the bytes of all files below the two directories of state."""
    found = [path for name in ("shared", "taskowned") for path in (root / name).rglob("*")]
    return sum(path.stat().st_size for path in found if path.is_file())


def _remove(path: Path) -> None:
    if path.is_dir():
        for inner in path.iterdir():
            _remove(inner)
        path.rmdir()
    else:
        path.unlink()
