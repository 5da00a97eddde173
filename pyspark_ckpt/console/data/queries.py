"""What the console knows of a query at a glance: its state, newest checkpoint, lag and origin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pyspark_ckpt.console.data.checkpoints import retained_checkpoints
from pyspark_ckpt.console.data.places import QueryPlace
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.metadata import CheckpointMetadata, Origin
from pyspark_ckpt.formats.origin import read_origin
from pyspark_ckpt.formats.rolled_back import RolledBack, read_rolled_back
from pyspark_ckpt.history.run_log import RecordedRuns
from pyspark_ckpt.history.run_record import RunEnded, RunNote, RunStarted
from pyspark_ckpt.spark.log import SparkLog

SILENCE_MS = 120_000
"""After this time without a sign of life a run is no longer called running: four notes."""

_NOTES_FOR_LAG = 1


class RunState(str, Enum):
    """What a query's last run is doing, as far as its directory says."""

    RUNNING = "running"
    SILENT = "no sign of life"
    STOPPED = "stopped"
    FAILED = "failed"
    UNKNOWN = "unknown"

    __str__ = str.__str__


@dataclass(frozen=True, slots=True)
class LastRun:
    """The last run of a query. `alive_at_ms` is its last sign of life."""

    state: RunState
    started: RunStarted | None
    ended: RunEnded | None
    alive_at_ms: int | None


@dataclass(frozen=True, slots=True)
class QuerySummary:
    """A query at a glance.

    `committed_epoch` is the newest epoch that Spark has committed. `lag_ms` is how far the
    watermark was behind the newest recorded epoch. `made_by` started the first recorded run.
    `problems` has what could not be read.
    """

    place: QueryPlace
    query_id: str | None
    name: str | None
    run: LastRun
    made_by: str | None
    checkpoint_id: int | None
    metadata: CheckpointMetadata | None
    retained: int
    committed_epoch: int | None
    lag_ms: int | None
    origin: Origin | None
    rolled_back: tuple[RolledBack, ...]
    problems: tuple[str, ...]

    @property
    def title(self) -> str:
        """The query's name, or its id, or its path."""
        return self.name or self.query_id or self.place.path

    @property
    def size_bytes(self) -> int | None:
        """Bytes of the state in the newest checkpoint."""
        return None if self.metadata is None else self.metadata.size_bytes

    @property
    def epochs_behind(self) -> int | None:
        """How many epochs are committed after the newest checkpoint."""
        if self.metadata is None or self.committed_epoch is None:
            return None
        return max(self.committed_epoch - self.metadata.epoch, 0)


@dataclass(frozen=True, slots=True)
class QueryIdentity:
    """The id and the name of a query at a place."""

    place: QueryPlace
    query_id: str
    name: str


def identity_of(place: QueryPlace) -> QueryIdentity | None:
    """Return the id and name of a query from its newest start, ``None`` if none is recorded.

    Parameters
    ----------
    place
        The query.
    """
    for each in reversed(RecordedRuns(place.checkpoints).starts_and_ends(2)):
        if isinstance(each, RunStarted):
            return QueryIdentity(place, each.query_id, each.query_name or each.query_id)
    return None


def _end_of(records: Sequence[RunStarted | RunEnded], started: RunStarted) -> RunEnded | None:
    """Return the newest end of a run: one that ended may fail behind it, at a restart."""
    ends = [
        each for each in records if isinstance(each, RunEnded) and each.run_id == started.run_id
    ]
    return ends[-1] if ends else None


