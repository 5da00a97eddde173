"""Writes a savepoint: a copy of all that an epoch needs, in a directory that the user owns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.in_progress import OWN_DIRECTORIES, InProgress, encode_in_progress
from pyspark_ckpt.formats.layout import (
    IN_PROGRESS_NAME,
    METADATA_NAME,
    new_savepoint_token,
    savepoint_name,
)
from pyspark_ckpt.formats.metadata import (
    EpochContents,
    OperatorMetadata,
    metadata_of,
)
from pyspark_ckpt.formats.metadata_file import encode_metadata
from pyspark_ckpt.formats.modes import CheckpointKind, SavepointFormat
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.operator.durable.savepoint_copy import SubtaskCopy
from pyspark_ckpt.storage.base import DIRECTORY_MARKER
from pyspark_ckpt.storage.file_reference import FileReference
from pyspark_ckpt.storage.open import Storage, open_storage

RunCopies = Callable[[Sequence[SubtaskCopy]], Sequence[Handle]]
"""Runs the copies of all subtasks; returns the handles of what they made, in order."""


def run_copies_here(copies: Sequence[SubtaskCopy]) -> list[Handle]:
    """Copy the subtasks one after the other in this process; return their handles."""
    return [copy.run() for copy in copies]


class NewSavepoint:
    """A savepoint that is being written: its directory exists, and it is not complete yet.

    Parameters
    ----------
    query_id
        The query whose savepoint it is.
    savepoints_directory
        Where its new ``savepoint-...`` directory goes.
    run
        A name that no other start of the query has.

    `path` is the directory.

    Raises
    ------
    OSError
        If the directory cannot be made.
    """

    def __init__(self, query_id: str, savepoints_directory: str, run: str = "") -> None:
        self._parent = open_storage(savepoints_directory)
        self._name = savepoint_name(query_id)
        self._run = run
        self._token = new_savepoint_token()
        self._parent.make_directory(self._name)
        self._target = self._parent.child(self._name)
        self.path = self._target.url

    def write(
        self,
        contents: EpochContents,
        source: Storage,
        savepoint_format: SavepointFormat,
        run_copies: RunCopies,
        check: Callable[[], None] = lambda: None,
        triggered_at_ms: int | None = None,
    ) -> Savepoint:
        """Copy the contents of an epoch into the directory.

        Every file is checked by its digest while it is read. The savepoint exists from the moment
        its ``_metadata`` is written, last; it is durable on return.

        Parameters
        ----------
        contents
            The contents of an epoch; nothing may clean their files meanwhile.
        source
            The query's checkpoints directory.
        savepoint_format
            The backend's own files, or all state of a subtask in one file for every backend.
        run_copies
            Runs the copies of all subtasks.
        check
            Raises if the savepoint was aborted; called just before the savepoint is published.
        triggered_at_ms
            When the savepoint was triggered, by default now.

        Raises
        ------
        CorruptFileError
            If a file is missing or changed.
        CheckpointAbortedError
            If it was disposed of meanwhile.
        """
        began_at_ms = now_ms()
        in_progress = self._in_progress(contents, savepoint_format)
        self._target.write(IN_PROGRESS_NAME, [encode_in_progress(in_progress)])
        for path, file in _spark_files(contents).items():
            self._target.copy_in(source, file, path)
        copies = self._copies(contents, source, savepoint_format)
        copied = iter(run_copies(copies) if copies else ())
        operators = tuple(_with_handles(operator, copied) for operator in contents.operators)
        completed = metadata_of(
            msgspec.structs.replace(contents, operators=operators),
            CheckpointKind.SAVEPOINT,
            checkpoint_id=None,
            triggered_at_ms=began_at_ms if triggered_at_ms is None else triggered_at_ms,
            completed_at_ms=now_ms(),
        )
        self._sweep({reference.path for reference in completed.files()})
        check()
        published = self._publish(encode_metadata(completed))
        return Savepoint.of(self.path, completed, published.size_bytes)

    def _copies(
        self, contents: EpochContents, source: Storage, savepoint_format: SavepointFormat
    ) -> list[SubtaskCopy]:
        return [
            SubtaskCopy(
                handle=handle,
                source=source.url,
                target=self._target.url,
                is_canonical=savepoint_format is SavepointFormat.CANONICAL,
                token=self._token,
            )
            for operator in contents.operators
            for handle in operator.handles
        ]

    def discard(self) -> None:
        """Remove the directory of a savepoint that was not completed."""
        self._parent.delete_directory(self._name)

    def _in_progress(
        self, contents: EpochContents, savepoint_format: SavepointFormat
    ) -> InProgress:
        """Return what says which files belong to this savepoint, until it is complete."""
        is_native = savepoint_format is SavepointFormat.NATIVE
        copied = {file.path for file in contents.files()} if is_native else set()
        return InProgress(
            query_id=contents.query_id,
            run=self._run,
            epoch=contents.epoch,
            began_at_ms=now_ms(),
            token=self._token,
            files=tuple(sorted({*_spark_files(contents), *copied})),
        )

    def _publish(self, metadata: bytes) -> FileReference:
        """Write ``_metadata``, unless the savepoint was disposed of."""
        disposed = CheckpointAbortedError(
            f"the savepoint {self.path} was disposed of before it was complete: take another one"
        )
        try:
            written = self._target.write(METADATA_NAME, [metadata])
        except FileExistsError as exc:
            raise disposed from exc
        if not self._target.exists(IN_PROGRESS_NAME):  # the files were gone before it was written
            self._target.delete([METADATA_NAME])
            raise disposed
        self._target.delete([DIRECTORY_MARKER, IN_PROGRESS_NAME])  # there are files now
        return written

    def _sweep(self, needed: set[str]) -> None:
        """Remove the files of task attempts whose result Spark did not take."""
        self._target.delete(
            [
                f"{directory}/{name}"
                for directory in OWN_DIRECTORIES
                for name in self._target.list(directory)
                if f"{directory}/{name}" not in needed
            ]
        )


def write_savepoint(
    contents: EpochContents,
    source: Storage,
    savepoints_directory: str,
    savepoint_format: SavepointFormat = SavepointFormat.CANONICAL,
    run_copies: RunCopies = run_copies_here,
    triggered_at_ms: int | None = None,
) -> Savepoint:
    """Write a savepoint in a new directory below `savepoints_directory`.

    As :meth:`NewSavepoint.write`; on failure the new directory is removed.
    """
    new = NewSavepoint(contents.query_id, savepoints_directory)
    try:
        return new.write(
            contents, source, savepoint_format, run_copies, triggered_at_ms=triggered_at_ms
        )
    except BaseException:
        new.discard()
        raise


def _spark_files(contents: EpochContents) -> dict[str, FileReference]:
    """Return Spark's files, which the driver copies, by their paths."""
    logs = [log.file for log in contents.source_logs]
    state = [each.file for each in contents.spark_operator_files()]
    return {file.path: file for file in (*logs, *state)}


def _with_handles(operator: OperatorMetadata, copied: Iterator[Handle]) -> OperatorMetadata:
    handles = tuple(next(copied) for _ in operator.handles)
    return msgspec.structs.replace(operator, handles=handles)
