"""Finds a query's checkpoints directory and the savepoints in a directory, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from pyspark_ckpt.errors import CheckpointNotFoundError, CkptError
from pyspark_ckpt.formats.layout import (
    CHECKPOINTS_DIRECTORY,
    DRIVERS,
    HISTORY,
    KEPT_BY_ROLLBACK,
    METADATA_NAME,
    OWNERS,
    SHARED,
    STORES,
    TASK_OWNED,
    checkpoint_id_of,
    checkpoint_name,
    is_of_checkpoints_directory,
    is_savepoint_name,
)
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.formats.modes import EntryKind, EntryStatus
from pyspark_ckpt.history.log import HistoryEntry
from pyspark_ckpt.history.records import format_of
from pyspark_ckpt.history.verification import size_on_disk_bytes
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.stores.place import recorded_checkpoints


def find_checkpoints_directory(path: str) -> Storage:
    """Return the checkpoints directory at a path.

    `path` is a query's ``checkpointLocation``, its checkpoints directory, or a directory that holds
    the checkpoints directory of one query. It raises ``CheckpointNotFoundError`` if there are none
    or several, or if the directory that the location records is gone or belongs to another
    location.
    """
    root = open_storage(path)
    elsewhere = recorded_checkpoints(root)
    if elsewhere is not None:
        return elsewhere
    if root.exists(CHECKPOINTS_DIRECTORY):
        return root.child(CHECKPOINTS_DIRECTORY)
    if _is_one(root):
        return root
    names = root.list()
    inside = [name for name in names if _is_directory_of_one(root, name)]
    if len(inside) == 1:
        return root.child(inside[0])
    if inside:
        raise CheckpointNotFoundError(
            f"{root.url} has the checkpoints of {len(inside)} queries ({', '.join(inside[:5])}): "
            "give the directory of one query; lineage shows all of them"
        )
    what = "has no checkpoints" if names else "does not exist, is empty or is a file"
    raise CheckpointNotFoundError(
        f"{root.url} {what}: give a query's checkpointLocation, or its directory "
        "below spark.ckpt.execution.checkpointing.dir"
    )


def after_rollback(path: str) -> str:
    """Return what to do where a rollback has left a place without checkpoints, or nothing.

    The checkpoints before it come back with its undo; new ones come once the query runs.
    """
    root = open_storage(path)
    for location in (root, root.parent()) if root.name == CHECKPOINTS_DIRECTORY else (root,):
        kept = sorted(name for name in location.list() if name.startswith(KEPT_BY_ROLLBACK))
        if kept:
            one = kept[0] if len(kept) == 1 else "ONE_OF_THEM"
            return (
                f"; it was rolled back, and what was there before is in {', '.join(kept)}: start "
                f"the query, or undo it with: pyspark-ckpt rollback {location.url} {one}"
            )
    return ""


def _is_directory_of_one(root: Storage, name: str) -> bool:
    if name.startswith("."):
        return False
    below = directory_below(root, name)
    return below is not None and _is_one(below)


def _is_one(storage: Storage) -> bool:
    names = storage.list()
    return METADATA_NAME not in names and is_checkpoints_directory(
        storage.name, names, storage.list
    )


_LOOKED_INTO = (DRIVERS, HISTORY, OWNERS, STORES, SHARED, TASK_OWNED)


def is_checkpoints_directory(
    name: str, names: Collection[str], names_in: Callable[[str], Collection[str]]
) -> bool:
    """Return whether a directory is the checkpoints directory of a query.

    A directory named ``shared`` or ``history`` next to queries does not make one: what is in it
    counts. That of a query's location has a fixed name, and may be empty yet.
    """
    numbers = sorted(number for each in names if (number := checkpoint_id_of(each)) is not None)
    inside = [each for each in _LOOKED_INTO if each in names]
    # The newest checkpoint may have just begun, and the oldest may be about to be deleted.
    checkpoints = [checkpoint_name(number) for number in sorted({*numbers[-1:], *numbers[:1]})]
    if name == CHECKPOINTS_DIRECTORY and (inside or checkpoints):
        return True
    return any(
        is_of_checkpoints_directory(each, names_in(each)) for each in (*checkpoints, *inside)
    )


logger = library_logger(__name__)

OF_ONE_FILE = (IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors of one file that may not be read, or of a directory there; not of an absent storage."""

LEVELS = 3
"""How many levels below a directory are searched for savepoints; ``--directory`` makes levels."""


def savepoint_entries(directory: Storage, levels: int) -> list[HistoryEntry]:
    """Return an entry for each savepoint in a directory, oldest first; reads only ``_metadata``.

    A savepoint or directory below it that may not be read is left out, with a warning in the log.
    """
    places = _savepoints(directory, directory.list(), levels)
    entries = [entry for place in places if (entry := _entry(place)) is not None]
    return sorted(entries, key=lambda entry: entry.triggered_at_ms or 0)


def _savepoints(directory: Storage, names: list[str], levels: int) -> Iterator[Storage]:
    for name in names:
        if name.startswith((".", "_")) or (not levels and not is_savepoint_name(name)):
            continue
        below = directory_below(directory, name)
        if below is None:
            continue
        if is_savepoint_name(name):
            yield below
            continue
        try:
            inside = below.list()
        except OF_ONE_FILE as exc:
            logger.warning("%s is left out of a search: %s", below.url, exc)
        else:
            yield from _savepoints(below, inside, levels - 1)


def directory_below(directory: Storage, name: str) -> Storage | None:
    """Return what is below a directory; ``None``, with a warning, if it is a link that leaves it.

    A search continues without it. A caller that must find everything, such as an erasure, calls
    ``directory.child`` instead, which raises.
    """
    try:
        return directory.child(name)
    except (OSError, CkptError) as exc:
        logger.warning("%s is left out of a search: %s", f"{directory.url}/{name}", exc)
        return None


def _entry(place: Storage) -> HistoryEntry | None:
    try:
        metadata = read_metadata(place)
    except OF_ONE_FILE as exc:
        logger.warning("%s cannot be read and is left out: %s", place.url, exc)
        return None
    except CkptError as exc:
        is_begun = isinstance(exc, CheckpointNotFoundError)
        return HistoryEntry(
            kind=EntryKind.SAVEPOINT,
            status=EntryStatus.BEGUN if is_begun else EntryStatus.CORRUPT,
            path=place.url,
            reason=str(exc),
        )
    return HistoryEntry(
        kind=EntryKind(metadata.kind.value),
        status=EntryStatus.COMPLETED,
        epoch=metadata.epoch,
        triggered_at_ms=metadata.triggered_at_ms,
        duration_ms=metadata.completed_at_ms - metadata.triggered_at_ms,
        size_bytes=size_on_disk_bytes(place, metadata),
        files=len({reference.path for reference in metadata.files()}) + 1,
        path=place.url,
        format=format_of(metadata),
    )
