"""Blocks of entries: what the shuffle of an edit moves, and entries in the order of their keys.

A row has the entries of one *range*: some neighbouring key groups of one subtask, or all its
entries without a key group. Spark sorts the few rows by range, so the task that writes gets range
after range, and sorts the entries of one range at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_ckpt.formats.canonical_file import ArrowEntries
from pyspark_ckpt.operator.table.stored_keys import TIME_INDEX
from pyspark_ckpt.operator.task_failure import marks_errors

SUBTASK, RANGE = "subtask", "key_range"

BLOCKS_SCHEMA = T.StructType(
    [
        T.StructField(SUBTASK, T.IntegerType()),
        T.StructField(RANGE, T.IntegerType()),
        T.StructField("keys", T.BinaryType()),
        T.StructField("key_lengths", T.BinaryType()),
        T.StructField("values", T.BinaryType()),
        T.StructField("value_lengths", T.BinaryType()),
    ]
)

_ARROW_BLOCKS = to_arrow_schema(BLOCKS_SCHEMA)
_Numbers = np.ndarray[Any, Any]
_Batches = Iterator[pa.RecordBatch]

_RANGES = 256
"""Ranges of all subtasks together: few enough for long blocks, many enough for short sorts."""

_GATHERED_BYTES = 32 << 20
"""A task gathers so many bytes of entries before it makes blocks of them."""

_BLOCK_BYTES = 8 << 10
"""Spark puts up to 10,000 rows into one Arrow batch, so blocks are small."""

_LENGTH = np.dtype(np.uint32)
_FIRST_WITHOUT_GROUP = int.from_bytes(TIME_INDEX, "big")

_RUN_BYTES = 64 << 20
"""So many bytes of one range are sorted in memory; a range with more is spilled in runs."""

_SPILLED_ENTRIES = 10_000
_WORD_BYTES = 8

_MOST_WORDS = 16
"""Longer keys are sorted by Arrow, which compares them byte by byte."""

_ALL_BITS = (1 << 64) - 1

_MASKS = np.array(
    [_ALL_BITS ^ (_ALL_BITS >> (8 * length)) for length in range(_WORD_BYTES + 1)], np.uint64
)
"""The mask of the first bytes of a word, by their number."""


@dataclass(frozen=True, slots=True)
class InBlocks:
    """The function given to ``mapInArrow``: yields the entries of another such function in blocks.

    `entries` yields batches of subtask, stored key and stored value.
    """

    entries: Callable[[_Batches], _Batches]
    parallelism: int
    max_parallelism: int

    @marks_errors
    def __call__(self, batches: _Batches) -> _Batches:
        """Yield blocks, a row each."""
        gathered: list[pa.RecordBatch] = []
        size_bytes = 0
        for batch in self.entries(batches):
            gathered.append(batch)
            size_bytes += batch.nbytes
            if size_bytes >= _GATHERED_BYTES:
                yield self._blocks(gathered)
                gathered, size_bytes = [], 0
        if gathered:
            yield self._blocks(gathered)

    def _blocks(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        columns = [pa.concat_arrays(each) for each in zip(*batches, strict=True)]
        subtasks: _Numbers = columns[0].to_numpy()
        keys, values = columns[1:]
        ranges = self._ranges(subtasks, _key_groups(keys))
        order = np.argsort(ranges, kind="stable")
        places = pa.array(order)
        key_bytes, value_bytes = _Bytes.of(keys.take(places)), _Bytes.of(values.take(places))
        ranges = ranges[order]
        starts = _block_starts(ranges, key_bytes.lengths.astype(np.int64) + value_bytes.lengths)
        first = starts[:-1]
        return pa.RecordBatch.from_arrays(
            [
                pa.array(subtasks[order[first]], pa.int32()),
                pa.array(ranges[first], pa.int32()),
                *key_bytes.in_blocks(starts),
                *value_bytes.in_blocks(starts),
            ],
            schema=_ARROW_BLOCKS,
        )

    def _ranges(self, subtasks: _Numbers, groups: _Numbers) -> _Numbers:
        """Return each entry's range; ranges have the order of the keys in a subtask."""
        of_subtask = max(_RANGES // self.parallelism, 1)
        place = groups * (self.parallelism * of_subtask) // self.max_parallelism % of_subtask
        place = np.where(groups < _FIRST_WITHOUT_GROUP, place, of_subtask)
        ranges = subtasks.astype(np.int64) * (of_subtask + 1) + place
        # Numbers of 16 bits are sorted in one pass.
        highest = self.parallelism * (of_subtask + 1)
        return ranges.astype(np.uint16 if highest < 1 << 16 else np.int32)


@dataclass(frozen=True, slots=True)
class _Bytes:
    """A binary array as its offsets, the lengths of its items and their bytes in a row."""

    offsets: _Numbers
    lengths: _Numbers
    data: pa.Buffer

    @classmethod
    def of(cls, column: pa.BinaryArray) -> _Bytes:
        offsets, data = offsets_and_data(column)
        return cls(offsets, np.diff(offsets).astype(_LENGTH), data)

    def in_blocks(self, starts: _Numbers) -> list[pa.BinaryArray]:
        """Return the bytes and the lengths of the items of each block."""
        lengths = starts * _LENGTH.itemsize
        return [
            _binary(self.offsets[starts], self.data),
            _binary(lengths.astype(np.int32), pa.py_buffer(self.lengths)),
        ]


def empty_blocks(subtask: Column) -> list[Column]:
    """Return the columns of a block without entries for each subtask."""
    values = {SUBTASK: subtask, RANGE: F.lit(0)}
    return [
        values.get(field.name, F.lit(b"")).cast(field.dataType).alias(field.name)
        for field in BLOCKS_SCHEMA.fields
    ]


def entries_by_range(batches: _Batches) -> Iterator[tuple[int, ArrowEntries]]:
    """Yield the entries of blocks that are sorted by range: neighbours of one range together."""
    for batch in batches:
        if not batch.num_rows:
            continue
        ranges = batch.column(1).to_numpy()
        edges = [0, *(np.flatnonzero(np.diff(ranges)) + 1), len(ranges)]
        columns = [column.cast(pa.binary()) for column in batch.columns[2:]]
        for start, stop in pairwise(edges):
            keys, key_lengths, values, value_lengths = (
                column.slice(start, stop - start) for column in columns
            )
            entries = ArrowEntries(_items(keys, key_lengths), _items(values, value_lengths))
            yield int(ranges[start]), entries


def offsets_and_data(column: pa.BinaryArray) -> tuple[_Numbers, pa.Buffer]:
    """Return where the items of a binary array begin, where the last one ends, and their buffer."""
    _, offsets, data = column.buffers()
    if not len(column):
        return np.zeros(1, np.int32), pa.py_buffer(b"")
    start = column.offset
    in_data: _Numbers = np.frombuffer(offsets, np.int32)[start : start + len(column) + 1]
    return in_data, pa.py_buffer(b"") if data is None else data


def _items(blocks: pa.BinaryArray, lengths: pa.BinaryArray) -> pa.BinaryArray:
    """Return the items of neighbouring blocks, whose bytes follow each other."""
    counted, length_data = offsets_and_data(lengths)
    start, stop = int(counted[0]), int(counted[-1])
    in_bytes = np.frombuffer(length_data, np.uint8)[start:stop]
    numbers = np.frombuffer(in_bytes.tobytes(), _LENGTH)
    first, data = offsets_and_data(blocks)
    offsets = np.empty(len(numbers) + 1, np.int32)
    offsets[0] = first[0]
    np.cumsum(numbers, out=offsets[1:])
    offsets[1:] += first[0]
    return _binary(offsets, data)


def _key_groups(keys: pa.BinaryArray) -> _Numbers:
    """Return the first two bytes of each key as a number."""
    offsets, buffer = offsets_and_data(keys)
    data = np.frombuffer(buffer, np.uint8)
    starts = offsets[:-1]
    groups: _Numbers = data[starts].astype(np.int64) * 256 + data[starts + 1]
    return groups


def _block_starts(ranges: _Numbers, lengths: _Numbers) -> _Numbers:
    """Return where blocks start, and the number of entries."""
    piece = np.cumsum(lengths) // _BLOCK_BYTES
    is_first = (np.diff(ranges) != 0) | (np.diff(piece) != 0)
    return np.concatenate([[0], np.flatnonzero(is_first) + 1, [len(ranges)]])


def _binary(offsets: _Numbers, data: pa.Buffer) -> pa.BinaryArray:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), data]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def in_order(parts: Iterator[tuple[int, ArrowEntries]], scratch: Path) -> Iterator[ArrowEntries]:
    """Yield entries in the order of their keys; equal keys follow each other.

    The ranges in `parts` must come one after the other; the entries of one range may have any
    order. `scratch` takes runs that do not fit into memory.
    """
    current: int | None = None
    range_ = _Range(scratch)
    for number, entries in parts:
        if number != current:
            yield from range_.taken()
            current = number
        range_.add(entries)
    yield from range_.taken()


