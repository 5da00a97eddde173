"""The slowest epoch of a query: where its time went, and which checkpoint is from before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pyspark_ckpt.console.data.checkpoints import retained_checkpoints
from pyspark_ckpt.console.data.places import QueryPlace
from pyspark_ckpt.console.data.timeline import CheckpointRow, EpochRow, Timeline
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.history.run_record import SlowKeyRecord

_SLOW_TIMES = 2.0
"""An epoch is slow if it took so many times the median."""

_SAMPLED_EPOCHS = 32
"""Keys are recorded with the time that they took in about so many epochs before a checkpoint."""

_MOST_OF = 0.5


@dataclass(frozen=True, slots=True)
class SlowEpoch:
    """The slowest epoch that no run began with, and its longest phase.

    `subtask` took most time in that phase, `key` in the user's code; each is ``None`` if it is not
    known. `times` is how many times the median the epoch took.
    """

    row: EpochRow
    phase: str
    phase_ms: int
    times: float
    subtask: int | None
    key: str | None

    @property
    def is_slow(self) -> bool:
        """Whether it took much longer than other epochs."""
        return self.times >= _SLOW_TIMES


def slowest_epoch(place: QueryPlace, timeline: Timeline) -> SlowEpoch | None:
    """Return the slowest epoch that no run began with, ``None`` if there is no such epoch.

    Reads one checkpoint, if a retained one is of that epoch.

    Parameters
    ----------
    place
        The query.
    timeline
        What happened to it.
    """
    rows = [row for row in timeline.epochs if not row.is_first]
    if not rows:
        return None
    slowest = max(rows, key=lambda row: row.record.duration_ms)
    phase = max(slowest.phases_ms, key=lambda name: slowest.phases_ms[name])
    usual_ms = median(row.record.duration_ms for row in rows)
    subtask = slowest_subtask(_handles_of(place, timeline, slowest.record.epoch), phase)
    key = _slow_key(timeline, slowest, subtask) if phase == "user code" else None
    return SlowEpoch(
        row=slowest,
        phase=phase,
        phase_ms=slowest.phases_ms[phase],
        times=slowest.record.duration_ms / max(usual_ms, 1),
        subtask=key.subtask if subtask is None and key is not None else subtask,
        key=None if key is None else key.key,
    )


def slowest_subtask(handles: Sequence[Handle], phase: str) -> int | None:
    """Return the subtask that took most time, ``None`` if the phase is not a subtask's.

    Parameters
    ----------
    handles
        What the subtasks stored in the epoch.
    phase
        The phase.
    """
    times: list[tuple[int, int]] = []
    for handle in handles:
        if handle.metrics is None:
            continue
        metrics = handle.metrics
        of_phase = {
            "open state": metrics.open_ms,
            "read": metrics.process_ms,
            "user code": metrics.process_ms,
            "write": metrics.process_ms,
            "barrier": metrics.barrier_ms,
        }
        if phase in of_phase:
            times.append((of_phase[phase], handle.subtask))
    return max(times)[1] if times else None


def _handles_of(place: QueryPlace, timeline: Timeline, epoch: int) -> list[Handle]:
    """Return the handles of an epoch, if the checkpoint right after it is retained."""
    for row in timeline.retained:
        if row.record is not None and row.record.epoch == epoch:
            with retained_checkpoints(place.checkpoints) as found:
                metadata = found.read(row.number)
            if isinstance(metadata, CheckpointMetadata):
                return [each for each in metadata.handles() if each.epoch == epoch]
    return []


def _slow_key(timeline: Timeline, slowest: EpochRow, subtask: int | None) -> SlowKeyRecord | None:
    """Return the key that took most of an epoch's time, as far as samples tell."""
    epoch, user_ms = slowest.record.epoch, slowest.phases_ms["user code"]
    for each in timeline.recorded:
        if not epoch <= each.epoch < epoch + _SAMPLED_EPOCHS:
            continue
        keys = [
            key
            for operator in each.operators
            for key in operator.slow_keys
            if key.ms >= _MOST_OF * user_ms and subtask in (None, key.subtask)
        ]
        if keys:
            return max(keys, key=lambda key: key.ms)
    return None


@dataclass(frozen=True, slots=True)
class WayBack:
    """A retained checkpoint to go back to: the newest one before something happened."""

    number: int
    before: str


def ways_back(timeline: Timeline, slowest: SlowEpoch | None) -> tuple[WayBack, ...]:
    """Return the newest retained checkpoints before the last failure and before a slow epoch.

    Parameters
    ----------
    timeline
        What happened to the query.
    slowest
        Its slowest epoch.
    """
    found = []
    if timeline.before_failure is not None:
        found.append(WayBack(timeline.before_failure, "the last failure"))
    if slowest is not None and slowest.is_slow:
        epoch = slowest.row.record.epoch
        before = checkpoint_before(timeline.retained, epoch)
        if before is not None:
            found.append(WayBack(before, f"epoch {epoch}, the slowest"))
    return tuple(found)


def checkpoint_before(retained: Sequence[CheckpointRow], epoch: int) -> int | None:
    """Return the newest retained checkpoint without an epoch, ``None`` if all have it.

    Parameters
    ----------
    retained
        The retained checkpoints, newest first.
    epoch
        The epoch.
    """
    return next(
        (row.number for row in retained if row.record is not None and row.record.epoch < epoch),
        None,
    )


def checkpoint_with(retained: Sequence[CheckpointRow], epoch: int) -> int | None:
    """Return the oldest retained checkpoint that has an epoch, ``None`` if there is none.

    Parameters
    ----------
    retained
        The retained checkpoints, newest first.
    epoch
        The epoch.
    """
    found = None
    for row in retained:
        if row.record is not None and row.record.epoch < epoch:
            break
        found = row.number if row.record is not None else found
    return found
