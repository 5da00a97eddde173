"""Deletes savepoints, with exactly the files that are their own.

Users dispose of complete savepoints. The next start of a query removes savepoints that its last
driver began and did not complete.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CkptError,
    UnsafePathError,
)
from pyspark_ckpt.formats.in_progress import (
    DISPOSED,
    OWN_DIRECTORIES,
    InProgress,
    is_disposed,
    read_in_progress,
)
from pyspark_ckpt.formats.layout import (
    IN_PROGRESS_NAME,
    METADATA_NAME,
    is_savepoint_name,
    written_path,
)
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.history.log import HistoryEntry, HistoryLog
from pyspark_ckpt.history.records import AbortedCheckpoint, Savepoint
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.storage.base import DIRECTORY_MARKER
from pyspark_ckpt.storage.open import LocalStorage, Storage, open_storage
from pyspark_ckpt.stores.reader_pins import barrier_name, encode_pin, pin_files

_CLOSED_MS = 600_000
"""How long a savepoint stays closed to readers if its disposal was interrupted."""


@dataclass(frozen=True, slots=True)
class Disposal:
    """What disposing of a savepoint did to its directory.

    Parameters
    ----------
    path : str
        The savepoint's directory.
    files : int
        Number of files that were deleted.
    left : tuple of str
        Names of files of others in the directory, which stay.
    was_complete : bool
        False for a savepoint that a driver has only begun.

    Examples
    --------
    >>> ckpt.results.Disposal("/savepoints/savepoint-1", files=5, left=()).was_complete
    True
    """

    path: str
    files: int
    left: tuple[str, ...]
    was_complete: bool = True


def dispose_savepoint(path: str) -> Disposal:
    """Delete a savepoint: the files that its ``_metadata`` names, then the empty directories."""
    directory = open_storage(path)
    if isinstance(directory, LocalStorage):
        directory = LocalStorage(directory.root.resolve())  # a link itself is not deleted
    begun = dispose_of_begun(directory)
    if begun is not None:
        return begun
    files = own_files(directory, read_metadata(directory))
    _close_to_readers(directory)
    directory.delete(files)
    left = _remove_directories(directory)
    return Disposal(directory.url, len(files) + 1, left)


def _close_to_readers(directory: Storage) -> None:
    """Keep others from reading a savepoint that is about to be deleted.

    ``CheckpointError`` is raised if somebody reads the savepoint, and nothing was deleted then.
    """
    barrier = barrier_name(now_ms() + _CLOSED_MS)
    directory.write(barrier, [encode_pin("a disposal")])
    reading = [each for each in pin_files(directory) if each.is_pin and each.counts(now_ms())]
    if reading:
        directory.delete([barrier])
        until = max(each.expires_ms for each in reading)
        raise CheckpointError(
            f"{directory.url} is being read by {len(reading)} readers and is not deleted: close "
            f"them, or repeat this in {max(until - now_ms(), 0) // 1000} s, when the pins of dead "
            "readers are over"
        )


def dispose_of_begun(directory: Storage) -> Disposal | None:
    """Delete a savepoint that is not complete, and keep it from being completed.

    The result is ``None`` if nothing was deleted, because the directory has a complete savepoint or
    none.
    """
    if not _is_begun(directory):
        return None
    begun = read_in_progress(directory)
    if begun is not None and not is_disposed(directory):
        try:
            directory.write(METADATA_NAME, [DISPOSED])
        except FileExistsError:
            if not is_disposed(directory):
                return None  # it was completed just now
    files = [] if begun is None else _files_of_begun(directory, begun)
    directory.delete(files)
    left = _remove_directories(directory)
    return Disposal(directory.url, len(files), left, was_complete=False)


def _is_begun(directory: Storage) -> bool:
    """Return whether a directory holds a savepoint that was begun and not completed."""
    if directory.exists(METADATA_NAME):
        return is_disposed(directory)
    if directory.exists(IN_PROGRESS_NAME):
        return True
    # The driver may have ended before or while it wrote its first file.
    names = {written_path(name) for name in directory.list()}
    is_empty = names <= {DIRECTORY_MARKER, IN_PROGRESS_NAME}
    return (
        is_empty and is_savepoint_name(directory.name) and directory.parent().exists(directory.name)
    )


def _files_of_begun(directory: Storage, begun: InProgress) -> list[str]:
    below = [f"{name}/{inner}" for name in OWN_DIRECTORIES for inner in directory.list(name)]
    files = begun.own_of(below)
    for path in files:
        directory.url_of(path)  # no link leads out of it
    return files


def _remove_directories(directory: Storage) -> tuple[str, ...]:
    """Delete ``_metadata`` and empty directories; return the names of what is left."""
    pins = [each.name for each in pin_files(directory)]
    cut = [name for name in directory.list() if written_path(name) == IN_PROGRESS_NAME]
    directory.delete([DIRECTORY_MARKER, IN_PROGRESS_NAME, *cut, *pins])
    directory.delete([METADATA_NAME])
    left = [
        f"{name}/{inner}" for name in OWN_DIRECTORIES for inner in _remove_if_empty(directory, name)
    ]
    left += [name for name in directory.list() if name not in OWN_DIRECTORIES]
    if not left:
        _remove_if_empty(directory.parent(), directory.name)
    return tuple(left)


def own_files(directory: Storage, metadata: CheckpointMetadata) -> list[str]:
    """Return the paths of a savepoint's files; check that each is inside of the savepoint."""
    if not metadata.is_savepoint:
        raise CheckpointNotFoundError(
            f"{directory.url} holds a {metadata.kind}, not a savepoint: its query's retention "
            "deletes it"
        )
    paths = sorted({reference.path for reference in metadata.files()})
    for path in paths:
        if path.partition("/")[0] not in OWN_DIRECTORIES or "/" not in path:
            raise UnsafePathError(
                f"{directory.url}: its {METADATA_NAME} names {path!r}, which no savepoint has: "
                "it is damaged or hostile; nothing was deleted"
            )
        directory.url_of(path)  # no link leads out of it
    return paths


