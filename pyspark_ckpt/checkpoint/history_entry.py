"""One line of a query's history: what a checkpoint or savepoint became."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from pyspark_ckpt.checkpoint.outcome import AbortedCheckpoint
from pyspark_ckpt.checkpoint.savepoint_record import Savepoint
from pyspark_ckpt.checkpoint.state_sizes import sizes_of
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.metadata import CheckpointMetadata

BEGUN = "begun"
"""Status of a savepoint that is being taken, or whose driver ended before it was complete."""

_MAX_REASON = 8 << 10


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint or savepoint that is there, or one that was begun or given up.

    `run` is of one that is only begun: the start of the query, as in its ``_in_progress``. `format`
    is a savepoint's.
    """

    kind: str
    status: str
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
    run: str | None = None
    format: str | None = None
    last_id: int = 0
    """The highest id of a checkpoint when it was noted."""

    def order(self) -> tuple[int, bool, int, int]:
        """Return what entries are sorted by: the wall clock is asked last, since it may jump."""
        has_no_id = self.checkpoint_id is None
        place = self.last_id if self.checkpoint_id is None else self.checkpoint_id
        epoch = -1 if self.epoch is None else self.epoch
        return place, has_no_id, epoch, self.triggered_at_ms or 0


def checkpoint_entries(
    checkpoints: Iterable[tuple[int, str, CheckpointMetadata | CkptError]],
) -> Iterator[HistoryEntry]:
    """Describe the checkpoints that are there, oldest first.

    Parameters
    ----------
    checkpoints
        Their ids and paths; in the place of one that cannot be read stands the reason.
    """
    before: CheckpointMetadata | None = None
    for number, path, metadata in checkpoints:
        if isinstance(metadata, CkptError):
            yield HistoryEntry(
                kind="checkpoint",
                status="corrupt",
                checkpoint_id=number,
                path=path,
                reason=str(metadata),
            )
            continue
        yield _completed(number, path, metadata, before)
        before = metadata


def savepoint_entry(savepoint: Savepoint, last_id: int = 0) -> HistoryEntry:
    """Describe a savepoint that was completed."""
    return HistoryEntry(
        kind="savepoint",
        status="completed",
        epoch=savepoint.epoch,
        triggered_at_ms=savepoint.triggered_at_ms,
        duration_ms=savepoint.completed_at_ms - savepoint.triggered_at_ms,
        size_bytes=savepoint.size_bytes,
        files=savepoint.files,
        path=savepoint.path,
        format=savepoint.format,
        last_id=last_id,
    )


def aborted_entry(aborted: AbortedCheckpoint, last_id: int = 0) -> HistoryEntry:
    """Describe a checkpoint or savepoint that was given up."""
    return HistoryEntry(
        kind=aborted.kind,
        status="aborted",
        checkpoint_id=aborted.checkpoint_id,
        epoch=aborted.epoch,
        triggered_at_ms=aborted.triggered_at_ms,
        duration_ms=aborted.duration_ms,
        reason=f"{aborted.reason.value}: {aborted.message}"[:_MAX_REASON],
        last_id=last_id,
    )


def _completed(
    checkpoint_id: int, path: str, metadata: CheckpointMetadata, before: CheckpointMetadata | None
) -> HistoryEntry:
    sizes = sizes_of(metadata, before)
    return HistoryEntry(
        kind="checkpoint",
        status="completed",
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
