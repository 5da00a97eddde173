"""The slowest epoch of a query, and which checkpoint to go back to.

Only a checkpoint whose ``_metadata`` can be read is named. The data files are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from pyspark_ckpt.console.data.checkpoints import RetainedCheckpoints, retained_checkpoints
from pyspark_ckpt.console.data.places import QueryPlace
from pyspark_ckpt.console.data.timeline import CheckpointRow, EpochRow, Timeline
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.history.run_log import SlowKeyRecord

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
    """Return the subtask that took most time, ``None`` if the phase is not a subtask's."""
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


@dataclass(frozen=True, slots=True)
class WaysBack:
    """The checkpoints to go back to.

    `newest` is ``None`` if no checkpoint can be read. `damaged` has what is wrong with those that
    were passed over.
    """

    newest: int | None
    earlier: tuple[WayBack, ...]
    damaged: Mapping[int, str]


def ways_back(place: QueryPlace, timeline: Timeline, slowest: SlowEpoch | None) -> WaysBack:
    """Return the newest checkpoint, and those before the last failure and before a slow epoch.

    Reads each of them, and those that are passed over.

    `timeline` must be one with the newest checkpoints.
    """
    earlier = []
    with retained_checkpoints(place.checkpoints) as retained:
        reading = _Reading(retained)
        newest = reading.first_whole(row.number for row in timeline.retained)
        number = reading.first_whole(_before_failure(timeline))
        if number is not None:
            earlier.append(WayBack(number, "the last failure"))
        if slowest is not None and slowest.is_slow:
            epoch = slowest.row.record.epoch
            number = reading.first_whole(checkpoints_before(timeline.retained, epoch))
            if number is not None:
                earlier.append(WayBack(number, f"epoch {epoch}, the slowest"))
    return WaysBack(newest, tuple(earlier), reading.damaged)


def checkpoints_before(retained: Sequence[CheckpointRow], epoch: int) -> Iterator[int]:
    """Return the retained checkpoints without an epoch, newest first.

    `retained` must be ordered newest first.
    """
    return (row.number for row in retained if row.record is not None and row.record.epoch < epoch)


def _before_failure(timeline: Timeline) -> Iterator[int]:
    """Return the retained checkpoints from before the last failure, newest first."""
    failed_ms = max((each.at_ms or 0 for each in timeline.failures), default=0)
    return (
        row.number
        for row in timeline.retained
        if row.record is not None and row.record.triggered_at_ms < failed_ms
    )


class _Reading:
    """Reads checkpoints to find out which ones can be read; each once.

    The timeline has most of them from records that are written when a checkpoint completes.
    """

    def __init__(self, retained: RetainedCheckpoints) -> None:
        self._retained = retained
        self._whole: set[int] = set()
        self.damaged: dict[int, str] = {}

    def first_whole(self, numbers: Iterable[int]) -> int | None:
        for number in numbers:
            if number not in self._whole and number not in self.damaged:
                read = self._retained.read(number)
                if isinstance(read, CkptError):
                    self.damaged[number] = str(read)
                else:
                    self._whole.add(number)
            if number in self._whole:
                return number
        return None


def checkpoint_with(retained: Sequence[CheckpointRow], epoch: int) -> int | None:
    """Return the oldest retained checkpoint that has an epoch, ``None`` if there is none.

    `retained` must be ordered newest first.
    """
    found = None
    for row in retained:
        if row.record is not None and row.record.epoch < epoch:
            break
        found = row.number if row.record is not None else found
    return found
