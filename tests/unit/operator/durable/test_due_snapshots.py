"""When a changelog is worth a new base snapshot."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.formats.handle import BaseFile, BaseSnapshot, Handle, Segment
from pyspark_ckpt.operator.durable import materialization
from pyspark_ckpt.operator.durable.materialization import is_due
from pyspark_ckpt.settings import Materialization
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import Storage
from state_backends import BACKEND_TYPES
from tests.unit.operator.materialized_subtask import ALWAYS, NEVER, MaterializedSubtask

DEFAULT = Materialization()
BYTES, SEGMENTS = DEFAULT.min_changelog_bytes, DEFAULT.max_segments
REPLAYED = materialization._MOST_REPLAYED_BYTES


def with_segments(handle: Handle, sizes: list[int]) -> Handle:
    file = FileReference("taskowned/x", 1, "0" * 64)
    segments = tuple(Segment(f"{n}", n, 1, size, file=file) for n, size in enumerate(sizes))
    return msgspec.structs.replace(handle, segments=segments)


def with_base(handle: Handle, size_bytes: int) -> Handle:
    file = FileReference("shared/x", size_bytes, "0" * 64)
    base = BaseSnapshot("b", 1, 1, (BaseFile("state.chg", file),))
    return msgspec.structs.replace(handle, base=base)


@pytest.mark.parametrize(
    ("sizes", "base_bytes", "passed_ms", "expected"),
    [
        ([], None, 0, False),
        ([BYTES], None, 0, False),
        ([BYTES, 1], None, 0, True),
        ([1] * (SEGMENTS - 1), None, 0, False),
        ([1] * SEGMENTS, None, 0, True),
        ([], 10 * BYTES, 0, False),
        ([9 * BYTES], 10 * BYTES, 0, False),
        ([9 * BYTES, BYTES + 1], 10 * BYTES, 0, True),
        ([BYTES, 1], 10, 0, True),
        ([1] * SEGMENTS, 10 * BYTES, 0, True),
        ([1], 10, DEFAULT.interval_ms - 1, False),
        ([1], 10, DEFAULT.interval_ms, True),
        ([1], None, DEFAULT.interval_ms, True),
        ([1], None, None, False),
        ([], 10, 10 * DEFAULT.interval_ms, False),
        ([1], 10, -10 * DEFAULT.interval_ms, False),
    ],
)
def test_a_snapshot_is_due_when_the_changelog_has_outgrown_the_last_one_or_is_old(
    handle: Handle, sizes: list[int], base_bytes: int | None, passed_ms: int | None, expected: bool
) -> None:
    grown = with_segments(handle, sizes)
    if base_bytes is not None:
        grown = with_base(grown, base_bytes)
    since_ms = None if passed_ms is None else 5_000
    now_ms = 5_000 + (passed_ms or 0)
    assert is_due(grown, grown.segments, since_ms, now_ms, DEFAULT, shares_files=False) is expected


@pytest.mark.parametrize(
    ("changelog_bytes", "base_bytes", "shares_files", "expected"),
    [
        (REPLAYED + 1, 10 * REPLAYED, False, False),
        (REPLAYED + 1, 10 * REPLAYED, True, True),
        (REPLAYED, 10 * REPLAYED, True, False),
        (REPLAYED, REPLAYED - 1, True, True),
        (BYTES, 10, True, False),
    ],
)
def test_of_a_snapshot_that_shares_files_a_large_changelog_is_enough(
    handle: Handle, changelog_bytes: int, base_bytes: int, shares_files: bool, expected: bool
) -> None:
    grown = with_base(with_segments(handle, [changelog_bytes]), base_bytes)
    due = is_due(grown, grown.segments, 0, 0, DEFAULT, shares_files=shares_files)
    assert due is expected


@pytest.mark.parametrize("backend_type", BACKEND_TYPES)
def test_a_large_state_on_rocksdb_is_materialised_before_its_changelog_is_as_large(
    tmp_path: Path,
    storage: Storage,
    handle: Handle,
    backend_type: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(materialization, "_MOST_REPLAYED_BYTES", 1000)
    subtask = MaterializedSubtask(tmp_path / "local", backend_type, storage, handle)
    assert subtask.uploads is not None
    subtask.epoch({b"%07d" % n: bytes(range(40)) for n in range(3000)})
    subtask.epoch({b"a": b"1"}, ALWAYS)
    subtask.uploads.run()
    subtask.epoch({b"b": b"1"}, NEVER)
    base = subtask.handle.base
    assert base is not None
    assert base.size_bytes > 10_000
    eager = Materialization(min_changelog_bytes=1)
    subtask.epoch({b"%07d" % n: bytes(range(40, 80)) for n in range(0, 3000, 50)}, eager)
    assert subtask.handle.pending is None
    subtask.epoch({b"c": b"1"}, eager)
    assert (subtask.handle.pending is not None) is (backend_type == "rocksdb")
    subtask.uploads.run()
    subtask.epoch({b"d": b"1"}, NEVER)
    subtask.check()
    assert subtask.handle.base is not None
    assert (subtask.handle.base != base) is (backend_type == "rocksdb")


def test_the_first_snapshot_on_another_backend_shares_no_files(
    tmp_path: Path, storage: Storage, handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialization, "_MOST_REPLAYED_BYTES", 1000)
    subtask = MaterializedSubtask(tmp_path / "local", "heap", storage, handle)
    assert subtask.uploads is not None
    subtask.epoch({b"%07d" % n: bytes(range(40)) for n in range(3000)})
    subtask.epoch({b"a": b"1"}, ALWAYS)
    subtask.uploads.run()
    subtask.epoch({b"b": b"1"}, NEVER)
    subtask.backend_type = "rocksdb"
    eager = Materialization(min_changelog_bytes=1)
    subtask.epoch({b"%07d" % n: bytes(range(40, 80)) for n in range(0, 3000, 50)}, eager)
    subtask.epoch({b"c": b"1"}, eager)
    assert subtask.handle.pending is None
    subtask.check()
