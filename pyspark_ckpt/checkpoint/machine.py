"""Acknowledgements: what each subtask contributes to a checkpoint.

No message is sent for them: they are made of the handles that are read back from Spark.

The life of a query's checkpoints as a state machine: no I/O, and a clock that is given.

::

    COLLECTING -> PUBLISHING -> COMPLETED -> SUBSUMED
        |             |
     ABORTED      UNCERTAIN -> SUBSUMED

While a checkpoint collects, every subtask acknowledges with its handle. While it is published its
``_metadata`` is being written; what is given up then may be on disk all the same, so it is
uncertain, is never deleted as a failure, and the next start decides by reading it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.settings import Settings


class Reception(Enum):
    """What became of an acknowledgement; only an accepted one has an effect."""

    ACCEPTED = auto()
    REPEATED = auto()
    LATE = auto()
    UNKNOWN = auto()
    FOREIGN = auto()


@dataclass(frozen=True, order=True, slots=True)
class Subtask:
    """One subtask of a query."""

    uid: str
    number: int


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A subtask's part of a checkpoint.

    `files` are the paths of what its handle refers to; a subtask that never had a row has no
    handle and no files.
    """

    checkpoint_id: int
    query_id: str
    subtask: Subtask
    files: frozenset[str] = frozenset()


def acknowledgements_of(checkpoint_id: int, metadata: CheckpointMetadata) -> list[Acknowledgement]:
    """Return the acknowledgements that a gathered checkpoint is made of, one for each subtask."""
    acknowledgements = []
    for operator in metadata.operators:
        files = {
            handle.subtask: frozenset(reference.path for reference in handle.files())
            for handle in operator.handles
        }
        acknowledgements += [
            Acknowledgement(
                checkpoint_id,
                metadata.query_id,
                Subtask(operator.uid, number),
                files.get(number, frozenset()),
            )
            for number in range(operator.parallelism)
        ]
    return acknowledgements


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
"""What becomes of a checkpoint; an event that is not here changes nothing."""


class Refusal(Enum):
    """Why no checkpoint was begun."""

    TOO_EARLY = auto()
    NO_COMMITTED_EPOCH = auto()
    NO_NEW_EPOCH = auto()
    TOO_MANY_PENDING = auto()
    QUERY_ENDED = auto()


@dataclass(slots=True)
class _Checkpoint:
    epoch: int | None
    state: CheckpointState
    deadline_ms: int = 0
    missing: set[Subtask] = field(default_factory=set)
    acknowledged: dict[Subtask, frozenset[str]] = field(default_factory=dict)


