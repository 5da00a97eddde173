"""An epoch's input in parts that fit into memory: all at once, or spilled by ranges of key groups.

All rows of a key are in one part. Spilled rows lie in Arrow files in a temporary directory of the
executor, which the task removes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operator.rows.input import KEY_GROUP
from pyspark_ckpt.operator.rows.sent_rows import SentRows, bytes_as_objects, drained, taken
from pyspark_ckpt.values.columns import numbers_of

_MOST_FILES = 64


class InputParts:
    """Splits an epoch's sent rows into parts.

    The rows of a part may take `limit_bytes` of memory, but the rows of one key group stay
    together.
    """

    def __init__(
        self,
        key_groups: range,
        limit_bytes: int,
        directory: Path | None = None,
    ) -> None:
        self._key_groups = key_groups
        self._limit_bytes = limit_bytes
        self._directory = directory
        self.spilled_bytes = 0

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[SentRows]:
        """Read all batches, then return the parts."""
        parts = self.split(batches)
        first = next(parts, None)  # a part is complete when the input is
        return iter(()) if first is None else chain([first], parts)

    def split(self, batches: Iterator[pa.RecordBatch]) -> Iterator[SentRows]:
        """Yield the parts, in the order of their key groups; no part without rows."""
        held: SentRows = []
        held_bytes = 0
        for batch in batches:
            held.append(batch)
            held_bytes += bytes_as_objects(batch)
            if held_bytes > self._limit_bytes and len(self._key_groups) > 1:
                yield from self._spilled(held, batches, self._key_groups)
                return
        if held:
            yield held

    def _spilled(
        self, held: SentRows, following: Iterator[pa.RecordBatch], key_groups: range
    ) -> Iterator[SentRows]:
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
        held: SentRows,
        following: Iterator[pa.RecordBatch],
    ) -> list[Path]:
        paths = [directory / f"{bucket.start:05d}.arrows" for bucket in buckets]
        starts = [bucket.start for bucket in buckets]
        schema = held[0].schema
        with ExitStack() as stack:
            writers = [stack.enter_context(pa.ipc.new_stream(str(path), schema)) for path in paths]
            for batch in drained(held, following):
                place = np.searchsorted(starts, numbers_of(batch.column(KEY_GROUP)), "right") - 1
                order = np.argsort(place, kind="stable")
                bounds = np.searchsorted(place[order], range(len(buckets) + 1))
                ordered = taken(batch, order)
                for writer, start, stop in zip(writers, bounds[:-1], bounds[1:], strict=True):
                    if stop > start:
                        writer.write_batch(ordered.slice(start, stop - start))
        self.spilled_bytes += sum(path.stat().st_size for path in paths)
        return paths

    def _part(self, bucket: range, path: Path) -> Iterator[SentRows]:
        """Yield a bucket's rows, split again if they are too many and of several key groups."""
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
            yield from InputParts(bucket, self._limit_bytes, self._directory).split(iter(reader))


def _buckets(key_groups: range) -> list[range]:
    """Cut a range of key groups into at most :data:`_MOST_FILES` ranges."""
    number = min(_MOST_FILES, len(key_groups))
    cuts = [key_groups.start + len(key_groups) * cut // number for cut in range(number + 1)]
    return [range(start, stop) for start, stop in pairwise(cuts)]
