"""What happened to a query lately: epochs, checkpoints, savepoints, failures, runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark_ckpt.console.data.checkpoints import retained_checkpoints
from pyspark_ckpt.console.data.places import QueryPlace
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.modes import EntryKind, EntryStatus
from pyspark_ckpt.history.log import HistoryEntry, HistoryLog
from pyspark_ckpt.history.run_log import (
    CheckpointRecord,
    EpochRecord,
    OperatorEpoch,
    OperatorRecord,
    RecordedRuns,
    RunEnded,
    RunNote,
    RunStarted,
)

NOTES_SHOWN = 120
"""Notes that a page reads: the last hour of a query that never pauses."""

CHECKPOINTS_SHOWN = 50
EVENTS_SHOWN = 100
RUNS_SHOWN = 20

_PLAN = ("latestOffset", "getBatch", "queryPlanning")
_BEFORE_TASKS = ("walCommit", "getBatch", "queryPlanning")
"""What Spark does between the timestamp of an epoch and the epoch's first job."""

_LOG = ("walCommit", "commitOffsets")
_USER_LINE = re.compile(r'^ *File "[^"\n]+", line [0-9]+, in [^\n]*(?:\n    [^\n]*)?', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EpochRow:
    """An epoch with its time by phase, in milliseconds.

    The operators' phases are those of their slowest subtasks. Where they are not known, all of
    Spark's ``addBatch`` is in ``tasks and sink``. `is_first` says that a run began with it, so
    that it also waited for Python to start and for local copies.
    """

    record: EpochRecord
    phases_ms: Mapping[str, int]
    checkpoint_id: int | None
    has_operators: bool = False
    is_first: bool = False


PHASES = (
    "plan", "shuffle", "open state", "read", "user code", "write", "barrier", "sink",
    "tasks and sink", "Spark's logs", "other",
)  # fmt: skip
"""The phases of an epoch, in the order in which a chart stacks them."""

OPERATOR_PHASES = PHASES[1:8]
"""The phases that are known from the operators only."""

PHASE_MEANINGS = {
    "plan": "Spark asks the sources for offsets and plans the epoch",
    "shuffle": "until the first task of an operator begins: sources, what is before it, shuffle",
    "open state": "a subtask opens its local copy of the state, or rebuilds it",
    "read": "wait for rows, group them by key, read states ahead",
    "user code": "the processor, with its calls of states and timers",
    "write": "wait for Spark to take the output",
    "barrier": "make the changes durable",
    "sink": "the commit of the sink, and tasks that wait for a free core",
    "tasks and sink": "all from shuffle to sink; no checkpoint has told the operators' phases",
    "Spark's logs": "Spark writes the offsets and the commit",
    "other": "the rest of the epoch",
}
"""What happens in each phase."""

UNDIVIDED = "tasks and sink"
"""The phase that stands for the operators' phases where they are not known."""


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A retained checkpoint; `record` is ``None`` if it cannot be read, and `problem` says why."""

    number: int
    record: CheckpointRecord | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that failed, or an attempt at a checkpoint or savepoint that was aborted."""

    what: str
    at_ms: int | None
    reason: str
    line: str | None
    is_of_run: bool = False


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened to a query lately, oldest first, except `retained` and `failures`."""

    epochs: tuple[EpochRow, ...]
    other_epochs: int
    other_ms: int
    recorded: tuple[CheckpointRecord, ...]
    retained: tuple[CheckpointRow, ...]
    has_older: bool
    events: tuple[HistoryEntry, ...]
    runs: tuple[RunStarted | RunEnded, ...]
    failures: tuple[Failure, ...]

    @property
    def quarantined(self) -> list[OperatorRecord]:
        """The operators that had quarantined keys at the newest recorded checkpoint."""
        newest = self.recorded[-1].operators if self.recorded else ()
        return [each for each in newest if each.quarantined_keys]


def timeline_of(place: QueryPlace, before: int | None = None) -> Timeline:
    """Return what happened to a query lately."""
    recorded_runs = RecordedRuns(place.checkpoints)
    notes = recorded_runs.notes(NOTES_SHOWN)
    recorded = tuple(each for note in notes for each in note.checkpoints)
    by_id = {each.checkpoint_id: each for each in recorded}
    with retained_checkpoints(place.checkpoints) as found:
        numbers = found.newest(CHECKPOINTS_SHOWN + 1, before)
        rows = []
        for number in numbers[:CHECKPOINTS_SHOWN]:
            if number in by_id:
                rows.append(CheckpointRow(number, by_id[number]))
            else:
                metadata = found.read(number)
                rows.append(
                    CheckpointRow(number, None, str(metadata))
                    if isinstance(metadata, CkptError)
                    else CheckpointRow(number, _record_of(number, metadata))
                )
    events = HistoryLog(place.checkpoints).entries(EVENTS_SHOWN)
    runs = tuple(recorded_runs.starts_and_ends(2 * RUNS_SHOWN))
    return Timeline(
        epochs=_epochs(notes, recorded),
        other_epochs=sum(note.other_epochs for note in notes),
        other_ms=sum(note.other_ms for note in notes),
        recorded=recorded,
        retained=tuple(rows),
        has_older=len(numbers) > CHECKPOINTS_SHOWN,
        events=tuple(events),
        runs=runs,
        failures=failures_of(runs, events),
    )


def failures_of(
    runs: tuple[RunStarted | RunEnded, ...], events: list[HistoryEntry]
) -> tuple[Failure, ...]:
    """Return failed runs and aborted attempts, newest first."""
    found = [
        Failure(
            f"the run failed ({each.error_kind})",
            each.at_ms,
            each.error,
            user_line(each.error),
            is_of_run=True,
        )
        for each in runs
        if isinstance(each, RunEnded) and each.error is not None
    ]
    found += [
        Failure(_attempt(each), each.triggered_at_ms, each.reason or "", user_line(each.reason))
        for each in events
        if each.status is EntryStatus.ABORTED
    ]
    return tuple(sorted(found, key=lambda each: each.at_ms or 0, reverse=True))


def user_line(text: str | None) -> str | None:
    """Return the last line of the user's code that an error names, ``None`` if it names none."""
    found = [match[0].strip() for match in _USER_LINE.finditer(text or "")]
    return found[-1] if found else None


def _attempt(entry: HistoryEntry) -> str:
    if entry.kind is EntryKind.SAVEPOINT:
        return "a savepoint was aborted"
    if entry.checkpoint_id is None:  # the committed epochs could not be listed
        return "a checkpoint was aborted"
    return f"chk-{entry.checkpoint_id} was aborted"


def _record_of(number: int, metadata: CheckpointMetadata) -> CheckpointRecord:
    return CheckpointRecord(
        checkpoint_id=number,
        epoch=metadata.epoch,
        triggered_at_ms=metadata.triggered_at_ms,
        duration_ms=metadata.completed_at_ms - metadata.triggered_at_ms,
        size_bytes=metadata.size_bytes,
        files=len({reference.path for reference in metadata.files()}) + 1,
        phases_ms=metadata.phases_ms,
    )


def _epochs(notes: list[RunNote], recorded: tuple[CheckpointRecord, ...]) -> tuple[EpochRow, ...]:
    checkpoints = {each.epoch: each for each in recorded}
    operators = _operator_epochs(notes)
    first: dict[str, int] = {}
    for note in notes:
        if note.epochs:
            first.setdefault(note.run_id, min(each.epoch for each in note.epochs))
    if len(notes) == NOTES_SHOWN:  # the oldest run may have begun before
        first.pop(notes[0].run_id, None)
    by_epoch = {epoch.epoch: epoch for note in notes for epoch in note.epochs}
    rows = []
    for number in sorted(by_epoch):
        checkpoint = checkpoints.get(number)
        done = operators.get(number, ())
        rows.append(
            EpochRow(
                by_epoch[number],
                phases_of(by_epoch[number], done),
                None if checkpoint is None else checkpoint.checkpoint_id,
                bool(done),
                number in first.values(),
            )
        )
    return tuple(rows)


def _operator_epochs(notes: Sequence[RunNote]) -> dict[int, tuple[OperatorEpoch, ...]]:
    """Return what each operator did in each epoch, once.

    The first checkpoint after a restart describes epochs before it again. After a rollback, an
    epoch of the same number is another one: what an earlier run did in it is forgotten.
    """
    found: dict[int, dict[str, tuple[str, OperatorEpoch]]] = {}
    for note in notes:
        for record in note.epochs:
            of_epoch = found.get(record.epoch, {})
            found[record.epoch] = {
                uid: each for uid, each in of_epoch.items() if each[0] == note.run_id
            }
        for each in note.operator_epochs:
            found.setdefault(each.epoch, {})[each.uid] = note.run_id, each
    return {epoch: tuple(each for _, each in by_uid.values()) for epoch, by_uid in found.items()}


def phases_of(record: EpochRecord, operators: Sequence[OperatorEpoch]) -> dict[str, int]:
    """Return the time of an epoch by phase, in milliseconds; the sum is its duration.

    ``shuffle`` is the time until the first subtask of an operator begins, in which Spark reads the
    sources, runs what is before the operator, and shuffles. ``sink`` is the rest of Spark's
    ``addBatch``: the commit of the sink, and waits for a free core. `operators` is empty if nothing
    is known of them.
    """
    spark = record.phases_ms
    found = dict.fromkeys(PHASES, 0)
    found["plan"] = sum(spark.get(name, 0) for name in _PLAN)
    found["Spark's logs"] = sum(spark.get(name, 0) for name in _LOG)
    rest = spark.get("addBatch", 0)
    if operators:
        for each in operators:
            found["open state"] += each.open_ms
            found["read"] += each.read_ms
            found["user code"] += each.user_ms
            found["write"] += each.write_ms
            found["barrier"] += each.barrier_ms
        rest = max(rest - sum(found[name] for name in OPERATOR_PHASES), 0)
        before_tasks = sum(spark.get(name, 0) for name in _BEFORE_TASKS)
        first_ms = min(each.began_ms for each in operators) - before_tasks
        found["shuffle"] = min(max(first_ms, 0), rest)
        rest -= found["shuffle"]
    found["sink" if operators else UNDIVIDED] = rest
    found["other"] = max(record.duration_ms - sum(found.values()), 0)
    return found