class CheckpointMachine:
    """All checkpoints of one query that are under way, retained or uncertain.

    Not thread-safe; its user calls one method at a time.

    Parameters
    ----------
    query_id
        The query; acknowledgements of another one are foreign.
    settings
        Interval, pause, timeout, concurrency, tolerance and retention.
    clock
        Milliseconds that never go back; from where does not matter.
    last_id
        The highest id that any attempt has had, completed or not.
    completed
        The epochs of the retained checkpoints by id, ``None`` for one that cannot be read.
    """

    def __init__(
        self,
        query_id: str,
        settings: Settings,
        clock: Callable[[], int],
        last_id: int = 0,
        completed: Mapping[int, int | None] | None = None,
    ) -> None:
        self._query_id = query_id
        self._settings = settings
        self._clock = clock
        self._checkpoints = {
            checkpoint_id: _Checkpoint(epoch, CheckpointState.COMPLETED)
            for checkpoint_id, epoch in (completed or {}).items()
        }
        self._last_triggered_ms = clock()
        self._last_ended_ms: int | None = None
        self._released: set[str] = set()
        self._is_shut_down = False
        self.last_id = max([last_id, *self._checkpoints])
        self.consecutive_failures = 0

    @property
    def tolerance_is_exceeded(self) -> bool:
        """Whether more checkpoints in a row have failed than may."""
        return self.consecutive_failures > self._settings.tolerable_failed_checkpoints

    def state_of(self, checkpoint_id: int) -> CheckpointState | None:
        """Return where a checkpoint is, ``None`` once it is aborted or subsumed."""
        checkpoint = self._checkpoints.get(checkpoint_id)
        return None if checkpoint is None else checkpoint.state

    def ids(self, *states: CheckpointState) -> list[int]:
        """Return the ids of the checkpoints in these states, oldest first."""
        return sorted(n for n, found in self._checkpoints.items() if found.state in states)

    def pending(self) -> list[int]:
        """Return the ids of the checkpoints under way, oldest first."""
        return self.ids(CheckpointState.COLLECTING, CheckpointState.PUBLISHING)

    def newest_completed(self) -> int | None:
        """Return the highest id that is completed."""
        return max(self.ids(CheckpointState.COMPLETED), default=None)

    def retained_from(self) -> int:
        """Return the id below which checkpoints are beyond retention; 0 while there is room."""
        completed = self.ids(CheckpointState.COMPLETED)
        retained = completed[-self._settings.num_retained :]
        return retained[0] if len(retained) == self._settings.num_retained else 0

    def due_in_ms(self) -> int:
        """Return how long it is until the next periodic checkpoint, 0 if it is due."""
        due_ms = self._last_triggered_ms + self._settings.interval_ms
        if self._last_ended_ms is not None:
            due_ms = max(due_ms, self._last_ended_ms + self._settings.min_pause_ms)
        return max(due_ms - self._clock(), 0)

    def note_used_id(self, checkpoint_id: int) -> None:
        """Never give out this id or one below it, since someone has used it."""
        self.last_id = max(self.last_id, checkpoint_id)

    def trigger(
        self, epoch: int | None, subtasks: Iterable[Subtask], *, periodic: bool
    ) -> int | Refusal:
        """Begin a checkpoint of a committed epoch; return its id, or why there is none.

        Only a periodic one waits for the interval and the pause.
        """
        if self._is_shut_down:
            return Refusal.QUERY_ENDED
        if len(self.pending()) >= self._settings.max_concurrent_checkpoints:
            return Refusal.TOO_MANY_PENDING
        if periodic:
            if self.due_in_ms() > 0:
                return Refusal.TOO_EARLY
            self._last_triggered_ms = self._clock()
        if epoch is None:
            return Refusal.NO_COMMITTED_EPOCH
        newest = self.newest_completed()
        newest_epoch = None if newest is None else self._checkpoints[newest].epoch
        if newest_epoch is not None and epoch <= newest_epoch:
            return Refusal.NO_NEW_EPOCH
        self.last_id += 1
        self._checkpoints[self.last_id] = _Checkpoint(
            epoch,
            CheckpointState.COLLECTING,
            self._clock() + self._settings.timeout_ms,
            set(subtasks),
        )
        return self.last_id

    def acknowledge(self, acknowledgement: Acknowledgement) -> Reception:
        """Take a subtask's acknowledgement.

        What a late or unknown one refers to is released; what belongs to another query is not
        touched.
        """
        reception = self._reception(acknowledgement)
        if reception is Reception.ACCEPTED:
            checkpoint = self._checkpoints[acknowledgement.checkpoint_id]
            checkpoint.missing.remove(acknowledgement.subtask)
            checkpoint.acknowledged[acknowledgement.subtask] = acknowledgement.files
        elif reception in (Reception.LATE, Reception.UNKNOWN):
            self._released |= acknowledgement.files
        return reception

    def note_failure(self) -> None:
        """Count a checkpoint that could not even be begun."""
        self.consecutive_failures += 1

    def missing(self, checkpoint_id: int) -> list[Subtask]:
        """Return which subtasks have yet to acknowledge a checkpoint."""
        checkpoint = self._checkpoints.get(checkpoint_id)
        return [] if checkpoint is None else sorted(checkpoint.missing)

    def publish(self, checkpoint_id: int, files: Collection[str] = ()) -> bool:
        """Tell whether a checkpoint's ``_metadata`` may be written now.

        Parameters
        ----------
        checkpoint_id
            The checkpoint; it must be under way, and all its subtasks must have acknowledged.
        files
            What it refers to besides its handles; released if it may not be written.
        """
        if not self.missing(checkpoint_id) and self._change(checkpoint_id, CheckpointEvent.PUBLISH):
            return True
        self._released.update(files)
        return False

    def published(self, checkpoint_id: int) -> list[int] | None:
        """Complete a checkpoint whose ``_metadata`` is durable.

        Returns
        -------
        list of int or None
            The ids that it subsumes, oldest first, whose files may go; ``None`` if the checkpoint
            was given up before.
        """
        if not self._change(checkpoint_id, CheckpointEvent.PUBLISHED):
            return None
        self.consecutive_failures = 0
        self._last_ended_ms = self._clock()
        for other in self.pending():
            if other < checkpoint_id:
                self.abort(other, AbortReason.SUBSUMED)
        return self._subsume_older()

    def abort(self, checkpoint_id: int, reason: AbortReason) -> bool:
        """Give up a checkpoint that is under way; return whether it was.

        One that was being published is uncertain from now on.
        """
        checkpoint = self._checkpoints.get(checkpoint_id)
        if checkpoint is None or not self._change(checkpoint_id, CheckpointEvent.ABORT):
            return False
        self._last_ended_ms = self._clock()
        self.consecutive_failures += reason.counts
        if checkpoint.state is CheckpointState.ABORTED:
            self._released.update(*checkpoint.acknowledged.values())
            del self._checkpoints[checkpoint_id]
        return True

    def expires_in_ms(self, checkpoint_id: int) -> int:
        """Return how long a checkpoint may still take, 0 if it is past its time or not there."""
        checkpoint = self._checkpoints.get(checkpoint_id)
        return 0 if checkpoint is None else max(checkpoint.deadline_ms - self._clock(), 0)

    def expire(self) -> list[int]:
        """Give up all checkpoints that are past their time; return their ids."""
        now_ms = self._clock()
        late = [n for n in self.pending() if now_ms >= self._checkpoints[n].deadline_ms]
        return [n for n in late if self.abort(n, AbortReason.EXPIRED)]

    def shut_down(self) -> list[int]:
        """Begin no more checkpoints and give up those under way; return their ids."""
        self._is_shut_down = True
        return [n for n in self.pending() if self.abort(n, AbortReason.QUERY_ENDED)]

    def take_released(self) -> frozenset[str]:
        """Return the files that ignored acknowledgements referred to, once.

        Another checkpoint may need them: they are to be checked before they are deleted.
        """
        released = frozenset(self._released)
        self._released.clear()
        return released

    def _reception(self, acknowledgement: Acknowledgement) -> Reception:
        if acknowledgement.query_id != self._query_id:
            return Reception.FOREIGN
        if acknowledgement.checkpoint_id > self.last_id:
            return Reception.UNKNOWN
        checkpoint = self._checkpoints.get(acknowledgement.checkpoint_id)
        if checkpoint is None:
            return Reception.LATE
        if checkpoint.acknowledged.get(acknowledgement.subtask) == acknowledgement.files:
            return Reception.REPEATED
        if checkpoint.state is not CheckpointState.COLLECTING:
            return Reception.LATE
        if acknowledgement.subtask not in checkpoint.missing:
            return Reception.UNKNOWN
        return Reception.ACCEPTED

    def _subsume_older(self) -> list[int]:
        """Subsume what is beyond retention, uncertain ones too."""
        oldest = self.retained_from()
        subsumed = [
            n
            for n in self.ids(CheckpointState.COMPLETED, CheckpointState.UNCERTAIN)
            if n < oldest and self._change(n, CheckpointEvent.SUBSUME)
        ]
        for checkpoint_id in subsumed:
            del self._checkpoints[checkpoint_id]
        return subsumed

    def _change(self, checkpoint_id: int, event: CheckpointEvent) -> bool:
        checkpoint = self._checkpoints.get(checkpoint_id)
        if checkpoint is None or (checkpoint.state, event) not in TRANSITIONS:
            return False
        checkpoint.state = TRANSITIONS[checkpoint.state, event]
        return True
