"""Entries in the order of their stored keys, whatever order they come in, in bounded memory.

Keys are compared as numbers of 8 bytes, thousands at once.
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.formats.canonical_file import ArrowEntries

Numbers = np.ndarray[Any, Any]

RUN_BYTES = 64 << 20
"""So many bytes of entries are sorted in memory; more are spilled in runs."""

_BATCH_ENTRIES = 10_000
_BATCH_BYTES = 1 << 20
"""A part ends at either limit; one of each run is in memory while they are merged."""

_RUN_SCHEMA = pa.schema([("keys", pa.binary()), ("values", pa.binary())])
_WORD_BYTES = 8

_MOST_WORDS = 16
"""Longer keys are sorted by Arrow, which compares them byte by byte."""

_ALL_BITS = (1 << 64) - 1

_MASKS = np.array(
    [_ALL_BITS ^ (_ALL_BITS >> (8 * length)) for length in range(_WORD_BYTES + 1)], np.uint64
)
"""The mask of the first bytes of a word, by their number."""


class SortedRuns:
    """Sorts entries that are added in any order; entries of equal keys keep their order.

    With `only_last`, only the last entry of each key is there. `scratch` takes the runs that do not
    fit into memory.
    """

    def __init__(
        self, scratch: Path, *, only_last: bool = False, run_bytes: int | None = None
    ) -> None:
        self._scratch = scratch
        self._only_last = only_last
        self._run_bytes = RUN_BYTES if run_bytes is None else run_bytes
        self._parts: list[ArrowEntries] = []
        self._size_bytes = 0
        self._runs: list[Path] = []

    def add(self, entries: ArrowEntries) -> None:
        """Add entries; a value may be null."""
        if not len(entries):
            return
        self._parts.append(entries)
        self._size_bytes += entries.keys.nbytes + entries.values.nbytes
        if self._size_bytes >= self._run_bytes:
            self._spill()

    def taken(self) -> Iterator[ArrowEntries]:
        """Yield all entries in the order of their keys, and begin anew."""
        if not self._runs:
            parts, self._parts, self._size_bytes = self._parts, [], 0
            if parts:
                yield from _batches(self._sorted(parts))
            return
        if self._parts:
            self._spill()
        try:
            for entries in _merged(self._runs):
                yield latest(entries) if self._only_last else entries
        finally:
            self.close()

    def close(self) -> None:
        """Remove the runs from disk; safe to call twice."""
        runs, self._runs = self._runs, []
        for run in runs:
            run.unlink()

    def _sorted(self, parts: Sequence[ArrowEntries]) -> ArrowEntries:
        entries = sorted_entries(parts)
        return latest(entries) if self._only_last else entries

    def _spill(self) -> None:
        entries = self._sorted(self._parts)
        self._parts, self._size_bytes = [], 0
        handle, name = tempfile.mkstemp(suffix=".run", dir=self._scratch)
        os.close(handle)
        self._runs.append(Path(name))
        with pa.OSFile(name, "wb") as file, pa.ipc.new_stream(file, _RUN_SCHEMA) as to:
            for each in _batches(entries):
                to.write_batch(
                    pa.RecordBatch.from_arrays([each.keys, each.values], schema=_RUN_SCHEMA)
                )


def sorted_entries(parts: Sequence[ArrowEntries]) -> ArrowEntries:
    """Return entries in the order of their keys; entries of equal keys keep their order."""
    keys = pa.concat_arrays([part.keys for part in parts])
    values = pa.concat_arrays([part.values for part in parts])
    if is_ordered(keys):
        return ArrowEntries(keys, values)
    places = pa.array(_order(keys))
    return ArrowEntries(keys.take(places), values.take(places))


def is_ordered(keys: pa.BinaryArray) -> bool:
    """Return whether keys are in their order and no key comes twice."""
    return len(keys) < 2 or bool(pc.all(pc.less(keys[:-1], keys[1:])).as_py())


def latest(entries: ArrowEntries) -> ArrowEntries:
    """Return the last entry of each key; equal keys follow each other."""
    keys = entries.keys
    if len(keys) < 2:
        return entries
    is_last = pc.not_equal(keys[:-1], keys[1:])
    if pc.all(is_last).as_py():
        return entries
    is_last = pa.concat_arrays([is_last, pa.array([True])])
    return entries.filter(is_last)


def rows_up_to(keys: pa.BinaryArray, key: bytes) -> int:
    """Return how many keys, which are in order, are at most a key."""
    return bisect_right(range(len(keys)), key, key=lambda row: keys[row].as_py())


def rows_before(keys: pa.BinaryArray, key: bytes) -> int:
    """Return how many keys, which are in order, are below a key."""
    return bisect_left(range(len(keys)), key, key=lambda row: keys[row].as_py())


def cut_after(entries: ArrowEntries, key: bytes) -> tuple[ArrowEntries, ArrowEntries | None]:
    """Divide entries, which are in key order, after a key; the rest is ``None`` if it is empty."""
    count = rows_up_to(entries.keys, key)
    return entries[:count], entries[count:] if count < len(entries) else None


def cut_before(entries: ArrowEntries, key: bytes) -> tuple[ArrowEntries, ArrowEntries]:
    """Divide entries, which are in key order, before a key; either half may be empty."""
    count = rows_before(entries.keys, key)
    return entries[:count], entries[count:]


def offsets_and_data(column: pa.BinaryArray) -> tuple[Numbers, pa.Buffer]:
    """Return where the items of a binary array begin, where the last one ends, and their buffer."""
    _, offsets, data = column.buffers()
    if not len(column):
        return np.zeros(1, np.int32), pa.py_buffer(b"")
    start = column.offset
    in_data: Numbers = np.frombuffer(offsets, np.int32)[start : start + len(column) + 1]
    return in_data, pa.py_buffer(b"") if data is None else data


def _order(keys: pa.BinaryArray) -> Numbers:
    """Return the places of keys in their order.

    Keys are padded with zeros to whole words. So only the length orders a key and the same key with
    zeros after it.
    """
    offsets, buffer = offsets_and_data(keys)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    longest = int(lengths.max(initial=0))
    if longest > _MOST_WORDS * _WORD_BYTES:
        found: Numbers = pc.sort_indices(keys).to_numpy()
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
    order: Numbers = np.lexsort(words)
    return order


def _batches(entries: ArrowEntries) -> Iterator[ArrowEntries]:
    """Cut entries into batches of limited entries and bytes."""
    starts = offsets_and_data(entries.keys)[0].astype(np.int64)
    starts += offsets_and_data(entries.values)[0]
    starts -= starts[0]
    start, count = 0, len(entries)
    while start < count:
        end = int(np.searchsorted(starts, starts[start] + _BATCH_BYTES, "right")) - 1
        end = min(max(end, start + 1), start + _BATCH_ENTRIES, count)
        yield entries[start:end]
        start = end


def _merged(runs: Iterable[Path]) -> Iterator[ArrowEntries]:
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