def last_run(
    records: Sequence[RunStarted | RunEnded],
    note: RunNote | None,
    now_ms: int,
    checkpointed_at_ms: int | None = None,
) -> LastRun:
    """Return what the records say of a query's last run.

    Parameters
    ----------
    records
        Starts and ends, oldest first.
    note
        The newest note.
    now_ms
        The time now.
    checkpointed_at_ms
        When the newest checkpoint was complete.
    """
    starts = [each for each in records if isinstance(each, RunStarted)]
    if not starts:
        return LastRun(RunState.UNKNOWN, None, None, checkpointed_at_ms)
    started, ended = starts[-1], _end_of(records, starts[-1])
    if note is not None and ended is not None and note.at_ms > ended.at_ms:
        # A driver that was started beside another one, and was fenced: the other one runs on.
        others = [each for each in starts if each.run_id == note.run_id]
        if others and _end_of(records, others[-1]) is None:
            started, ended = others[-1], None
    signs = [started.at_ms, checkpointed_at_ms or 0]
    if note is not None and note.run_id == started.run_id:
        signs.append(note.at_ms)
    if ended is not None:
        state = RunState.STOPPED if ended.error is None else RunState.FAILED
        return LastRun(state, started, ended, ended.at_ms)
    alive_at_ms = max(signs)
    is_silent = now_ms - alive_at_ms > SILENCE_MS
    return LastRun(RunState.SILENT if is_silent else RunState.RUNNING, started, None, alive_at_ms)


def summary_of(place: QueryPlace, now_ms: int) -> QuerySummary:
    """Return a query at a glance; reads a few small files, however many checkpoints there are.

    Parameters
    ----------
    place
        The query.
    now_ms
        The time now.
    """
    problems: list[str] = []
    metadata: CheckpointMetadata | None = None
    with retained_checkpoints(place.checkpoints) as retained:
        if retained.problem is not None:
            problems.append(retained.problem)
        newest = retained.newest(1)
        if newest:
            read = retained.read(newest[0])
            if isinstance(read, CkptError):
                problems.append(str(read))
            else:
                metadata = read
        count = len(retained.used_ids)
    runs = RecordedRuns(place.checkpoints)
    notes = runs.notes(_NOTES_FOR_LAG)
    completed_at_ms = None if metadata is None else metadata.completed_at_ms
    run = last_run(runs.starts_and_ends(8), notes[-1] if notes else None, now_ms, completed_at_ms)
    started = run.started
    first = runs.first_start()
    return QuerySummary(
        place=place,
        query_id=started.query_id if started else _id_in(metadata),
        name=_name(started, metadata),
        run=run,
        made_by=None if first is None else first.started_by,
        checkpoint_id=newest[0] if newest else None,
        metadata=metadata,
        retained=count,
        committed_epoch=_committed_epoch(place, problems),
        lag_ms=_lag_ms(notes),
        origin=_origin(place, metadata, problems),
        rolled_back=_rolled_back(place, problems),
        problems=tuple(problems),
    )


def _id_in(metadata: CheckpointMetadata | None) -> str | None:
    return None if metadata is None else metadata.query_id


def _name(started: RunStarted | None, metadata: CheckpointMetadata | None) -> str | None:
    if started is not None and started.query_name:
        return started.query_name
    return None if metadata is None else metadata.query_name


def _lag_ms(notes: Sequence[RunNote]) -> int | None:
    epochs = [epoch for note in notes for epoch in note.epochs]
    if not epochs or not epochs[-1].watermark_ms:
        return None
    return max(epochs[-1].began_at_ms - epochs[-1].watermark_ms, 0)


def _committed_epoch(place: QueryPlace, problems: list[str]) -> int | None:
    if place.location is None:
        return None
    try:
        return SparkLog(place.location).committed_epoch()
    except (OSError, CkptError) as exc:
        problems.append(str(exc))
        return None


def _origin(
    place: QueryPlace, metadata: CheckpointMetadata | None, problems: list[str]
) -> Origin | None:
    try:
        return read_origin(place.checkpoints)
    except (OSError, CkptError) as exc:
        problems.append(str(exc))
        return None if metadata is None else metadata.parent


def _rolled_back(place: QueryPlace, problems: list[str]) -> tuple[RolledBack, ...]:
    if place.location is None:
        return ()
    try:
        return read_rolled_back(place.location)
    except (OSError, CkptError) as exc:
        problems.append(str(exc))
        return ()
