"""Entries that went through blocks are all there, and in the order of their keys."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.formats.canonical_file import ArrowEntries
from pyspark_ckpt.stored import sorted_runs
from pyspark_ckpt.stored.blocks import InBlocks, entries_by_range, in_order

PARALLELISM, MAX_PARALLELISM = 3, 20
Entry = tuple[bytes, bytes]

groups = st.integers(0, MAX_PARALLELISM - 1)
rests = st.one_of(
    st.binary(max_size=20),
    st.binary(min_size=1, max_size=3).map(lambda data: data + bytes(30)),
    st.binary(min_size=120, max_size=150),
)
keyed = st.builds(lambda group, rest: group.to_bytes(2, "big") + rest, groups, rests)
others = st.builds(
    lambda head, rest: head + rest, st.sampled_from([b"\x80\x00", b"\x81\x00", b"\x82\x00"]), rests
)
entries_of_subtasks = st.lists(
    st.tuples(st.integers(0, PARALLELISM - 1), st.one_of(keyed, others), st.binary(max_size=9)),
    max_size=60,
)


def subtask_of(subtask: int, key: bytes) -> int:
    group = int.from_bytes(key[:2], "big")
    return subtask if group >= 0x8000 else group * PARALLELISM // MAX_PARALLELISM


def batch_of(entries: list[tuple[int, bytes, bytes]]) -> pa.RecordBatch:
    columns = zip(*entries, strict=True)
    types = (pa.int32(), pa.binary(), pa.binary())
    arrays = [pa.array(each, kind) for each, kind in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["subtask", "stored_key", "value"])


def through_blocks(
    entries: list[tuple[int, bytes, bytes]], batches: int, scratch: Path
) -> dict[int, list[Entry]]:
    """Return the entries of each subtask in the order in which a task would write them."""

    def encoded(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in range(batches):
            part = entries[number::batches]
            if part:
                yield batch_of(part)

    blocks = list(InBlocks(encoded, PARALLELISM, MAX_PARALLELISM)(iter(())))
    found = {}
    for subtask in range(PARALLELISM):
        rows = pa.Table.from_batches(blocks) if blocks else None
        if rows is None:
            break
        rows = rows.filter(pa.compute.equal(rows["subtask"], subtask)).sort_by("key_range")
        parts = in_order(entries_by_range(iter(rows.to_batches(max_chunksize=7))), scratch)
        found[subtask] = [
            entry
            for part in parts
            for entry in zip(part.keys.to_pylist(), part.values.to_pylist(), strict=True)
        ]
    return found


def expected_of(entries: list[tuple[int, bytes, bytes]]) -> dict[int, list[Entry]]:
    return {
        subtask: sorted((key, value) for of, key, value in entries if of == subtask)
        for subtask in range(PARALLELISM)
    }


@given(entries=entries_of_subtasks, batches=st.integers(1, 4), run_bytes=st.integers(1, 2_000))
def test_all_entries_come_in_the_order_of_their_keys(
    tmp_path_factory: pytest.TempPathFactory,
    entries: list[tuple[int, bytes, bytes]],
    batches: int,
    run_bytes: int,
) -> None:
    entries = [(subtask_of(subtask, key), key, value) for subtask, key, value in entries]
    scratch = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_runs, "RUN_BYTES", run_bytes)
        patch.setattr(sorted_runs, "_BATCH_ENTRIES", 3)
        found = through_blocks(entries, batches, scratch)
    if entries:
        for subtask, expected in expected_of(entries).items():
            assert [key for key, _ in found[subtask]] == [key for key, _ in expected]
            assert sorted(found[subtask]) == expected
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("run_bytes", [50_000, 1 << 30])
def test_many_entries_of_one_range_are_merged_from_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_bytes: int
) -> None:
    """The entries of one key come from all batches, more than fit into memory."""
    monkeypatch.setattr(sorted_runs, "RUN_BYTES", run_bytes)
    monkeypatch.setattr(sorted_runs, "_BATCH_ENTRIES", 100)
    keys = [b"\x00\x05\x00" + (n * 7919 % 30_011).to_bytes(4, "big") for n in range(30_000)]
    entries = [(0, key, str(n).encode()) for n, key in enumerate(keys)]
    found = through_blocks(entries, 11, tmp_path)
    assert found[0] == expected_of(entries)[0]
    assert all(first < second for (first, _), (second, _) in pairwise(found[0]))


def test_sliced_arrays_are_read_from_where_they_start() -> None:
    keys = pa.array([b"zz", b"b", b"a\x00", b"a", b"yy"], pa.binary())[1:4]
    values = pa.array([b"", b"1", b"2", b"3", b""], pa.binary())[1:4]
    found = sorted_runs.sorted_entries([ArrowEntries(keys, values)])
    assert found.keys.to_pylist() == [b"a", b"a\x00", b"b"]
    assert found.values.to_pylist() == [b"3", b"2", b"1"]
