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

    @property
    def meaning(self) -> str:
        """What happened, as a sentence."""
        return _TEXTS[self][0]

    @property
    def advice(self) -> str:
        """What to do about it, as a sentence or two."""
        return _TEXTS[self][1]


_HARMLESS = frozenset(
    {
        AbortReason.NO_COMMITTED_EPOCH,
        AbortReason.QUERY_ENDED,
        AbortReason.SUBSUMED,
        AbortReason.FENCED,
    }
)

_TEXTS = {
    AbortReason.NO_COMMITTED_EPOCH: (
        "The query has not committed an epoch yet, so it has no state.",
        "Wait until the source has data and the first epoch is over, then ask again.",
    ),
    AbortReason.QUERY_ENDED: (
        "The query stopped or failed before the checkpoint was complete.",
        (
            "If you did not stop it, look at `query.exception()`. Start the query again: its "
            "state is in its location."
        ),
    ),
    AbortReason.EXPIRED: (
        (
            "It took longer than `spark.ckpt.execution.checkpointing.timeout`. The message "
            "names the step that was slow."
        ),
        (
            "Look for a slow storage, or for tasks that wait for free cores. For a large state "
            "take `NATIVE` savepoints. Otherwise raise the timeout."
        ),
    ),
    AbortReason.NOT_ACKNOWLEDGED: (
        "The handle of a subtask was not found, or the step that reads the handles was refused.",
        (
            "The next checkpoint tries again. If it fails too, report it with the message and "
            "`pyspark-ckpt bundle`."
        ),
    ),
    AbortReason.CORRUPT_FILE: (
        "A file that the checkpoint needs is missing, cut short or changed. The message names it.",
        (
            "Find out who deletes or changes files below the checkpoints directory. Restore the "
            "newest checkpoint for which `pyspark-ckpt verify` passes."
        ),
    ),
    AbortReason.STORAGE_FAILED: (
        "The storage refused an operation, also after several tries.",
        (
            "Read the storage's own message: rights, credentials, a full disk, or a server that is "
            "down. The query continues in the meantime."
        ),
    ),
    AbortReason.SUBSUMED: (
        "A newer checkpoint was complete first.",
        "Nothing: the newer one takes its place.",
    ),
    AbortReason.FENCED: (
        "Another driver runs the query, and writes its checkpoints from now on.",
        "Find the other driver. Let one of them run, and end the other.",
    ),
    AbortReason.INTERRUPTED: (
        "The caller was interrupted, or its driver ended, before the savepoint was complete.",
        "Take it again. `pyspark-ckpt dispose` deletes what is left of a savepoint.",
    ),
    AbortReason.METADATA_UNCERTAIN: (
        "Writing `_metadata` failed, and nobody knows whether the file is there.",
        "Nothing is deleted. The next start reads the directory, and decides. See to the storage.",
    ),
    AbortReason.FAILED: (
        "Another error, which the message shows.",
        "Read the message. If it is not about your storage or your processor, report it.",
    ),
}


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
