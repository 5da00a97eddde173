"""What became of a checkpoint or savepoint, as users are told."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.formats.metadata import CheckpointMetadata


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint that is durable; `path` is what ``restoreFrom`` takes."""

    checkpoint_id: int
    path: str
    epoch: int
    triggered_at_ms: int
    duration_ms: int
    size_bytes: int

    @classmethod
    def of(cls, checkpoint_id: int, path: str, metadata: CheckpointMetadata) -> CompletedCheckpoint:
        """Describe a checkpoint by its metadata."""
        return cls(
            checkpoint_id=checkpoint_id,
            path=path,
            epoch=metadata.epoch,
            triggered_at_ms=metadata.triggered_at_ms,
            duration_ms=metadata.completed_at_ms - metadata.triggered_at_ms,
            size_bytes=metadata.size_bytes,
        )


@dataclass(frozen=True, slots=True)
class AbortedCheckpoint:
    """A checkpoint or savepoint that was given up, and why.

    `kind` is ``checkpoint`` or ``savepoint``; a savepoint has no id.
    """

    kind: str
    checkpoint_id: int | None
    epoch: int | None
    triggered_at_ms: int
    duration_ms: int
    reason: AbortReason
    message: str