def files_of_others(directory: Storage, metadata: CheckpointMetadata) -> tuple[str, ...]:
    """Return the names in a savepoint's directory that are not part of the savepoint."""
    own = {*own_files(directory, metadata), DIRECTORY_MARKER, IN_PROGRESS_NAME, METADATA_NAME}
    own |= {*OWN_DIRECTORIES, *(each.name for each in pin_files(directory))}
    inside = [f"{name}/{inner}" for name in OWN_DIRECTORIES for inner in directory.list(name)]
    return tuple(name for name in [*inside, *directory.list()] if name not in own)


def _remove_if_empty(parent: Storage, name: str) -> list[str]:
    """Remove a directory if it is empty; return the names in it."""
    content = parent.list(name)
    if not content and parent.exists(name):
        parent.delete_directory(name)
    return content


logger = library_logger(__name__)


def remove_interrupted(history: HistoryLog, query_id: str, run: str) -> None:
    """Remove the savepoints that earlier drivers of a query began and did not complete.

    Only their own files are deleted, and only if the directory says that they belong to this
    query. What cannot be removed is logged; `pyspark-ckpt dispose` removes it too.

    The savepoints of `run`, which is this start of the query, are left alone.
    """
    for name, entry in history.begun().items():
        if entry.run == run or entry.path is None:
            continue
        try:
            _remove_or_note(entry, open_storage(entry.path), history, query_id)
        except (OSError, CkptError) as exc:
            logger.warning("the interrupted savepoint %s could not be deleted: %s", entry.path, exc)
        else:
            history.forget(name)


def _remove_or_note(
    entry: HistoryEntry, place: Storage, history: HistoryLog, query_id: str
) -> None:
    """Remove a savepoint that is not complete, and note in the history what became of it."""
    begun = read_in_progress(place)
    if begun is not None and begun.query_id != query_id:
        logger.warning(
            "%s is not deleted, because it is %s, and not a savepoint of query %s",
            place.url,
            begun.description(),
            query_id,
        )
        return
    disposal = dispose_of_begun(place)
    if disposal is not None:
        logger.warning(
            "removed the savepoint %s: the driver ended before it was complete", place.url
        )
    completed = None if disposal is not None else _completed_savepoint(place)
    if completed is not None:
        history.note_savepoint(completed)
    else:
        history.onCheckpointAborted(_aborted_savepoint(entry))


def _completed_savepoint(place: Storage) -> Savepoint | None:
    """Return the savepoint at a place if its driver completed it and ended before noting it."""
    try:
        metadata = read_metadata(place)
    except CheckpointNotFoundError:
        return None
    place.delete([IN_PROGRESS_NAME])  # the driver may have ended before deleting it
    return Savepoint.of(place.url, metadata, place.size_bytes(METADATA_NAME) or 0)


def _aborted_savepoint(entry: HistoryEntry) -> AbortedCheckpoint:
    return AbortedCheckpoint(
        kind=CheckpointKind.SAVEPOINT,
        checkpoint_id=None,
        epoch=entry.epoch,
        triggered_at_ms=entry.triggered_at_ms or 0,
        duration_ms=0,
        reason=AbortReason.INTERRUPTED,
        message=f"the driver ended before {entry.path} was complete",
    )
