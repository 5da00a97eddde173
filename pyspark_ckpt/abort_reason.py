"""The reasons for which a checkpoint or savepoint is aborted."""

from __future__ import annotations

from enum import Enum

from pyspark_ckpt.errors import CheckpointAbortedError, CorruptFileError, FencedError


class AbortReason(str, Enum):
    """A reason as ``CheckpointAbortedError.reason`` and ``checkpoints()`` show it."""

    NO_COMMITTED_EPOCH = "no committed epoch"
    QUERY_ENDED = "query ended"
    EXPIRED = "expired"
    NOT_ACKNOWLEDGED = "not acknowledged"
    CORRUPT_FILE = "corrupt file"
    STORAGE_FAILED = "storage failed"
    SUBSUMED = "subsumed"
    FENCED = "fenced"
    INTERRUPTED = "interrupted"
    METADATA_UNCERTAIN = "metadata uncertain"
    FAILED = "failed"

    @property
    def counts(self) -> bool:
        """Whether the reason counts towards ``tolerable-failed-checkpoints``."""
        return self not in _HARMLESS


_HARMLESS = frozenset(
    {
        AbortReason.NO_COMMITTED_EPOCH,
        AbortReason.QUERY_ENDED,
        AbortReason.SUBSUMED,
        AbortReason.FENCED,
    }
)


def reason_of(error: Exception) -> AbortReason:
    """Return the reason for which `error` aborts a checkpoint."""
    if isinstance(error, CheckpointAbortedError):
        return AbortReason(error.reason or AbortReason.NOT_ACKNOWLEDGED)
    if isinstance(error, FencedError):
        return AbortReason.FENCED
    if isinstance(error, CorruptFileError):
        return AbortReason.CORRUPT_FILE
    if isinstance(error, OSError):
        return AbortReason.STORAGE_FAILED
    return AbortReason.FAILED
