"""Entries in the order of their stored keys, in bounded memory: sorted, spilled, merged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.editing.entries.blocks import offsets_and_data
from pyspark_ckpt.formats.canonical_file import ArrowEntries

_Numbers = np.ndarray[Any, Any]

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
    the same key with zeros behind it.
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
