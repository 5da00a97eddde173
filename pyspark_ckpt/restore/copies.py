"""Copies the files of subtasks' handles for a new query, where subtasks and schemas stay.

On one file system a copy may be a hard link. The driver copies little. The executors copy much, or
many files of an object store, in one task for each subtask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from pyspark_ckpt.formats.handle import BaseFile, Handle
from pyspark_ckpt.formats.layout import base_path, segment_path
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.spark.jobs import collected
from pyspark_ckpt.storage.base import AT_ONCE, FileReference, all_of
from pyspark_ckpt.storage.open import Storage, open_storage

MOST_FILES, MOST_BYTES = AT_ONCE, 64 << 20
"""What the driver copies itself: of an object store so many files, and everywhere so many bytes."""

_RESULT = "number long, files binary"


@dataclass(frozen=True, slots=True)
class FileCopy:
    """A file that a new query needs: of a base snapshot or a segment, and whose it is first."""

    file: FileReference
    is_of_base: bool
    uid: str
    subtask: int
    epoch: int
    links: bool

    def made(self, source: Storage, target: Storage) -> FileReference:
        """Have the file in the target, under a new name; durable on return."""
        name = base_path if self.is_of_base else segment_path
        path = name(self.uid, self.subtask, self.epoch)
        take_in = target.link_or_copy_in if self.links else target.copy_in
        return take_in(source, self.file, path)


@dataclass(frozen=True, slots=True)
class HandleCopy:
    """How handles become those of a new query: their operator, its id, the epoch they continue.

    After a rescale, several handles name the same files. Those of the new query do so too. If it
    `links`, a file may be there once for the old and the new query.
    """

    operator: OperatorDescriptor
    query_id: str
    epoch: int
    links: bool = False

    def files_of(self, handles: Sequence[Handle]) -> list[tuple[FileCopy, ...]]:
        """Return the files of each handle that none before it names."""
        known: set[str] = set()
        found = []
        for handle in handles:
            of_base = () if handle.base is None else (each.file for each in handle.base.files)
            of_segments = (each.file for each in handle.segments if each.file is not None)
            own = {
                file.path: FileCopy(
                    file, is_base, self.operator.uid, handle.subtask, self.epoch, self.links
                )
                for files, is_base in ((of_base, True), (of_segments, False))
                for file in files
                if file.path not in known
            }
            known |= own.keys()
            found.append(tuple(own.values()))
        return found

    def of(self, handle: Handle, copies: Mapping[str, FileReference]) -> Handle:
        """Return the handle that names the copies of its files, which are given by their paths."""
        base = handle.base
        if base is not None:
            files = tuple(BaseFile(each.name, copies[each.file.path]) for each in base.files)
            base = msgspec.structs.replace(base, files=files)
        segments = tuple(
            segment
            if segment.file is None
            else msgspec.structs.replace(segment, file=copies[segment.file.path])
            for segment in handle.segments
        )
        return msgspec.structs.replace(
            handle,
            query_id=self.query_id,
            epoch=self.epoch,
            base=base,
            segments=segments,
            pending=None,
            predecessors=(),
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
    """Copy the files of an operator's handles and return the handles that name the copies."""
    is_remote = source.is_remote or target.is_remote
    parts = copy.files_of(handles)
    files = [each for part in parts for each in part]
    is_much = sum(each.file.size_bytes for each in files) > MOST_BYTES or (
        is_remote and len(files) > MOST_FILES
    )
    if is_much and len(handles) > 1 and source.is_shared and target.is_shared:
        made = _by_executors(spark, parts, copy.operator.uid, source, target)
    else:
        made = all_of(lambda each: each.made(source, target), files, at_once=is_remote)
    copies = {each.file.path: copied for each, copied in zip(files, made, strict=True)}
    return [copy.of(handle, copies) for handle in handles]


def _by_executors(
    spark: SparkSession,
    parts: Sequence[tuple[FileCopy, ...]],
    uid: str,
    source: Storage,
    target: Storage,
) -> list[FileReference]:
    """Copy each part in a task; return the copies in the order of the files."""
    function = _CopyFiles(tuple(parts), source.url, target.url)
    numbers = spark.range(len(parts), numPartitions=len(parts))
    rows = collected(numbers.mapInArrow(function, _RESULT), f"copying the state of operator {uid}")
    made = {row.number: _decoder.decode(bytes(row.files)) for row in rows}
    return [file for number in range(len(parts)) for file in made[number]]


_decoder = msgspec.json.Decoder(tuple[FileReference, ...])


class _CopyFiles:
    """The function given to ``mapInArrow`` over the numbers of parts: yields their copies.

    A task that is run twice copies under other names. The result says which copies count; the
    cleaner removes the others after the new query's first checkpoint.
    """

    def __init__(self, parts: tuple[tuple[FileCopy, ...], ...], source: str, target: str) -> None:
        self._parts = parts
        self._source = source
        self._target = target

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        source, target = open_storage(self._source), open_storage(self._target)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                made = [each.made(source, target) for each in self._parts[number]]
                content = {"number": [number], "files": [msgspec.json.encode(made)]}
                yield pa.RecordBatch.from_pydict(content)
