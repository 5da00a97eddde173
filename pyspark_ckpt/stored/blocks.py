"""Blocks of entries: what the shuffle of a rewrite moves, and entries in the order of their keys.

A row has the entries of one *range*: some neighbouring key groups of one subtask, or all its
entries without a key group. Spark sorts the few rows by range, so the task that writes gets range
after range, and sorts the entries of one range at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_ckpt.formats.canonical_file import ArrowEntries
from pyspark_ckpt.operator.table.stored_keys import TIME_INDEX
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.stored.sorted_runs import SortedRuns, offsets_and_data

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
    with closing(SortedRuns(scratch)) as runs:
        current: int | None = None
        for number, entries in parts:
            if number != current:
                yield from runs.taken()
                current = number
            runs.add(entries)
        yield from runs.taken()
