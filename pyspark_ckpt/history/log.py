"""The history log of a query: its entries, their sizes, and their small files.

The log has the savepoints and the aborted attempts, one file each. It is in the checkpoints
directory, so it can be read after the driver has ended. Nothing depends on it: an entry that cannot
be written or read is left out.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.layout import HISTORY
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.modes import EntryKind, EntryStatus, SavepointFormat
from pyspark_ckpt.history.listener import CheckpointListener
from pyspark_ckpt.history.records import AbortedCheckpoint, CompletedCheckpoint, Savepoint
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.storage.base import JSON_ERRORS, FileReference
from pyspark_ckpt.storage.open import Storage


@dataclass(frozen=True, slots=True)
class StateSizes:
    """Bytes and files of a part of a checkpoint; `new_bytes` are not in the checkpoint before."""

    size_bytes: int
    new_bytes: int
    files: int


def sizes_of(metadata: CheckpointMetadata, before: CheckpointMetadata | None) -> StateSizes:
    """Return the sizes of a whole checkpoint without its ``_metadata``."""
    parts = _parts(metadata.files(), metadata.handles())
    return _sizes(parts, {} if before is None else _parts(before.files(), before.handles()))


def sizes_of_subtask(handle: Handle, before: Handle | None) -> StateSizes:
    """Return the sizes of one subtask's state."""
    parts = _parts(handle.files(), [handle])
    return _sizes(parts, {} if before is None else _parts(before.files(), [before]))


def _parts(files: Iterable[FileReference], handles: Iterable[Handle]) -> dict[str, int]:
    """Return the size of each file, by its path, and of each inline segment, by its version."""
    sizes = {reference.path: reference.size_bytes for reference in files}
    for handle in handles:
        for segment in handle.segments:
            if segment.inline is not None:
                sizes[f"{handle.uid}/{handle.subtask}/{segment.version}"] = segment.size_bytes
    return sizes


def _sizes(parts: Mapping[str, int], before: Mapping[str, int]) -> StateSizes:
    return StateSizes(
        size_bytes=sum(parts.values()),
        new_bytes=sum(size for name, size in parts.items() if name not in before),
        files=len(parts),
    )


