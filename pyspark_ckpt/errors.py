"""All errors of the library, grouped by what a handler would do about them.

CkptError
├── ConfigurationError (ValueError)          change a conf key or a writer option
├── PlanError (ValueError)                   change the query: uid, keys, columns, mode
│   ├── TimeModeError (PySparkRuntimeError, PySparkValueError)  it needs another timeMode
│   ├── ClockError (IllegalArgumentException)       a test moves a clock back
│   └── HarnessUseError (PySparkAssertionError)     a test names a state that is not there
├── NotBuiltYetError (NotImplementedError)   the feature is planned, not there yet
├── UnknownEpochError (RuntimeError)         run actions inside foreachBatch, on its DataFrame
├── CrashedError (RuntimeError)              a test had its harness crash: call again
├── StateError
│   ├── StateUseError (PlanError, PySparkRuntimeError)    a state that cannot be had, or is deleted
│   ├── IncompatibleStateError (ValueError)  stored state and processor do not fit
│   ├── InputRowsError (RuntimeError)        the library could not read an epoch's rows
│   ├── QuarantineError (RuntimeError)       correct the program, then release the keys
│   ├── StateValueError (PySparkRuntimeError, TypeError)  a value does not fit its schema
│   └── ProcessorError (RuntimeError)        the user's processor raised
├── CheckpointError
│   ├── CheckpointNotFoundError (FileNotFoundError)  no checkpoint or savepoint at a path
│   ├── CorruptFileError (OSError)                   a file is missing, cut or changed
│   ├── UnsafePathError (ValueError)                 a stored path leaves its root
│   ├── CheckpointAbortedError (RuntimeError)        this checkpoint or savepoint was not made
│   ├── FencedError (RuntimeError)                   another driver has taken over the query
│   ├── FailedCheckpointsError (RuntimeError)        too many were not made: the query was stopped
│   │   └── SessionEndedError                        the query ended with its Spark session
│   └── RestoreError (ValueError)                    the query cannot start from this checkpoint

Every message says what happened, where (query, operator uid, subtask, path) and what to do next.
What PySpark's own state API and ``TwsTester`` raise as an error of PySpark is one here too, so an
``except PySparkRuntimeError`` in a processor still holds.
"""

from __future__ import annotations

from pyspark.errors import (
    IllegalArgumentException,
    PySparkAssertionError,
    PySparkException,
    PySparkRuntimeError,
    PySparkValueError,
)

__all__ = [
    "CheckpointAbortedError",
    "CheckpointError",
    "CheckpointNotFoundError",
    "CkptError",
    "ClockError",
    "ConfigurationError",
    "CorruptFileError",
    "CrashedError",
    "FailedCheckpointsError",
    "FencedError",
    "HarnessUseError",
    "IncompatibleStateError",
    "InputRowsError",
    "NotBuiltYetError",
    "PlanError",
    "ProcessorError",
    "QuarantineError",
    "RestoreError",
    "SessionEndedError",
    "StateError",
    "StateUseError",
    "StateValueError",
    "TimeModeError",
    "UnknownEpochError",
    "UnsafePathError",
]


def _init_as_pyspark(error: PySparkException, message: str, condition: str | None = None) -> None:
    """Fill in an error that is one of PySpark's too, whose constructor the builtin would hide."""
    PySparkException.__init__(error, message, errorClass=condition)


class CkptError(Exception):
    """The root of all errors that pyspark_ckpt raises."""

    _has_place = False

    def add_place(self, place: str) -> None:
        """Add to the message where in the user's code it happened; the first place counts."""
        if self._has_place:
            return
        self._has_place = True
        self.append(place)

    def append(self, text: str) -> None:
        """Append text to the message."""
        if isinstance(self, PySparkException):  # which shows its own copy of the message
            vars(self)["_message"] += text
        else:
            self.args = (f"{self}{text}", *self.args[1:])


class ConfigurationError(CkptError, ValueError):
    """A setting is unknown or has a value that is not allowed."""


class PlanError(CkptError, ValueError):
    """The query is built in a way that cannot be checkpointed."""


class TimeModeError(PlanError, PySparkRuntimeError, PySparkValueError):
    """A timer or a clock is used that the operator's ``timeMode`` does not have."""

    __init__ = _init_as_pyspark


class ClockError(PlanError, IllegalArgumentException):
    """A test moves a clock of its harness back, or not at all."""

    __init__ = _init_as_pyspark


class HarnessUseError(PlanError, PySparkAssertionError):
    """A test asks its harness for what is not there, such as a state that ``init`` does not."""

    __init__ = _init_as_pyspark


class NotBuiltYetError(CkptError, NotImplementedError):
    """A feature that this version does not have; the message names it."""


class UnknownEpochError(CkptError, RuntimeError):
    """A task or a call does not know the epoch of the query that it belongs to."""


class CrashedError(CkptError, RuntimeError):
    """A test harness crashed where a test asked for it; nothing of the epoch counts."""


class StateError(CkptError):
    """The root of errors about a subtask's state."""


class StateUseError(StateError, PlanError, PySparkRuntimeError):
    """A processor asks its handle for what it cannot have, or uses a state that it deleted."""

    __init__ = _init_as_pyspark


class IncompatibleStateError(StateError, ValueError):
    """The stored state and the query's operator do not fit together."""


class StateValueError(StateError, PySparkRuntimeError, TypeError):
    """A value does not fit the schema of the state, key or output column.

    `row` is the place of an output row among those that left with it.
    """

    __init__ = _init_as_pyspark
    row: int | None = None


class InputRowsError(StateError, RuntimeError):
    """The library could not read an epoch's rows; the processor had no part in it."""


class QuarantineError(StateError, RuntimeError):
    """The keys that are quarantined have too many rows, or nothing would release them."""


class ProcessorError(StateError, RuntimeError):
    """The user's processor raised; the message names operator, subtask, key and line."""


class CheckpointError(CkptError):
    """The root of errors about checkpoints and savepoints."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """There is no complete checkpoint or savepoint at the path."""


class CorruptFileError(CheckpointError, OSError):
    """A file of a checkpoint, savepoint, handle or location is missing, cut short or changed."""


class UnsafePathError(CheckpointError, ValueError):
    """A path read from a file leaves the directory that it must stay in."""


class CheckpointAbortedError(CheckpointError, RuntimeError):
    """A checkpoint or savepoint was given up; those before it are untouched.

    `reason` is one of :class:`pyspark_ckpt.results.AbortReason`.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class FencedError(CheckpointError, RuntimeError):
    """Another driver has taken over a query or its location; this one has to stop."""


class FailedCheckpointsError(CheckpointError, RuntimeError):
    """A query was stopped because too many checkpoints in a row failed."""


class SessionEndedError(FailedCheckpointsError):
    """The query has ended with its Spark session: ``spark.stop()``, its JVM or its server.

    `epoch` is the newest committed epoch if it had no checkpoint yet, else ``None``.
    """

    epoch: int | None = None


class RestoreError(CheckpointError, ValueError):
    """A query cannot start from the checkpoint or at the location it was given."""
