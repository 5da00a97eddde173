"""What a directory of savepoints has in it: whole ones, damaged ones, and begun ones."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_ckpt.checkpoint.history_entry import BEGUN, HistoryEntry
from pyspark_ckpt.checkpoint.savepoint_record import format_of
from pyspark_ckpt.checkpoint.verification import size_on_disk_bytes
from pyspark_ckpt.errors import CheckpointNotFoundError, CkptError
from pyspark_ckpt.formats.layout import is_savepoint_name
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.storage.open import Storage

LEVELS = 3
"""How deep a directory of savepoints may have directories, as the option ``--directory`` makes."""


def savepoint_entries(directory: Storage, levels: int = 0) -> list[HistoryEntry]:
    """Describe the savepoints in a directory, oldest first; their files are not looked at.

    Parameters
    ----------
    directory
        Where ``savepoint-...`` directories are.
    levels
        How many levels of other directories in it are searched too.
    """
    entries = [_entry(place) for place in _savepoints(directory, levels)]
    return sorted(entries, key=lambda entry: entry.triggered_at_ms or 0)


def _savepoints(directory: Storage, levels: int) -> Iterator[Storage]:
    for name in directory.list():
        if is_savepoint_name(name):
            yield directory.child(name)
        elif levels and not name.startswith((".", "_")):
            yield from _savepoints(directory.child(name), levels - 1)


def _entry(place: Storage) -> HistoryEntry:
    try:
        metadata = read_metadata(place)
    except CkptError as exc:
        is_begun = isinstance(exc, CheckpointNotFoundError)
        return HistoryEntry(
            kind="savepoint",
            status=BEGUN if is_begun else "corrupt",
            path=place.url,
            reason=str(exc),
        )
    return HistoryEntry(
        kind=metadata.kind,
        status="completed",
        epoch=metadata.epoch,
        triggered_at_ms=metadata.triggered_at_ms,
        duration_ms=metadata.completed_at_ms - metadata.triggered_at_ms,
        size_bytes=size_on_disk_bytes(place, metadata),
        files=len({reference.path for reference in metadata.files()}) + 1,
        path=place.url,
        format=None if (found := format_of(metadata)) is None else found.value,
    )
