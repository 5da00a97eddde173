"""The handles that a seeded query starts with: they name copies of what they were made of.

The copies that a restore at equal parallelism makes of its subtasks' files.

Little is copied by the driver. Much, or much of an object store, is copied by the executors: one
task for each subtask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_ckpt.formats.handle import BaseFile, Handle, decode_handle, encode_handle
from pyspark_ckpt.formats.layout import base_path, segment_path
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.spark.jobs import task_error
from pyspark_ckpt.storage.at_once import AT_ONCE, all_of
from pyspark_ckpt.storage.file_reference import FileReference
from pyspark_ckpt.storage.open import Storage, open_storage


def adopt(
    handle: Handle,
    operator: OperatorDescriptor,
    query_id: str,
    epoch: int,
    source: Storage,
    target: Storage,
) -> Handle:
    """Copy a handle's files under names of another query and return the handle that names them.

    Parameters
    ----------
    handle
        What is restored.
    operator
        The operator of the other query.
    query_id, epoch
        Its id, and the epoch that it goes on from.
    source, target
        What the files lie in, and the other query's checkpoints directory.
    """

    def copy(reference: FileReference, path: str) -> FileReference:
        return target.copy_in(source, reference, path)

    base = handle.base
    if base is not None:
        files = tuple(
            BaseFile(each.name, copy(each.file, base_path(operator.uid, handle.subtask, epoch)))
            for each in base.files
        )
        base = msgspec.structs.replace(base, files=files)
    segments = tuple(
        segment
        if segment.file is None
        else msgspec.structs.replace(
            segment, file=copy(segment.file, segment_path(operator.uid, handle.subtask, epoch))
        )
        for segment in handle.segments
    )
    return msgspec.structs.replace(
        handle,
        query_id=query_id,
        epoch=epoch,
        base=base,
        segments=segments,
        pending=None,
        predecessors=msgspec.UNSET,
        time_mode=operator.time_mode,
        timeout_ms=handle.timeout_ms,  # in the same time: the plan refuses another one
    )


MOST_FILES, MOST_BYTES = AT_ONCE, 64 << 20
"""What the driver copies itself: of an object store so many files, and everywhere so many bytes."""

_RESULT = "number long, handle binary"


@dataclass(frozen=True, slots=True)
class _Adopted:
    """What the handles become."""

    operator: OperatorDescriptor
    query_id: str
    epoch: int


def adopt_all(
    spark: SparkSession,
    handles: Sequence[Handle],
    operator: OperatorDescriptor,
    query_id: str,
    epoch: int,
    source: Storage,
    target: Storage,
) -> list[Handle]:
    """Copy the files of an operator's handles and return the handles that name the copies.

    Parameters
    ----------
    spark
        The session whose executors may copy.
    handles
        What is restored.
    operator
        The operator of the new query.
    query_id, epoch
        Its id, and the epoch that it continues from.
    source, target
        What the files lie in, and the new query's checkpoints directory.

    Raises
    ------
    CorruptFileError
        If a file is missing or changed.
    """
    adopted = _Adopted(operator, query_id, epoch)
    is_remote = source.is_remote or target.is_remote
    files = [file for handle in handles for file in handle.files()]
    is_much = sum(file.size_bytes for file in files) > MOST_BYTES or (
        is_remote and len(files) > MOST_FILES
    )
    if is_much and len(handles) > 1 and source.is_shared and target.is_shared:
        return _by_executors(spark, handles, adopted, source, target)
    return all_of(
        lambda handle: adopt(handle, operator, query_id, epoch, source, target),
        handles,
        at_once=is_remote,
    )


def _by_executors(
    spark: SparkSession,
    handles: Sequence[Handle],
    adopted: _Adopted,
    source: Storage,
    target: Storage,
) -> list[Handle]:
    context = spark.sparkContext
    context.setJobDescription(f"pyspark_ckpt: copying the state of operator {adopted.operator.uid}")
    copy = _CopyHandles(tuple(map(encode_handle, handles)), adopted, source.url, target.url)
    try:
        numbers = spark.range(len(handles), numPartitions=len(handles))
        rows = numbers.mapInArrow(copy, _RESULT).collect()
    except PySparkException as exc:
        error = task_error(exc)
        if error is None:
            raise
        raise error from exc
    finally:
        context.setJobDescription(None)  # type: ignore[arg-type]  # as Spark takes it
    by_number = {row.number: decode_handle(bytes(row.handle)) for row in rows}
    return [by_number[number] for number in range(len(handles))]


class _CopyHandles:
    """The function given to ``mapInArrow`` over the numbers of handles: yields the new handles.

    A task that is run twice copies under other names. The result tells which copies count; the
    cleaner takes the others away after the new query's first checkpoint.
    """

    def __init__(
        self, handles: tuple[bytes, ...], adopted: _Adopted, source: str, target: str
    ) -> None:
        self._handles = handles
        self._adopted = adopted
        self._source = source
        self._target = target

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        source, target = open_storage(self._source), open_storage(self._target)
        to = self._adopted
        for batch in batches:
            for number in batch.column(0).to_pylist():
                handle = decode_handle(self._handles[number])
                made = adopt(handle, to.operator, to.query_id, to.epoch, source, target)
                content = {"number": [number], "handle": [encode_handle(made)]}
                yield pa.RecordBatch.from_pydict(content)