class _Range:
    """Gathers the entries of one range after the other."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._parts: list[ArrowEntries] = []
        self._size_bytes = 0
        self._runs: list[Path] = []

    def add(self, entries: ArrowEntries) -> None:
        self._parts.append(entries)
        self._size_bytes += entries.keys.nbytes + entries.values.nbytes
        if self._size_bytes >= _RUN_BYTES:
            self._spill()

    def taken(self) -> Iterator[ArrowEntries]:
        """Yield the entries of the range in order, and begin another."""
        if self._runs:
            if self._parts:
                self._spill()
            runs, self._runs = self._runs, []
            yield from _merged(runs)
            for run in runs:
                run.unlink()
        elif self._parts:
            parts, self._parts, self._size_bytes = self._parts, [], 0
            yield sorted_entries(parts)

    def _spill(self) -> None:
        path = self._scratch / f"{len(self._runs)}.run"
        entries = sorted_entries(self._parts)
        self._parts, self._size_bytes = [], 0
        table = pa.table({"keys": entries.keys, "values": entries.values})
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as to:
            to.write_table(table, max_chunksize=_SPILLED_ENTRIES)
        self._runs.append(path)


def sorted_entries(parts: list[ArrowEntries]) -> ArrowEntries:
    """Return entries in the order of their keys; entries of equal keys keep their order."""
    keys = pa.concat_arrays([part.keys for part in parts])
    values = pa.concat_arrays([part.values for part in parts])
    places = pa.array(_order(keys))
    return ArrowEntries(keys.take(places), values.take(places))


def _order(keys: pa.BinaryArray) -> _Numbers:
    """Return the places of keys in their order.

    Keys are compared as numbers of 8 bytes, padded with zeros. So only the length orders a key and
    the same key with zeros after it.
    """
    offsets, buffer = offsets_and_data(keys)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    longest = int(lengths.max(initial=0))
    if longest > _MOST_WORDS * _WORD_BYTES:
        found: _Numbers = pc.sort_indices(keys).to_numpy()
        return found
    data = np.frombuffer(buffer, np.uint8)[int(offsets[0]) : int(offsets[-1])]
    padded = np.concatenate([data, np.zeros(_WORD_BYTES, np.uint8)])
    at = np.ndarray((len(data) + 1,), ">u8", padded, strides=(1,))
    starts = starts - starts[0] if len(starts) else starts
    words = [lengths.astype(np.uint16)]  # numbers of 16 bits are sorted in one pass
    for place in reversed(range(0, longest, _WORD_BYTES)):
        rest = np.clip(lengths - place, 0, _WORD_BYTES)
        word = at[np.where(rest > 0, starts + place, 0)].astype(np.uint64) & _MASKS[rest]
        if len(word) and word.min() != word.max():
            words.append(word)
    order: _Numbers = np.lexsort(words)
    return order


def _merged(runs: list[Path]) -> Iterator[ArrowEntries]:
    """Yield the entries of sorted runs in order; a batch of each run is in memory."""
    with ExitStack() as files:
        readers = [
            iter(pa.ipc.open_stream(files.enter_context(pa.OSFile(str(run))))) for run in runs
        ]
        heads = [next(reader, None) for reader in readers]
        while any(head is not None for head in heads):
            lasts = [head.column(0)[-1].as_py() for head in heads if head is not None]
            limit = pa.scalar(min(lasts), pa.binary())
            parts = []
            for number, head in enumerate(heads):
                if head is None:
                    continue
                count = pc.sum(pc.less_equal(head.column(0), limit)).as_py()
                parts.append(ArrowEntries(head.column(0)[:count], head.column(1)[:count]))
                rest = head.slice(count)
                heads[number] = rest if rest.num_rows else next(readers[number], None)
            yield sorted_entries(parts)
