"""Writes a savepoint: a copy of all that an epoch needs, in a directory that the user owns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import msgspec

from pyspark_ckpt.checkpoint.file_check import check_files
from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import CheckpointAbortedError, CkptError, CorruptFileError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.in_progress import (
    OWN_DIRECTORIES,
    InProgress,
    encode_in_progress,
    is_disposed,
)
from pyspark_ckpt.formats.layout import (
    IN_PROGRESS_NAME,
    METADATA_NAME,
    new_savepoint_token,
    savepoint_name,
)
from pyspark_ckpt.formats.metadata import (
    CheckpointMetadata,
    EpochContents,
    OperatorMetadata,
    metadata_of,
)
from pyspark_ckpt.formats.metadata_file import encode_metadata
from pyspark_ckpt.formats.modes import CheckpointKind, SavepointFormat
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.storage.base import DIRECTORY_MARKER, FileReference
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.storage.retrying import RetryingStorage, retried
from pyspark_ckpt.stored.savepoint_copy import SubtaskCopy

logger = library_logger(__name__)

RunCopies = Callable[[Sequence[SubtaskCopy]], Sequence[Handle]]
"""Runs the copies of all subtasks; returns the handles of what they made, in order."""


def run_copies_here(copies: Sequence[SubtaskCopy]) -> list[Handle]:
    """Copy the subtasks one after the other in this process; return their handles."""
    return [copy.run() for copy in copies]


class NewSavepoint:
    """A savepoint that is being written: its directory exists, and it is not complete yet.

    The constructor makes the ``savepoint-...`` directory, which is `path`, with `target` as its
    storage. `run` is a name that no other start of the query has. `token` is in the names of files
    that are made for the savepoint.
    """

    def __init__(self, query_id: str, savepoints_directory: str, run: str = "") -> None:
        self._parent = open_storage(savepoints_directory)
        self._name = savepoint_name(query_id)
        self._run = run
        self.token = new_savepoint_token()
        self._parent.make_directory(self._name)
        self.target = self._parent.child(self._name)
        self.path = self.target.url

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

        Nothing may clean the files of `contents` during the call. `check` is called just before the
        savepoint is published, and raises if the savepoint was aborted. ``CheckpointAbortedError``
        is raised if the savepoint was disposed of during the call.
        """
        is_native = savepoint_format is SavepointFormat.NATIVE
        copied_files = {file.path for file in contents.files()} if is_native else set()

        def copied(new: NewSavepoint) -> tuple[OperatorMetadata, ...]:
            copies = [
                new.copy_of(handle, source, savepoint_format)
                for operator in contents.operators
                for handle in operator.handles
            ]
            handles = iter(run_copies(copies) if copies else ())
            return tuple(_with_handles(operator, handles) for operator in contents.operators)

        return self.complete(
            contents, copied, source, copied_files, check=check, triggered_at_ms=triggered_at_ms
        )

    def complete(
        self,
        contents: EpochContents,
        write_operators: Callable[[NewSavepoint], tuple[OperatorMetadata, ...]],
        source: Storage | None,
        copied_files: Collection[str] = (),
        *,
        check: Callable[[], None] = lambda: None,
        triggered_at_ms: int | None = None,
    ) -> Savepoint:
        """Write the savepoint with operators that the caller writes into the directory.

        `write_operators` writes the state and returns the operators, which replace those of
        `contents`. The names of the files that it writes have ``token``, or are in `copied_files`.
        `source` is ``None`` if `write_operators` writes Spark's files, too; `check` is called as in
        ``write``.
        """
        began_at_ms = now_ms()
        files = (*_spark_files(contents), *copied_files)
        in_progress = self._in_progress(contents, files)
        self.target.write(IN_PROGRESS_NAME, [encode_in_progress(in_progress)])
        if source is not None:
            for path, file in _spark_files(contents).items():
                self.target.copy_in(source, file, path)
        completed = metadata_of(
            msgspec.structs.replace(contents, operators=write_operators(self)),
            CheckpointKind.SAVEPOINT,
            checkpoint_id=None,
            triggered_at_ms=began_at_ms if triggered_at_ms is None else triggered_at_ms,
            completed_at_ms=now_ms(),
        )
        self._sweep({reference.path for reference in completed.files()})
        self._check_files(completed)
        check()
        published = self._publish(encode_metadata(completed))
        return Savepoint.of(self.path, completed, published.size_bytes)

    def copy_of(
        self, handle: Handle, source: Storage, savepoint_format: SavepointFormat
    ) -> SubtaskCopy:
        """Return the order to a task: copy a subtask's state into the directory."""
        return SubtaskCopy(
            handle=handle,
            source=source.url,
            target=self.target.url,
            is_canonical=savepoint_format is SavepointFormat.CANONICAL,
            token=self.token,
        )

    def discard(self) -> bool:
        """Remove the directory of a savepoint that was not completed.

        Nothing is removed once ``_metadata`` is there: the savepoint is complete then, whatever
        failed afterwards. Of what cannot be removed, ``_in_progress`` goes last, because a later
        disposal finds the other files by it.

        The result says whether nothing of the savepoint is left.
        """
        try:
            if self._is_published():
                logger.warning(
                    "the savepoint %s is kept, because an error came after it was complete: "
                    "look at it with verify",
                    self.path,
                )
                return False
            for directory in OWN_DIRECTORIES:
                self._remove(self.target, directory)
            self._remove(self._parent, self._name)
        except (OSError, CkptError) as exc:
            logger.warning(
                "the savepoint %s failed and could not be removed, dispose of it: %s",
                self.path,
                exc,
            )
            return False
        return True

    def _is_published(self) -> bool:
        target = RetryingStorage(self.target)
        return target.exists(METADATA_NAME) and not is_disposed(target)

    def _remove(self, storage: Storage, directory: str) -> None:
        retried(lambda: storage.remove_directory(directory))

    def _in_progress(self, contents: EpochContents, files: Iterable[str]) -> InProgress:
        """Return what says which files belong to this savepoint, until it is complete."""
        return InProgress(
            query_id=contents.query_id,
            run=self._run,
            epoch=contents.epoch,
            began_at_ms=now_ms(),
            token=self.token,
            files=tuple(sorted(set(files))),
        )

    def _publish(self, metadata: bytes) -> FileReference:
        """Write ``_metadata``, unless the savepoint was disposed of.

        The savepoint is complete once that file is there. So a write whose answer got lost must not
        fail, and what is still to be cleaned must not either.
        """
        target = RetryingStorage(self.target)
        try:
            written = target.write(METADATA_NAME, [metadata])
        except FileExistsError as exc:
            raise self._disposed_error() from exc
        if not target.exists(IN_PROGRESS_NAME):  # the files were gone before it was written
            target.delete([METADATA_NAME])
            raise self._disposed_error()
        try:
            target.delete([DIRECTORY_MARKER, IN_PROGRESS_NAME])  # there are files now
        except (OSError, CkptError) as exc:
            logger.warning(
                "the savepoint %s is complete; its %s, which does no harm, could not be deleted: "
                "%s",
                self.path,
                IN_PROGRESS_NAME,
                exc,
            )
        return written

    def _disposed_error(self) -> CheckpointAbortedError:
        return CheckpointAbortedError(
            f"the savepoint {self.path} was disposed of before it was complete: take another one"
        )

    def _check_files(self, completed: CheckpointMetadata) -> None:
        """Check that the files are where a restore will look for them.

        They were written by other processes, to which the same path may be another place. One look
        costs 0.1 ms of the 8 ms in which a file is written durably on a disk.
        """
        try:
            check_files(self.target, completed.files())
        except CorruptFileError as exc:
            if not self.target.exists(IN_PROGRESS_NAME):
                raise self._disposed_error() from exc
            raise

    def _sweep(self, needed: set[str]) -> None:
        """Remove the files of task attempts whose result Spark did not take."""
        self.target.delete(
            [
                f"{directory}/{name}"
                for directory in OWN_DIRECTORIES
                for name in self.target.list(directory)
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
