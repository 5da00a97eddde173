"""What the console knows of a query at a glance: its state, newest checkpoint, lag and origin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_ckpt.console.data.checkpoints import retained_checkpoints
from pyspark_ckpt.console.data.places import QueryPlace
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.location_files import RolledBack, read_rolled_back
from pyspark_ckpt.formats.metadata import CheckpointMetadata, Origin
from pyspark_ckpt.formats.origin import read_origin
from pyspark_ckpt.history.run_log import (
    LastRun,
    RecordedRuns,
    RunNote,
    RunStarted,
    RunState,
    last_run,
)
from pyspark_ckpt.spark.log import SparkLog

_NOTES_FOR_LAG = 1


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
    """Return the id and name of a query from its newest start, ``None`` if none is recorded."""
    for each in reversed(RecordedRuns(place.checkpoints).starts_and_ends(2)):
        if isinstance(each, RunStarted):
            return QueryIdentity(place, each.query_id, each.query_name or each.query_id)
    return None


def summary_of(place: QueryPlace, now_ms: int) -> QuerySummary:
    """Return a query at a glance; reads a few small files, however many checkpoints there are."""
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
    if runs.problem is not None:
        problems.append(runs.problem)
    notes = runs.notes(_NOTES_FOR_LAG)
    completed_at_ms = None if metadata is None else metadata.completed_at_ms
    run = last_run(runs.starts_and_ends(8), notes[-1] if notes else None, now_ms, completed_at_ms)
    started = run.started
    first = runs.first_start()
    return QuerySummary(
        place=place,
        query_id=started.query_id if started else metadata.query_id if metadata else None,
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


def summary_or_problem(place: QueryPlace, now_ms: int) -> QuerySummary:
    """Return a query at a glance, or why nothing is known of it, so that others are shown."""
    try:
        return summary_of(place, now_ms)
    except (OSError, CkptError) as exc:
        return QuerySummary(
            place=place,
            query_id=None,
            name=None,
            run=LastRun(RunState.UNKNOWN, None, None, None),
            made_by=None,
            checkpoint_id=None,
            metadata=None,
            retained=0,
            committed_epoch=None,
            lag_ms=None,
            origin=None,
            rolled_back=(),
            problems=(str(exc),),
        )


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
