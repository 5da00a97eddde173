"""``StateRewrite``: the one job that writes the state of an operator for new subtasks.

One task reads each source, Spark's shuffle brings the entries of a new subtask together in blocks,
and one task writes its base snapshot. No task holds more than some blocks in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_ckpt.formats.handle import Handle, decode_handle, encode_handle
from pyspark_ckpt.operator.durable.local_copy import executor_local_root
from pyspark_ckpt.operator.rows.input import TOKEN
from pyspark_ckpt.operator.rows.keys import subtask_tokens
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.spark.jobs import collected
from pyspark_ckpt.spark.own_session import SMALL_BATCHES, of_own_session
from pyspark_ckpt.storage.open import open_storage
from pyspark_ckpt.stored.blocks import BLOCKS_SCHEMA, RANGE, SUBTASK, InBlocks, empty_blocks
from pyspark_ckpt.stored.redistribution import Redistribution
from pyspark_ckpt.stored.state import StoredState
from pyspark_ckpt.stored.writing import HANDLES_SCHEMA, Destination, WriteBases

ToEntries = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""From batches of rows to batches of subtask, stored key and value."""


@dataclass(frozen=True, slots=True)
class StoredSource:
    """ToEntries that old subtasks have; `url` is the directory that their files are below."""

    handles: Sequence[Handle]
    url: str
    redistribution: Redistribution

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the places of the handles, with a partition for each."""
        return spark.range(len(self.handles), numPartitions=len(self.handles))

    @property
    def entries(self) -> ToEntries:
        """The function for ``mapInArrow`` that yields the entries of handles by their places."""
        return _ReadEntries(tuple(map(encode_handle, self.handles)), self)


@dataclass(frozen=True, slots=True)
class RowsSource:
    """Rows of a frame, and the function for ``mapInArrow`` that yields them as entries."""

    frame: DataFrame
    entries: ToEntries

    def rows(self, spark: SparkSession) -> DataFrame:  # noqa: ARG002
        """Return the frame."""
        return self.frame


Source = StoredSource | RowsSource


class _ReadEntries:
    """The function given to ``mapInArrow`` over the places of handles: yields moved entries."""

    def __init__(self, handles: tuple[bytes, ...], source: StoredSource) -> None:
        self._handles, self._url, self._redistribution = handles, source.url, source.redistribution

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the entries of the subtasks become whose places come in."""
        storage = open_storage(self._url)
        for batch in batches:
            for place in batch.column(0).to_pylist():
                handle = decode_handle(self._handles[place])
                stored = StoredState(storage, handle, executor_local_root(handle.subtask))
                yield from self._redistribution.batches(handle, stored.scan())


@dataclass(frozen=True, slots=True)
class StateRewrite:
    """Writes the state of an operator for new subtasks, with one shuffle.

    `first` has the handle of each new subtask before its files are written. Each of them gets one
    if `every_subtask`, otherwise those that get entries.
    """

    sources: Sequence[Source]
    first: Sequence[Handle]
    destination: Destination
    every_subtask: bool = False

    def reader(self, source: Source) -> InBlocks:
        """Return the function for ``mapInArrow`` that yields the entries of a source in blocks."""
        first = self.first[0]
        return InBlocks(source.entries, first.parallelism, first.max_parallelism)

    @property
    def writer(self) -> WriteBases:
        """The function for ``mapInArrow`` that writes the blocks of one subtask."""
        return WriteBases(self.first, self.destination)

    def run(self, spark: SparkSession, what: str) -> list[Handle]:
        """Write; return the handles of the subtasks, whose files are durable.

        It raises ``CkptError`` if an entry cannot be stored or a stored file is corrupt. If the job
        fails for another reason, the error of Spark or Py4J passes through.
        """
        parallelism = self.first[0].parallelism
        frames = [
            source.rows(spark).mapInArrow(self.reader(source), BLOCKS_SCHEMA)
            for source in self.sources
        ]
        if self.every_subtask:
            # Its handle alone says what states there are if none has entries.
            frames.append(spark.range(parallelism).select(*empty_blocks(F.col("id"))))
        blocks = reduce(DataFrame.union, frames)
        if session_of(spark).has_jvm:  # else a session cannot run another session's frames
            blocks = of_own_session(blocks, SMALL_BATCHES)
        tokens = F.array(*[F.lit(token) for token in subtask_tokens(parallelism)])
        rows = collected(
            blocks.withColumn(TOKEN, F.element_at(tokens, F.col(SUBTASK) + 1))
            .repartition(parallelism, TOKEN)
            .drop(TOKEN)
            .sortWithinPartitions(RANGE)
            .mapInArrow(self.writer, HANDLES_SCHEMA),
            what,
        )
        return sorted((decode_handle(bytes(row[0])) for row in rows), key=attrgetter("subtask"))
