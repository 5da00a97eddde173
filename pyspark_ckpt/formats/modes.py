"""The modes and kinds that files store as words; the values of the enums are the stored words.

A reader refuses a word that it does not know, because the enum has no such value.
"""

from __future__ import annotations

from enum import Enum

from pyspark_ckpt.errors import ConfigurationError


class CheckpointKind(str, Enum):
    """Whether the query owns a stored epoch, or the user does."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"

    __str__ = str.__str__


class EntryKind(str, Enum):
    """What an entry of the history is about."""

    CHECKPOINT = CheckpointKind.CHECKPOINT.value
    SAVEPOINT = CheckpointKind.SAVEPOINT.value
    RESTART = "restart"
    """The query was restarted in place."""

    __str__ = str.__str__


class SavepointFormat(str, Enum):
    """Flink's two formats of a savepoint."""

    CANONICAL = "CANONICAL"
    NATIVE = "NATIVE"

    __str__ = str.__str__

    @classmethod
    def of(cls, name: str) -> SavepointFormat:
        """Return a format by its name."""
        try:
            return cls(str(name).upper())
        except ValueError:
            raise ConfigurationError(
                f"format {name!r} of a savepoint: allowed are CANONICAL and NATIVE"
            ) from None


class EntryStatus(str, Enum):
    """What became of a checkpoint or savepoint, as the history shows it."""

    BEGUN = "begun"
    """A savepoint is being taken, or its driver ended before it was complete."""

    COMPLETED = "completed"
    ABORTED = "aborted"
    CORRUPT = "corrupt"

    __str__ = str.__str__


class TimeMode(str, Enum):
    """PySpark's time modes of a stateful operator."""

    NONE = "None"
    PROCESSING_TIME = "ProcessingTime"
    EVENT_TIME = "EventTime"

    __str__ = str.__str__


class TtlTime(str, Enum):
    """Which time an entry ages in."""

    PROCESSING_TIME = "processing"
    EVENT_TIME = "event"

    __str__ = str.__str__


class TtlUpdate(str, Enum):
    """What makes an entry young again; Flink's ``StateTtlConfig.UpdateType``."""

    ON_CREATE_AND_WRITE = "OnCreateAndWrite"
    ON_READ_AND_WRITE = "OnReadAndWrite"

    __str__ = str.__str__


class TtlVisibility(str, Enum):
    """Whether an expired entry can still be read; Flink's ``StateVisibility``."""

    NEVER_RETURN_EXPIRED = "NeverReturnExpired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "ReturnExpiredIfNotCleanedUp"

    __str__ = str.__str__


class ListRedistribution(str, Enum):
    """What happens to an operator list when the parallelism changes; the values are stored."""

    SPLIT = "split"
    """The values of all subtasks are dealt out."""

    UNION = "union"
    """Every subtask gets all values."""

    __str__ = str.__str__
