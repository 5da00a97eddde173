"""What became of a checkpoint or savepoint, as users are told.

A completed savepoint, and the two formats that it can have.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.formats.handle import CANONICAL_FORMAT
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


class SavepointFormat(str, Enum):
    """Flink's two formats of a savepoint."""

    CANONICAL = "CANONICAL"
    NATIVE = "NATIVE"

    @classmethod
    def of(cls, name: str) -> SavepointFormat:
        """Return a format by its name.

        Raises
        ------
        ConfigurationError
            If there is none of that name.
        """
        try:
            return cls(str(name).upper())
        except ValueError:
            raise ConfigurationError(
                f"format {name!r} of a savepoint: allowed are CANONICAL and NATIVE"
            ) from None


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A completed savepoint; `path` is what ``restoreFrom`` takes."""

    path: str
    epoch: int
    query_id: str
    triggered_at_ms: int
    completed_at_ms: int
    size_bytes: int
    files: int
    format: str = SavepointFormat.CANONICAL.value


def format_of(metadata: CheckpointMetadata) -> SavepointFormat | None:
    """Return the format that a savepoint's files have, ``None`` for a checkpoint."""
    if not metadata.is_savepoint:
        return None
    handles = [handle for operator in metadata.operators for handle in operator.handles]
    is_canonical = all(
        handle.base is not None and handle.base.format == CANONICAL_FORMAT and not handle.segments
        for handle in handles
    )
    return SavepointFormat.CANONICAL if is_canonical else SavepointFormat.NATIVE