_MAX_REASON = 8 << 10


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint or savepoint that exists, was begun, or was aborted.

    `run` names the start of the query, as in ``_in_progress``; only a begun savepoint has it.
    `format` is the format of a savepoint. `requests` is known only to the driver that took the
    checkpoint. Only a restart in place has `parallelism_before`, `parallelism` and `pause_ms`.
    """

    kind: EntryKind
    status: EntryStatus
    triggered_at_ms: int | None = None
    duration_ms: int | None = None
    checkpoint_id: int | None = None
    epoch: int | None = None
    size_bytes: int | None = None
    files: int | None = None
    path: str | None = None
    reason: str | None = None
    new_bytes: int | None = None
    phases_ms: dict[str, int] | None = None
    requests: dict[str, int] | None = None
    run: str | None = None
    format: SavepointFormat | None = None
    parallelism_before: int | None = None
    parallelism: int | None = None
    pause_ms: int | None = None
    last_id: int = 0
    """The highest id of a checkpoint when the entry was written."""

    def order(self) -> tuple[int, bool, int, int]:
        """Return the sort key of an entry; the wall clock comes last, because it may jump."""
        has_no_id = self.checkpoint_id is None
        place = self.last_id if self.checkpoint_id is None else self.checkpoint_id
        epoch = -1 if self.epoch is None else self.epoch
        return place, has_no_id, epoch, self.triggered_at_ms or 0


def checkpoint_entries(
    checkpoints: Iterable[tuple[int, str, CheckpointMetadata | CkptError]],
) -> Iterator[HistoryEntry]:
    """Yield an entry for each checkpoint that exists, oldest first."""
    before: CheckpointMetadata | None = None
    for number, path, metadata in checkpoints:
        if isinstance(metadata, CkptError):
            yield HistoryEntry(
                kind=EntryKind.CHECKPOINT,
                status=EntryStatus.CORRUPT,
                checkpoint_id=number,
                path=path,
                reason=str(metadata),
            )
            continue
        yield _completed_entry(number, path, metadata, before)
        before = metadata


def savepoint_entry(savepoint: Savepoint, last_id: int = 0) -> HistoryEntry:
    """Describe a savepoint that was completed."""
    return HistoryEntry(
        kind=EntryKind.SAVEPOINT,
        status=EntryStatus.COMPLETED,
        epoch=savepoint.epoch,
        triggered_at_ms=savepoint.triggered_at_ms,
        duration_ms=savepoint.completed_at_ms - savepoint.triggered_at_ms,
        size_bytes=savepoint.size_bytes,
        files=savepoint.files,
        path=savepoint.path,
        format=SavepointFormat(savepoint.format),
        last_id=last_id,
    )


def aborted_entry(aborted: AbortedCheckpoint, last_id: int = 0) -> HistoryEntry:
    """Describe a checkpoint or savepoint that was aborted."""
    return HistoryEntry(
        kind=EntryKind(str(aborted.kind)),
        status=EntryStatus.ABORTED,
        checkpoint_id=aborted.checkpoint_id,
        epoch=aborted.epoch,
        triggered_at_ms=aborted.triggered_at_ms,
        duration_ms=aborted.duration_ms,
        reason=f"{aborted.reason.value}: {aborted.message}"[:_MAX_REASON],
        last_id=last_id,
    )


def restart_entry(
    epoch: int, parallelism: tuple[int, int], began_at_ms: int, pause_ms: int, reason: str
) -> HistoryEntry:
    """Describe a restart in place; `parallelism` is that before and that after."""
    return HistoryEntry(
        kind=EntryKind.RESTART,
        status=EntryStatus.COMPLETED,
        epoch=epoch,
        triggered_at_ms=began_at_ms,
        duration_ms=pause_ms,
        reason=reason[:_MAX_REASON],
        parallelism_before=parallelism[0],
        parallelism=parallelism[1],
        pause_ms=pause_ms,
    )


def _completed_entry(
    checkpoint_id: int, path: str, metadata: CheckpointMetadata, before: CheckpointMetadata | None
) -> HistoryEntry:
    sizes = sizes_of(metadata, before)
    return HistoryEntry(
        kind=EntryKind.CHECKPOINT,
        status=EntryStatus.COMPLETED,
        checkpoint_id=checkpoint_id,
        epoch=metadata.epoch,
        triggered_at_ms=metadata.triggered_at_ms,
        duration_ms=metadata.completed_at_ms - metadata.triggered_at_ms,
        size_bytes=sizes.size_bytes,
        new_bytes=sizes.new_bytes if before is not None else None,
        files=len({reference.path for reference in metadata.files()}) + 1,
        phases_ms=metadata.phases_ms,
        path=path,
    )


logger = library_logger(__name__)

KEPT = 1000
"""Entries that stay; older ones are removed."""

_MAX_BYTES = 64 << 10
_REMOVED_AT_ONCE = 100


class HistoryLog(CheckpointListener):
    """The history log in a checkpoints directory; a listener of the query's checkpoints."""

    def __init__(self, storage: Storage, last_id: int = 0) -> None:
        self._storage = storage
        self._last_id = last_id

    def onCheckpointCompleted(self, checkpoint: CompletedCheckpoint) -> None:
        """Keep the checkpoint's id; the checkpoint's own directory has everything else."""
        self._last_id = max(self._last_id, checkpoint.checkpoint_id)

    def onCheckpointAborted(self, checkpoint: AbortedCheckpoint) -> None:
        """Write an entry for an aborted checkpoint or savepoint."""
        self._last_id = max(self._last_id, checkpoint.checkpoint_id or 0)
        self._note(aborted_entry(checkpoint, self._last_id))

    def note_begun(self, path: str, triggered_at_ms: int, run: str) -> str:
        """Write an entry for a savepoint that is being taken; return the entry's name."""
        return self._note(
            HistoryEntry(
                kind=EntryKind.SAVEPOINT,
                status=EntryStatus.BEGUN,
                triggered_at_ms=triggered_at_ms,
                duration_ms=0,
                path=path,
                run=run,
                reason="it is being taken, or the driver ended before it was complete",
                last_id=self._last_id,
            )
        )

    def forget(self, name: str) -> None:
        """Delete an entry that a newer entry has replaced."""
        try:
            self._storage.delete([f"{HISTORY}/{name}"])
        except (OSError, CkptError) as exc:
            logger.warning(
                "%s: an outdated entry of the history log could not be deleted: %s",
                self._storage.url,
                exc,
            )

    def begun(self) -> dict[str, HistoryEntry]:
        """Return the savepoints that are not complete, by the names of their entries."""
        return {
            name: entry
            for name, entry in self._newest_entries()
            if entry.status is EntryStatus.BEGUN
        }

    def note_savepoint(self, savepoint: Savepoint) -> None:
        """Write an entry for a completed savepoint."""
        self._note(savepoint_entry(savepoint, self._last_id))

    def note_restart(self, entry: HistoryEntry) -> None:
        """Write an entry of :func:`restart_entry`."""
        self._note(msgspec.structs.replace(entry, last_id=self._last_id))

    def entries(self, most: int = KEPT) -> list[HistoryEntry]:
        """Return the newest entries, oldest first unless the clock jumped between checkpoints."""
        return [entry for _, entry in self._newest_entries(most)]

    def _newest_entries(self, most: int = KEPT) -> Iterator[tuple[str, HistoryEntry]]:
        names = [name for name in self._storage.list(HISTORY) if name.endswith(".json")]
        for name in names[-most:]:
            if (entry := self._read(name)) is not None:
                yield name, entry

    def _note(self, entry: HistoryEntry) -> str:
        name = f"{entry.last_id:018}-{entry.triggered_at_ms or 0:015}-{secrets.token_hex(4)}.json"
        try:
            self._storage.write(f"{HISTORY}/{name}", [msgspec.json.encode(entry)])
            names = [name for name in self._storage.list(HISTORY) if name.endswith(".json")]
            if len(names) > KEPT + _REMOVED_AT_ONCE:
                self._storage.delete(f"{HISTORY}/{name}" for name in names[:-KEPT])
        except (OSError, CkptError) as exc:
            logger.warning(
                "%s: the history log could not record a %s: %s",
                self._storage.url,
                entry.kind,
                exc,
            )
        return name

    def _read(self, name: str) -> HistoryEntry | None:
        if not name.endswith(".json"):
            return None
        try:
            content = self._storage.read_start(f"{HISTORY}/{name}", _MAX_BYTES)
            return msgspec.json.decode(content, type=HistoryEntry)
        except (OSError, CkptError, *JSON_ERRORS) as exc:
            logger.warning(
                "%s: entry %s of the history log cannot be read and is left out: %s",
                self._storage.url,
                name,
                exc,
            )
            return None
