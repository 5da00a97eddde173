"""The life of a query's checkpoints as a state machine: no I/O, and a clock that is given.

::

    COLLECTING -> PUBLISHING -> COMPLETED -> SUBSUMED
        |             |
     ABORTED      UNCERTAIN -> SUBSUMED

The protocol is Flink's. A checkpoint is triggered, every subtask acknowledges it, its ``_metadata``
is published, and it is complete. The handle that Spark committed for a subtask is the subtask's
acknowledgement, so all of them come at once, when the handles are read back.

A checkpoint that is aborted while it is published may be on disk all the same. It is uncertain: it
is never deleted as a failure, and the next start reads it and decides.

At most one checkpoint is under way, because an epoch is over before its checkpoint begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.settings import Settings


@dataclass(frozen=True, order=True, slots=True)
class Subtask:
    """One subtask of a query."""

    uid: str
    number: int


class CheckpointState(Enum):
    """Where a checkpoint is in its life."""

    COLLECTING = auto()
    PUBLISHING = auto()
    COMPLETED = auto()
    ABORTED = auto()
    UNCERTAIN = auto()
    SUBSUMED = auto()


class CheckpointEvent(Enum):
    """What can happen to a checkpoint."""

    PUBLISH = auto()
    PUBLISHED = auto()
    ABORT = auto()
    SUBSUME = auto()


_State, _Event = CheckpointState, CheckpointEvent

TRANSITIONS: Mapping[tuple[CheckpointState, CheckpointEvent], CheckpointState] = {
    (_State.COLLECTING, _Event.PUBLISH): _State.PUBLISHING,
    (_State.COLLECTING, _Event.ABORT): _State.ABORTED,
    (_State.PUBLISHING, _Event.PUBLISHED): _State.COMPLETED,
    (_State.PUBLISHING, _Event.ABORT): _State.UNCERTAIN,
    (_State.COMPLETED, _Event.SUBSUME): _State.SUBSUMED,
    (_State.UNCERTAIN, _Event.SUBSUME): _State.SUBSUMED,
}
"""The state after each event. An event that is not in the table changes nothing."""

_UNDER_WAY = (_State.COLLECTING, _State.PUBLISHING)
_ENDED = (_State.ABORTED, _State.SUBSUMED)


class Refusal(Enum):
    """Why no checkpoint was triggered."""

    TOO_EARLY = auto()
    NO_COMMITTED_EPOCH = auto()
    NO_NEW_EPOCH = auto()
    QUERY_ENDED = auto()


@dataclass(slots=True)
class _Checkpoint:
    epoch: int | None
    state: CheckpointState
    deadline_ms: int = 0
    missing: set[Subtask] = field(default_factory=set)


class CheckpointMachine:
    """All checkpoints of one query: the one under way, the retained and the uncertain ones.

    The machine is not thread-safe. Its user calls one method at a time.

    `clock` returns milliseconds that never go back, from any start. `last_id` is the highest id of
    any attempt so far, completed or not. `completed` maps the id of a retained checkpoint to its
    epoch, ``None`` if the checkpoint cannot be read or the query has lost the epoch.
    """

    def __init__(
        self,
        subtasks: Iterable[Subtask],
        settings: Settings,
        clock: Callable[[], int],
        last_id: int = 0,
        completed: Mapping[int, int | None] | None = None,
    ) -> None:
        self._subtasks = frozenset(subtasks)
        self._settings = settings
        self._clock = clock
        self._checkpoints = {
            checkpoint_id: _Checkpoint(epoch, CheckpointState.COMPLETED)
            for checkpoint_id, epoch in (completed or {}).items()
        }
        self._last_triggered_ms = clock()
        self._last_ended_ms: int | None = None
        self._is_shut_down = False
        self.last_id = max([last_id, *self._checkpoints])
        self.consecutive_failures = 0

    @property
    def tolerance_is_exceeded(self) -> bool:
        """Whether more checkpoints in a row have failed than the settings tolerate."""
        return self.consecutive_failures > self._settings.tolerable_failed_checkpoints

    def state_of(self, checkpoint_id: int) -> CheckpointState | None:
        """Return the state of a checkpoint, ``None`` once it is aborted or subsumed."""
        checkpoint = self._checkpoints.get(checkpoint_id)
        return None if checkpoint is None else checkpoint.state

    def ids(self, *states: CheckpointState) -> list[int]:
        """Return the ids of the checkpoints in these states, oldest first."""
        return sorted(n for n, found in self._checkpoints.items() if found.state in states)

    def pending(self) -> int | None:
        """Return the id of the checkpoint under way."""
        return next(iter(self.ids(*_UNDER_WAY)), None)

    def newest_completed(self) -> int | None:
        """Return the highest id that is completed."""
        return max(self.ids(CheckpointState.COMPLETED), default=None)

    def covers(self, epoch: int) -> bool:
        """Return whether the newest completed checkpoint has a committed epoch, or a later one."""
        newest = self.newest_completed()
        newest_epoch = None if newest is None else self._checkpoints[newest].epoch
        return newest_epoch is not None and epoch <= newest_epoch

    def retained_from(self) -> int:
        """Return the id below which checkpoints are not retained; 0 while there is room."""
        completed = self.ids(CheckpointState.COMPLETED)
        retained = completed[-self._settings.num_retained :]
        return retained[0] if len(retained) == self._settings.num_retained else 0

    def due_in_ms(self) -> int:
        """Return the time until the next periodic checkpoint, 0 if it is due."""
        due_ms = self._last_triggered_ms + self._settings.interval_ms
        if self._last_ended_ms is not None:
            due_ms = max(due_ms, self._last_ended_ms + self._settings.min_pause_ms)
        return max(due_ms - self._clock(), 0)

    def note_used_id(self, checkpoint_id: int) -> None:
        """Never give out this id or a lower one, because another driver has used it."""
        self.last_id = max(self.last_id, checkpoint_id)

    def trigger(self, epoch: int | None, *, periodic: bool) -> int | Refusal:
        """Begin a checkpoint; the one before must have ended.

        `epoch` is the newest committed epoch, ``None`` before the first. A periodic checkpoint
        waits for the interval and the pause.
        """
        assert self.pending() is None
        if self._is_shut_down:
            return Refusal.QUERY_ENDED
        if periodic:
            if self.due_in_ms() > 0:
                return Refusal.TOO_EARLY
            self._last_triggered_ms = self._clock()
        if epoch is None:
            return Refusal.NO_COMMITTED_EPOCH
        if self.covers(epoch):
            return Refusal.NO_NEW_EPOCH
        self.last_id += 1
        self._checkpoints[self.last_id] = _Checkpoint(
            epoch,
            CheckpointState.COLLECTING,
            self._clock() + self._settings.timeout_ms,
            set(self._subtasks),
        )
        return self.last_id

    def acknowledge(self, checkpoint_id: int, subtasks: Iterable[Subtask]) -> list[Subtask]:
        """Take the acknowledgements of some subtasks; return the subtasks that are missing."""
        checkpoint = self._checkpoints.get(checkpoint_id)
        if checkpoint is None:
            return []
        checkpoint.missing.difference_update(subtasks)
        return sorted(checkpoint.missing)

    def publish(self, checkpoint_id: int) -> bool:
        """Return whether a checkpoint's ``_metadata`` may be written now.

        It may if the checkpoint is under way and all its subtasks have acknowledged.
        """
        checkpoint = self._checkpoints.get(checkpoint_id)
        is_acknowledged = checkpoint is not None and not checkpoint.missing
        return is_acknowledged and self._change(checkpoint_id, CheckpointEvent.PUBLISH)

    def published(self, checkpoint_id: int) -> bool:
        """Complete a checkpoint whose ``_metadata`` is durable, and subsume older ones.

        It returns false if the checkpoint was aborted before.
        """
        if not self._change(checkpoint_id, CheckpointEvent.PUBLISHED):
            return False
        self.consecutive_failures = 0
        self._last_ended_ms = self._clock()
        oldest = self.retained_from()
        for older in self.ids(CheckpointState.COMPLETED, CheckpointState.UNCERTAIN):
            if older < oldest:
                self._change(older, CheckpointEvent.SUBSUME)
        return True

    def abort(self, checkpoint_id: int, reason: AbortReason) -> bool:
        """Abort a checkpoint that is under way; return whether it was.

        A checkpoint that was being published is uncertain from now on.
        """
        if not self._change(checkpoint_id, CheckpointEvent.ABORT):
            return False
        self._last_ended_ms = self._clock()
        self.consecutive_failures += reason.counts
        return True

    def note_failure(self) -> None:
        """Count a checkpoint that could not even be triggered."""
        self.consecutive_failures += 1

    def expires_in_ms(self) -> int | None:
        """Return the time that is left to the checkpoint under way, ``None`` if there is none."""
        pending = self.pending()
        if pending is None:
            return None
        return max(self._checkpoints[pending].deadline_ms - self._clock(), 0)

    def expire(self) -> bool:
        """Abort the checkpoint under way if its time is over; return whether it was."""
        pending = self.pending()
        is_late = self.expires_in_ms() == 0
        return pending is not None and is_late and self.abort(pending, AbortReason.EXPIRED)

    def shut_down(self) -> None:
        """Trigger no more checkpoints, and abort the one under way."""
        self._is_shut_down = True
        pending = self.pending()
        if pending is not None:
            self.abort(pending, AbortReason.QUERY_ENDED)

    def reopen(self) -> None:
        """Trigger checkpoints again after :meth:`shut_down`."""
        self._is_shut_down = False

    def _change(self, checkpoint_id: int, event: CheckpointEvent) -> bool:
        checkpoint = self._checkpoints.get(checkpoint_id)
        if checkpoint is None or (checkpoint.state, event) not in TRANSITIONS:
            return False
        checkpoint.state = TRANSITIONS[checkpoint.state, event]
        if checkpoint.state in _ENDED:
            del self._checkpoints[checkpoint_id]
        return True
