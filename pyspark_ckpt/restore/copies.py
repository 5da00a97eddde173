"""Copies the files of subtasks' handles for a new query, where subtasks and schemas stay.

The driver copies little. The executors copy much, or many files of an object store, in one task
for each subtask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from pyspark_ckpt.formats.handle import BaseFile, Handle, decode_handle, encode_handle
from pyspark_ckpt.formats.layout import base_path, segment_path
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.spark.jobs import collected
from pyspark_ckpt.storage.at_once import AT_ONCE, all_of
from pyspark_ckpt.storage.file_reference import FileReference
from pyspark_ckpt.storage.open import Storage, open_storage

MOST_FILES, MOST_BYTES = AT_ONCE, 64 << 20
"""What the driver copies itself: of an object store so many files, and everywhere so many bytes."""

_RESULT = "number long, handle binary"


@dataclass(frozen=True, slots=True)
class HandleCopy:
    """How a handle becomes that of a new query: its operator, its id, the epoch it continues."""

    operator: OperatorDescriptor
    query_id: str
    epoch: int

    def of(self, handle: Handle, source: Storage, target: Storage) -> Handle:
        """Copy a handle's files and return the handle that names the copies; both durable.

        Parameters
        ----------
        handle
            The stored handle.
        source, target
            What its files lie in, and the new query's checkpoints directory.

        Raises
        ------
        CorruptFileError
            If a file is missing or changed.
        """
        uid, subtask = self.operator.uid, handle.subtask

        def copy_base(file: BaseFile) -> BaseFile:
            path = base_path(uid, subtask, self.epoch)
            return BaseFile(file.name, target.copy_in(source, file.file, path))

        def copy_segment(file: FileReference) -> FileReference:
            return target.copy_in(source, file, segment_path(uid, subtask, self.epoch))

        base = handle.base
        if base is not None:
            base = msgspec.structs.replace(base, files=tuple(map(copy_base, base.files)))
        segments = tuple(
            segment
            if segment.file is None
            else msgspec.structs.replace(segment, file=copy_segment(segment.file))
            for segment in handle.segments
        )
        return msgspec.structs.replace(
            handle,
            query_id=self.query_id,
            epoch=self.epoch,
            base=base,
            segments=segments,
            pending=None,
            predecessors=msgspec.UNSET,
            time_mode=self.operator.time_mode,
            timeout_ms=handle.timeout_ms,  # by the same clock: the plan refuses another one
        )


def copy_handles(
    spark: SparkSession,
    handles: Sequence[Handle],
    copy: HandleCopy,
    source: Storage,
    target: Storage,
) -> list[Handle]:
    """Copy the files of an operator's handles and return the handles that name the copies.

    Parameters
    ----------
    spark
        The session whose executors may copy.
    handles
        The stored handles.
    copy
        The operator and the query that the copies are for.
    source, target
        What the files lie in, and the new query's checkpoints directory.

    Raises
    ------
    CorruptFileError
        If a file is missing or changed.
    """
    is_remote = source.is_remote or target.is_remote
    files = [file for handle in handles for file in handle.files()]
    is_much = sum(file.size_bytes for file in files) > MOST_BYTES or (
        is_remote and len(files) > MOST_FILES
    )
    if is_much and len(handles) > 1 and source.is_shared and target.is_shared:
        return _by_executors(spark, handles, copy, source, target)
    return all_of(lambda handle: copy.of(handle, source, target), handles, at_once=is_remote)


def _by_executors(
    spark: SparkSession,
    handles: Sequence[Handle],
    copy: HandleCopy,
    source: Storage,
    target: Storage,
) -> list[Handle]:
    function = _CopyHandles(tuple(map(encode_handle, handles)), copy, source.url, target.url)
    numbers = spark.range(len(handles), numPartitions=len(handles))
    rows = collected(
        numbers.mapInArrow(function, _RESULT), f"copying the state of operator {copy.operator.uid}"
    )
    by_number = {row.number: decode_handle(bytes(row.handle)) for row in rows}
    return [by_number[number] for number in range(len(handles))]


class _CopyHandles:
    """The function given to ``mapInArrow`` over the numbers of handles: yields the new handles.

    A task that is run twice copies under other names. The result says which copies count; the
    cleaner removes the others after the new query's first checkpoint.
    """

    def __init__(
        self, handles: tuple[bytes, ...], copy: HandleCopy, source: str, target: str
    ) -> None:
        self._handles = handles
        self._copy = copy
        self._source = source
        self._target = target

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        source, target = open_storage(self._source), open_storage(self._target)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                made = self._copy.of(decode_handle(self._handles[number]), source, target)
                content = {"number": [number], "handle": [encode_handle(made)]}
                yield pa.RecordBatch.from_pydict(content)
