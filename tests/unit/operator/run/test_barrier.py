"""The barrier: an epoch's changes and base snapshots, durable and readable again."""

from __future__ import annotations

import io
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from pyspark_ckpt.formats.change_file import decode_changes
from pyspark_ckpt.formats.handle import Handle, Segment
from pyspark_ckpt.formats.layout import epoch_of, operator_mark
from pyspark_ckpt.operator.run.barrier import make_segment
from pyspark_ckpt.operator.table.writes import in_frames
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.testing import ProcessorHarness
from state_backends import Changes

Entries = list[tuple[bytes, bytes | None]]

CHANGES = Changes([b"a", b"b", b"c"], [b"1", None, b""])
SIZE = 42
"""What the change file of CHANGES takes."""


def content(storage: Storage, file: FileReference | None, inline: bytes | None = None) -> Entries:
    data = inline if file is None else storage.read(file.path)
    assert data is not None
    parts = list(decode_changes(io.BytesIO(data), "test"))
    return [pair for part in parts for pair in zip(part.keys, part.values, strict=True)]


def with_segments(handle: Handle, *sizes: int, inline: bool) -> Handle:
    file = FileReference("taskowned/x", 1, "0" * 64)
    segments = tuple(
        Segment(f"{n}", n, 1, size, inline=b"" if inline else None, file=None if inline else file)
        for n, size in enumerate(sizes)
    )
    return msgspec.structs.replace(handle, segments=segments)


def test_small_changes_go_into_the_handle(storage: Storage, handle: Handle) -> None:
    segment = make_segment(storage, handle, [CHANGES], 7, SIZE)
    assert segment.file is None
    assert segment.inline is not None
    assert len(segment.inline) == segment.size_bytes == SIZE
    assert (segment.epoch, segment.entries) == (7, 3)
    assert content(storage, None, segment.inline) == [(b"a", b"1"), (b"b", None), (b"c", b"")]
    assert not storage.root.exists()


def test_larger_changes_go_into_a_file_of_the_subtask_and_epoch(
    storage: Storage, handle: Handle
) -> None:
    segment = make_segment(storage, handle, [CHANGES], 7, SIZE - 1)
    assert segment.inline is None
    assert segment.file is not None
    mark = operator_mark(handle.uid)
    assert segment.file.path.startswith(f"taskowned/segment-{mark}-3-7-")
    assert epoch_of(Path(segment.file.path).name) == 7
    assert segment.size_bytes == segment.file.size_bytes
    assert (segment.epoch, segment.entries) == (7, 3)
    storage.verify_size(segment.file)
    assert content(storage, segment.file) == [(b"a", b"1"), (b"b", None), (b"c", b"")]


def test_the_threshold_counts_all_inline_segments_of_a_handle(
    storage: Storage, handle: Handle
) -> None:
    inline = with_segments(handle, 50, 50, inline=True)
    assert make_segment(storage, inline, [CHANGES], 7, 100 + SIZE).file is None
    assert make_segment(storage, inline, [CHANGES], 7, 99 + SIZE).file is not None
    filed = with_segments(handle, 50, 50, inline=False)
    assert make_segment(storage, filed, [CHANGES], 7, SIZE).file is None


@pytest.mark.parametrize("threshold", [0, 1000])
def test_two_attempts_of_an_epoch_differ_in_version_and_file(
    storage: Storage, handle: Handle, threshold: int
) -> None:
    """Scenario 12: no attempt overwrites another's file."""
    one, other = (make_segment(storage, handle, [CHANGES], 7, threshold) for _ in range(2))
    assert one.version != other.version
    assert one.file is None or one.file != other.file


@pytest.mark.parametrize("threshold", [0, 1 << 20])
def test_changes_of_any_number_are_all_there_in_order(
    storage: Storage, handle: Handle, threshold: int
) -> None:
    keys = [b"%06d" % number for number in range(25_000)]
    changes = in_frames((key, b"v") for key in keys)
    segment = make_segment(storage, handle, changes, 7, threshold)
    assert segment is not None
    assert segment.entries == 25_000
    assert content(storage, segment.file, segment.inline) == [(key, b"v") for key in keys]


@pytest.mark.parametrize("threshold", [0, 1000])
def test_without_changes_there_is_no_segment(
    storage: Storage, handle: Handle, threshold: int
) -> None:
    assert make_segment(storage, handle, iter(()), 7, threshold) is None
    assert not storage.root.exists()


class Pulled:
    """Frames that count how many were taken, and how many are still referred to."""

    def __init__(self, frames: int) -> None:
        self.frames = frames
        self.alive: list[weakref.ref[KeyList]] = []
        self.most_alive = 0

    def __iter__(self) -> Iterator[Changes]:
        for number in range(self.frames):
            keys = KeyList([b"%03d%04d" % (number, entry) for entry in range(1000)])
            self.alive.append(weakref.ref(keys))
            self.most_alive = max(self.most_alive, sum(ref() is not None for ref in self.alive))
            yield Changes(keys, [b"v" * 100] * len(keys))
            del keys


class KeyList(list[bytes]):
    """A list that can be referred to weakly."""


@pytest.mark.parametrize("threshold", [0, 10_000_000])
def test_changes_are_never_all_in_memory(storage: Storage, handle: Handle, threshold: int) -> None:
    pulled = Pulled(50)
    segment = make_segment(storage, handle, pulled, 7, threshold)
    assert segment is not None
    assert (segment.entries, len(pulled.alive)) == (50_000, 50)
    assert pulled.most_alive <= 3


class Keeps(StatefulProcessor):
    """Counts rows per key, and keeps in addition what its subtask keeps for no key."""

    def __init__(self, kind: str | None) -> None:
        self.kind = kind

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")
        self.list = handle.getOperatorListState("l", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.n.update((len(list(rows)),))
        if self.kind == "list":
            self.list.appendValue((1,))
        yield from ()

    def close(self) -> None:
        pass


class KeepsRaw(Keeps):
    """Keeps a raw stream."""

    def snapshotState(self, context: Any) -> None:
        context.getRawOperatorStateOutput().write(b"raw")


@pytest.mark.parametrize(
    ("processor", "expected"),
    [(Keeps(None), False), (Keeps("list"), True), (KeepsRaw(None), True)],
    ids=["keyed state only", "list", "raw"],
)
def test_a_handle_says_whether_its_subtask_has_state_of_no_key(
    processor: Keeps, expected: bool
) -> None:
    """A rescale must not divide such a subtask, so later epochs keep what the handle says."""
    harness = ProcessorHarness(processor)
    for key in ("a", "b"):
        harness.test(key, [Row(n=1)])
        assert harness.snapshot().handle.has_state_of_no_key == expected
        processor.kind = None
