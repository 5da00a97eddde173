"""An epoch's input in parts that fit into memory: all at once, or spilled by ranges of key groups.

All rows of a key are in one part. Spilled rows lie in Arrow files in a temporary directory of the
executor, which the task removes. Frames become Arrow tables and come back with every value as it
was. Arrow converts all types but variants, which are PySpark's objects in pandas.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.operator.rows.input import KEY_GROUP
from pyspark_ckpt.operator.values.json_in_spark import JSON, VARIANTS


def to_table(frame: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    """Return the columns of a frame that `schema` has; called on an executor."""
    own = _with_variants(frame[schema.names], schema, _in_arrow)
    return pa.Table.from_pandas(own, schema, preserve_index=False)


def to_frame(batch: pa.RecordBatch) -> pd.DataFrame:
    """Return the frame that :func:`to_table` made a table of."""
    return _with_variants(batch.to_pandas(date_as_object=True), batch.schema, _in_pandas)


def _with_variants(
    frame: pd.DataFrame, schema: pa.Schema, convert: Callable[[Any], Any]
) -> pd.DataFrame:
    """Return a frame whose columns of text with variants are converted."""
    converted = {
        field.name: pd.Series(list(map(convert, frame[field.name])), frame.index, dtype=object)
        for field in schema
        if pa.types.is_struct(field.type)
    }
    return frame.assign(**converted) if converted else frame


def _in_arrow(value: Any) -> dict[str, Any]:
    variants = [{"value": one.value, "metadata": one.metadata} for one in value[VARIANTS]]
    return {JSON: value[JSON], VARIANTS: variants}


def _in_pandas(value: Any) -> dict[str, Any]:
    variants = [T.VariantVal(one["value"], one["metadata"]) for one in value[VARIANTS]]
    return {JSON: value[JSON], VARIANTS: variants}


Frames = list[pd.DataFrame]

_MOST_FILES = 64
_ROW_BYTES = 150
_VALUE_BYTES = 40
"""Bytes that a row and each of its values take as Python objects (measured)."""

_SAMPLE = 64


class InputParts:
    """Splits an epoch's frames into parts.

    Parameters
    ----------
    schema
        The schema of the frames as they come out of the shuffle.
    key_groups
        The key groups of the subtask.
    limit_bytes
        The memory that the rows of a part may take; the rows of one key group stay together.
    directory
        The directory for spilled rows; by default the system's temporary directory.
    """

    def __init__(
        self,
        schema: pa.Schema,
        key_groups: range,
        limit_bytes: int,
        directory: Path | None = None,
    ) -> None:
        self._schema = schema
        self._key_groups = key_groups
        self._limit_bytes = limit_bytes
        self._directory = directory
        self.spilled_bytes = 0

    def read(self, frames: Iterator[pd.DataFrame]) -> Iterator[Frames]:
        """Read all frames, then return the parts."""
        parts = self.split(frames)
        first = next(parts, None)  # a part is complete when the input is
        return iter(()) if first is None else chain([first], parts)

    def split(self, frames: Iterator[pd.DataFrame]) -> Iterator[Frames]:
        """Yield the parts, in the order of their key groups; no part without rows."""
        held: Frames = []
        held_bytes = 0
        for frame in frames:
            held.append(frame)
            held_bytes += _size_in_memory(frame)
            if held_bytes > self._limit_bytes and len(self._key_groups) > 1:
                yield from self._spilled(held, frames, self._key_groups)
                return
        if held:
            yield held

    def _spilled(
        self, held: Frames, following: Iterator[pd.DataFrame], key_groups: range
    ) -> Iterator[Frames]:
        directory = Path(tempfile.mkdtemp(prefix="input-", dir=self._directory))
        try:
            buckets = _buckets(key_groups)
            paths = self._write(directory, buckets, held, following)
            for bucket, path in zip(buckets, paths, strict=True):
                yield from self._part(bucket, path)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _write(
        self,
        directory: Path,
        buckets: Sequence[range],
        held: Frames,
        following: Iterator[pd.DataFrame],
    ) -> list[Path]:
        paths = [directory / f"{bucket.start:05d}.arrows" for bucket in buckets]
        starts = [bucket.start for bucket in buckets]
        with ExitStack() as stack:
            writers = [
                stack.enter_context(pa.ipc.new_stream(str(path), self._schema)) for path in paths
            ]
            for frame in _drained(held, following):
                place = np.searchsorted(starts, frame[KEY_GROUP].to_numpy(), side="right") - 1
                order = np.argsort(place, kind="stable")
                bounds = np.searchsorted(place[order], range(len(buckets) + 1))
                table = to_table(frame, self._schema).take(order)
                for writer, start, stop in zip(writers, bounds[:-1], bounds[1:], strict=True):
                    if stop > start:
                        writer.write_table(table.slice(start, stop - start))
        self.spilled_bytes += sum(path.stat().st_size for path in paths)
        return paths

    def _part(self, bucket: range, path: Path) -> Iterator[Frames]:
        """Yield a bucket's rows, split again if they are too many and of several key groups."""
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
            frames = map(to_frame, reader)
            yield from InputParts(self._schema, bucket, self._limit_bytes, self._directory).split(
                frames
            )


def _buckets(key_groups: range) -> list[range]:
    """Cut a range of key groups into at most :data:`_MOST_FILES` ranges."""
    number = min(_MOST_FILES, len(key_groups))
    cuts = [key_groups.start + len(key_groups) * cut // number for cut in range(number + 1)]
    return [range(start, stop) for start, stop in pairwise(cuts)]


def _drained(held: Frames, following: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    while held:
        yield held.pop(0)
    yield from following


def _size_in_memory(frame: pd.DataFrame) -> int:
    """Estimate what a frame takes once its values are Python objects."""
    size = len(frame) * (_ROW_BYTES + _VALUE_BYTES * len(frame.columns))
    for name in frame.columns:
        column = frame[name]
        if column.dtype == object:
            sample = column.iloc[:: max(1, len(column) // _SAMPLE)]
            size += int(len(column) * sum(map(_length, sample)) / max(1, len(sample)))
    return size


def _length(value: Any) -> int:
    if isinstance(value, dict):  # text with variants beside it
        return len(value[JSON]) + sum(len(one.value) + len(one.metadata) for one in value[VARIANTS])
    return len(value) if isinstance(value, str | bytes) else 0
