"""Records that users see: completed and aborted checkpoints, savepoints and their formats."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.formats.handle import CANONICAL_FORMAT
from pyspark_ckpt.formats.metadata import CheckpointMetadata


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint that is durable.

    Parameters
    ----------
    checkpoint_id : int
        Its number in the query.
    path : str
        Its ``chk-...`` directory, which ``restoreFrom`` takes.
    epoch : int
        The epoch whose end it holds.
    triggered_at_ms : int
        When it was triggered, in milliseconds since 1970.
    duration_ms : int
        How long it took, in milliseconds.
    size_bytes : int
        Bytes of all files that it refers to.

    Examples
    --------
    >>> checkpoint = query.triggerCheckpoint()
    >>> checkpoint.path.endswith(f"chk-{checkpoint.checkpoint_id}")
    True
    """

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
    """A checkpoint or savepoint that was aborted, and why.

    Parameters
    ----------
    kind : str
        ``checkpoint`` or ``savepoint``.
    checkpoint_id : int or None
        Its number in the query; ``None`` for a savepoint.
    epoch : int or None
        The epoch whose end it would have held, if known.
    triggered_at_ms : int
        When it was triggered, in milliseconds since 1970.
    duration_ms : int
        How long it took, in milliseconds.
    reason : AbortReason
        Why it was aborted.
    message : str
        The text of the error.

    Examples
    --------
    >>> aborted = ckpt.AbortedCheckpoint(
    ...     "checkpoint", 3, 7, 0, 600_000, ckpt.AbortReason.EXPIRED, "the jobs took too long"
    ... )
    >>> aborted.reason.counts
    True
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
            If there is no format of that name.
        """
        try:
            return cls(str(name).upper())
        except ValueError:
            raise ConfigurationError(
                f"format {name!r} of a savepoint: allowed are CANONICAL and NATIVE"
            ) from None


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A completed savepoint.

    Parameters
    ----------
    path : str
        Its ``savepoint-...`` directory, which ``restoreFrom`` takes.
    epoch : int
        The epoch whose end it holds.
    query_id : str
        The id of the query.
    triggered_at_ms : int
        When it was triggered, in milliseconds since 1970.
    completed_at_ms : int
        When it was complete, in milliseconds since 1970.
    size_bytes : int
        Bytes of all files.
    files : int
        Number of files.
    format : str
        ``CANONICAL`` or ``NATIVE``.

    Examples
    --------
    >>> savepoint.epoch, savepoint.format
    (0, 'CANONICAL')
    """

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
