"""An epoch's writes: the last of each key counts, in memory or spilled."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ckpt.operator.table import writes as epoch_writes
from pyspark_ckpt.operator.table.undo import UndoableWrites
from pyspark_ckpt.operator.table.writes import (
    FRAME_ENTRIES,
    NOT_WRITTEN,
    EpochWrites,
    Write,
    in_frames,
    overlaid,
)
from state_backends import StateBackendError
from tests.unit.operator.subtask_epochs import IN_MEMORY

MakeWrites = Callable[[int], EpochWrites]


@pytest.fixture
def make_writes(tmp_path: Path) -> Iterator[MakeWrites]:
    made: list[EpochWrites] = []

    def make(limit_bytes: int) -> EpochWrites:
        made.append(EpochWrites(limit_bytes, tmp_path))
        return made[-1]

    yield make
    for writes in made:
        writes.close()
        writes.close()
    assert list(tmp_path.iterdir()) == []


def pairs(writes: EpochWrites) -> list[tuple[bytes, Write]]:
    return [
        pair
        for frame in writes.all_in_order()
        for pair in zip(frame.keys, frame.values, strict=True)
    ]


def test_the_last_write_of_a_key_counts_wherever_it_lies(
    make_writes: MakeWrites, limit_bytes: int
) -> None:
    writes = make_writes(limit_bytes)
    for key, value in [(b"a", b"1"), (b"b", None), (b"a", None), (b"b", b""), (b"c", b"\x00")]:
        writes.add(key, value)
        assert writes.find(key) == value
    assert writes.find(b"d") is NOT_WRITTEN
    assert pairs(writes) == [(b"a", None), (b"b", b""), (b"c", b"\x00")]


def test_many_keys_are_looked_up_on_disk_at_once(
    make_writes: MakeWrites, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = make_writes(10**6)
    for key, value in [(b"a", b"1"), (b"b", None), (b"c", b"1"), (b"d", None)]:
        writes.add(key, value)
    writes.spill()
    writes.add(b"c", None)
    writes.add(b"d", b"2")
    spilled, looked_up = writes._spilled, []
    assert spilled is not None
    get_many = spilled.get_many

    def counted(keys: Sequence[bytes]) -> list[bytes | None]:
        looked_up.append(list(keys))
        return get_many(keys)

    monkeypatch.setattr(spilled, "get_many", counted)
    keys = [b"d", b"a", b"e", b"b", b"c", b"a"]
    assert writes.find_many(keys) == [b"2", b"1", NOT_WRITTEN, None, None, b"1"]
    assert looked_up == [[b"a", b"e", b"b", b"a"]]


def test_nothing_written_is_nothing_in_order(make_writes: MakeWrites, limit_bytes: int) -> None:
    assert list(make_writes(limit_bytes).all_in_order()) == []


def test_memory_is_bounded_and_all_writes_come_back(make_writes: MakeWrites) -> None:
    writes = make_writes(100_000)
    most = 0
    for number in range(5000):
        writes.add(b"%05d" % (number * 7 % 5000), b"v" * 100)
        most = max(most, len(writes))
    assert writes.is_spilled
    assert most * 100 < 100_000
    assert pairs(writes) == [(b"%05d" % number, b"v" * 100) for number in range(5000)]


def test_entries_on_disk_count(make_writes: MakeWrites) -> None:
    in_memory, on_disk = make_writes(1 << 30), make_writes(10_000)
    for writes in (in_memory, on_disk):
        writes.add_many([b"%04d" % number for number in range(500)], [b"v"] * 500)
        for number in range(500, 1000):
            writes.add(b"%04d" % number, b"v")
    assert not in_memory.is_spilled
    assert on_disk.is_spilled
    assert in_memory.entries == on_disk.entries == 1000
    on_disk.add(b"0000", None)
    assert on_disk.entries == 1001  # whether it is on disk would be another read


def test_a_spill_takes_little_beside_the_writes(make_writes: MakeWrites) -> None:
    """Memory is full when writes are spilled, so only a few are encoded at a time."""
    writes = make_writes(10**9)
    for number in range(3000):
        writes.add(b"%05d" % number, b"%05d" % number * 2000)  # 30 MB in all
    tracemalloc.start()
    try:
        writes.spill()
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 8 << 20
    assert pairs(writes) == [(b"%05d" % n, b"%05d" % n * 2000) for n in range(3000)]


def test_after_a_spill_that_failed_the_epoch_cannot_end(
    make_writes: MakeWrites, tmp_path: Path
) -> None:
    """A processor may swallow the error; the writes that were lost must still fail the epoch."""
    writes = make_writes(10_000)

    def add_many() -> None:
        for number in range(100):
            writes.add(b"%d" % number, b"v")

    add_many()
    assert writes.is_spilled
    (place,) = tmp_path.iterdir()
    shutil.rmtree(place)
    with pytest.raises(StateBackendError) as raised:
        add_many()
    writes.add(b"swallowed", b"1")
    with pytest.raises(StateBackendError) as at_the_end:
        pairs(writes)
    assert at_the_end.value is raised.value
    with pytest.raises(StateBackendError):
        writes.spill()


def test_below_the_limit_nothing_goes_to_disk(make_writes: MakeWrites, tmp_path: Path) -> None:
    writes = make_writes(100_000)
    for number in range(100):
        writes.add(b"%d" % number, b"v")
    assert not writes.is_spilled
    assert list(tmp_path.iterdir()) == []
    writes.spill()
    assert writes.is_spilled
    assert len(writes) == 0
    assert len(list(tmp_path.iterdir())) == 1


def test_what_is_held_back_is_handed_over_before_a_spill_and_at_the_end(
    make_writes: MakeWrites,
) -> None:
    writes = make_writes(1)
    held = {b"h1": b"1"}

    def hand_over() -> None:
        while held:
            writes.add(*held.popitem())

    writes.before_spill(hand_over)
    assert writes.find(b"h1") is NOT_WRITTEN
    writes.add(b"a", b"1")
    assert writes.find(b"h1") == b"1"
    held[b"h2"] = b"2"
    assert pairs(writes) == [(b"a", b"1"), (b"h1", b"1"), (b"h2", b"2")]


def test_what_is_held_back_counts_towards_the_limit(make_writes: MakeWrites) -> None:
    writes = make_writes(1000)
    handed_over: list[bool] = []
    writes.before_spill(lambda: handed_over.append(True))
    for _ in range(10):
        writes.hold_back(100)
    assert not handed_over
    writes.add(b"a", b"1")
    assert handed_over == [True]
    writes.hold_back(900)
    assert handed_over == [True]
    writes.hold_back(101)
    assert handed_over == [True, True]


def test_frames_are_of_bounded_length_and_in_order(
    make_writes: MakeWrites, limit_bytes: int
) -> None:
    writes = make_writes(max(limit_bytes, 1_000_000))
    for number in reversed(range(2 * FRAME_ENTRIES + 1)):
        writes.add(b"%06d" % number, b"")
    frames = list(writes.all_in_order())
    assert [len(frame) for frame in frames] == [FRAME_ENTRIES, FRAME_ENTRIES, 1]
    keys = [key for frame in frames for key in frame.keys]
    assert keys == sorted(set(keys))


def test_frames_of_large_values_are_of_bounded_size(
    make_writes: MakeWrites, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_writes, "FRAME_BYTES", 10_000)
    writes = make_writes(1 << 30)
    expected: dict[bytes, Write] = {b"%03d" % n: b"x" * 999 for n in range(100)}
    expected |= {b"%03d" % n: None for n in range(0, 100, 7)}
    for key, value in expected.items():
        writes.add(key, value)
    assert (
        max(sum(map(len, filter(None, frame.values))) for frame in writes.all_in_order()) < 11_000
    )
    assert pairs(writes) == sorted(expected.items())


@pytest.mark.parametrize("length", [0, 1, FRAME_ENTRIES, FRAME_ENTRIES + 1])
def test_in_frames_loses_nothing(length: int) -> None:
    frames = list(in_frames(iter([(b"%d" % n, None) for n in range(length)])))
    assert [key for frame in frames for key in frame.keys] == [b"%d" % n for n in range(length)]
    assert all(len(frame) for frame in frames)


_STREAM = st.dictionaries(st.binary(max_size=2), st.none() | st.binary(max_size=1), max_size=8)


@given(lower=_STREAM, upper=_STREAM)
def test_overlaid_streams_are_one_dictionary_over_the_other(
    lower: dict[bytes, Write], upper: dict[bytes, Write]
) -> None:
    merged = overlaid(iter(sorted(lower.items())), iter(sorted(upper.items())))
    assert list(merged) == sorted((lower | upper).items())


_PREFIXES = [b"p", b"q"]
_KEYS = st.sampled_from([prefix + rest for prefix in _PREFIXES for rest in (b"", b"a", b"\xff")])
_VALUES = st.none() | st.binary(max_size=2)
_WRITES = st.tuples(_KEYS, _VALUES) | st.tuples(st.lists(_KEYS, max_size=4), _VALUES)
_OPERATIONS = st.lists(_WRITES | st.just("spill"))


def write_below(
    writes: EpochWrites, keys: bytes | list[bytes], value: Write, expected: dict[bytes, Write]
) -> None:
    """Write one key; several keys, each below its prefix; or several below the same prefix."""
    if isinstance(keys, bytes):
        writes.add_below(keys[:1], keys, value)
        expected[keys] = value
        return
    if len({key[:1] for key in keys}) == 1:
        writes.add_many_below(keys[0][:1], keys, value)
    else:
        writes.add_below_each([key[:1] for key in keys], keys, value)
    expected |= dict.fromkeys(keys, value)


def check_scans(writes: EpochWrites, expected: dict[bytes, Write]) -> None:
    for prefix in _PREFIXES:
        wanted = sorted(item for item in expected.items() if item[0].startswith(prefix))
        assert list(writes.scan(prefix)) == wanted
        newest = writes.newest_below(prefix)
        assert newest is None or newest in dict(wanted).values()
        if not writes.is_spilled:
            first = next((key for key, value in wanted if value is not None), None)
            assert writes.first_below(prefix) == first


@settings(max_examples=100)
@given(operations=_OPERATIONS, most=st.sampled_from([1, 64]))
def test_scans_see_all_writes_below_a_prefix(
    operations: list[tuple[Any, Write] | str], most: int
) -> None:
    writes = EpochWrites(1 << 20, IN_MEMORY and Path(IN_MEMORY))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epoch_writes, "_MOST_BELOW_EACH", most)
        try:
            expected: dict[bytes, Write] = {}
            for operation in operations:
                if isinstance(operation, str):
                    writes.spill()
                    assert writes.newest_below(b"p") is None
                else:
                    write_below(writes, *operation, expected)
            check_scans(writes, expected)
            assert pairs(writes) == sorted(expected.items())
        finally:
            writes.close()


@settings(max_examples=100)
@given(
    calls=st.lists(st.tuples(st.lists(_WRITES, max_size=5), st.sampled_from(["", "keep", "undo"])))
)
def test_an_undone_call_has_written_nothing(
    calls: list[tuple[list[tuple[Any, Write]], str]],
) -> None:
    """Writes come in calls that are kept or undone, and outside of calls."""
    writes = UndoableWrites(1 << 20, IN_MEMORY and Path(IN_MEMORY))
    try:
        expected: dict[bytes, Write] = {}
        for operations, end in calls:
            before = dict(expected)
            if end:
                writes.begin()
            for operation in operations:
                write_below(writes, *operation, expected)
            check_scans(writes, expected)
            if end == "keep":
                writes.keep()
            elif end == "undo":
                writes.undo()
                expected = before
            check_scans(writes, expected)
        assert pairs(writes) == sorted(expected.items())
    finally:
        writes.close()
