"""The states of a query: their growth, samples of the newest checkpoint, and one key's entries."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from pyspark_ckpt.console.data.checkpoints import retained_checkpoints
from pyspark_ckpt.console.data.places import QueryPlace
from pyspark_ckpt.console.data.sampled_state import (
    Sample,
    TimerSample,
    entries_of_key,
    sample_of,
    timers_of,
)
from pyspark_ckpt.console.data.timeline import NOTES_SHOWN
from pyspark_ckpt.console.data.trends import Growth, growth_of, operators_now
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.layout import checkpoint_name
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.history.run_log import RecordedRuns
from pyspark_ckpt.history.run_record import CheckpointRecord, RunStarted, SlowKeyRecord
from pyspark_ckpt.snapshot.columns import python_rows
from pyspark_ckpt.snapshot.snapshot import Snapshot, open_state

STATES_SAMPLED = 8
_OLDER = 20
"""The growth of keys is shown against the oldest of so many retained checkpoints."""

GROWN_SHOWN = 5
SLOW_SHOWN = 8
WITHOUT_DATA = "a bundle has no data, so there are no samples of states and no entries of keys"


@dataclass(frozen=True, slots=True)
class StateSample:
    """A state with its sample, or why there is none."""

    operator: str
    name: str
    sample: Sample | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class KeyEntries:
    """The first entries of one key, out of `total`."""

    operator: str
    state: str
    key_columns: tuple[str, ...]
    key: tuple[str | None, ...]
    columns: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]
    total: int


@dataclass(frozen=True, slots=True)
class GrownKey:
    """A key of a state that has more rows than in the older checkpoint."""

    operator: str
    state: str
    key: tuple[str | None, ...]
    rows: int
    rows_before: int


@dataclass(frozen=True, slots=True)
class SlowKeyRow:
    """A key of an operator that took much time."""

    operator: str
    record: SlowKeyRecord


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """The key that a user asked for, as texts from a form; ``None`` is a null."""

    operator: str
    state: str
    key: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class StatePage:
    """The states of a query; `samples` are of the first of the `states` in the checkpoint."""

    name: str
    growth: Growth
    samples: tuple[StateSample, ...]
    states: int
    grown: tuple[GrownKey, ...]
    slow: tuple[SlowKeyRow, ...]
    timers: tuple[tuple[str, TimerSample], ...]
    older_name: str | None
    older_at_ms: int | None
    entries: KeyEntries | None
    problems: tuple[str, ...]


def state_page(place: QueryPlace, asked: KeyRequest | None, *, has_data: bool) -> StatePage:
    """Return the states of a query at its newest checkpoint."""
    runs = RecordedRuns(place.checkpoints)
    recorded = [each for note in runs.notes(NOTES_SHOWN) for each in note.checkpoints]
    starts = [each for each in runs.starts_and_ends(8) if isinstance(each, RunStarted)]
    problems: list[str] = []
    samples: list[StateSample] = []
    states = 0
    timers: list[tuple[str, TimerSample]] = []
    entries = None
    with retained_checkpoints(place.checkpoints) as found:
        numbers = found.newest(_OLDER)
        older = numbers[-1] if len(numbers) > 1 else None
        before_that = None if older is None else found.read(older)
    if not has_data:
        problems.append(WITHOUT_DATA)
    elif not numbers:
        problems.append("there is no checkpoint yet")
    else:
        with ExitStack() as opened:
            try:
                newest = opened.enter_context(_open(place, numbers[0]))
                if asked is not None:
                    entries = _entries(newest, asked)
                else:
                    before = None if older is None else opened.enter_context(_open(place, older))
                    states = len(newest.states())
                    samples = _samples(newest, before)
                    timers = [(uid, timers_of(newest, uid)) for uid in newest.operators]
            except (OSError, CkptError) as exc:
                problems.append(str(exc))
    return StatePage(
        name=(starts[-1].query_name or starts[-1].query_id) if starts else place.path,
        growth=growth_of(recorded),
        samples=tuple(samples),
        states=states,
        grown=grown_keys(samples),
        slow=slow_keys_of(recorded),
        timers=tuple(each for each in timers if each[1].timers),
        older_name=None if older is None else checkpoint_name(older),
        older_at_ms=(
            before_that.completed_at_ms if isinstance(before_that, CheckpointMetadata) else None
        ),
        entries=entries,
        problems=tuple(problems),
    )


def grown_keys(samples: Sequence[StateSample]) -> tuple[GrownKey, ...]:
    """Return the keys that grew most among those with most bytes or rows, of all states."""
    grown = {
        GrownKey(each.operator, each.name, heavy.text, heavy.rows, heavy.rows_before): None
        for each in samples
        if each.sample is not None
        for heavy in (*each.sample.heaviest, *each.sample.by_rows)
        if heavy.rows_before is not None and heavy.rows > heavy.rows_before
    }
    return tuple(sorted(grown, key=lambda each: each.rows_before - each.rows)[:GROWN_SHOWN])


def slow_keys_of(recorded: Sequence[CheckpointRecord]) -> tuple[SlowKeyRow, ...]:
    """Return the keys that took most time, as the newest record has them, of today's operators.

    `recorded` must be ordered oldest first.
    """
    now = operators_now(recorded)
    for each in reversed(recorded):
        found = [
            SlowKeyRow(operator.uid, record)
            for operator in each.operators
            if operator.uid in now
            for record in operator.slow_keys
        ]
        if found:
            return tuple(sorted(found, key=lambda row: -row.record.ms)[:SLOW_SHOWN])
    return ()


def _open(place: QueryPlace, number: int) -> Snapshot:
    return open_state(place.checkpoints.url_of(checkpoint_name(number)))


def _samples(newest: Snapshot, older: Snapshot | None) -> list[StateSample]:
    found = []
    for row in newest.states().to_dict("records")[:STATES_SAMPLED]:
        operator, name = str(row["operator"]), str(row["state"])
        try:
            sample = sample_of(newest, operator, name, older)
            found.append(StateSample(operator, name, sample))
        except CkptError as exc:
            found.append(StateSample(operator, name, None, str(exc)))
    return found


def _entries(snapshot: Snapshot, asked: KeyRequest) -> KeyEntries:
    view = snapshot.state(asked.operator, asked.state)
    table, total = entries_of_key(view, asked.key)
    return KeyEntries(
        operator=asked.operator,
        state=asked.state,
        key_columns=tuple(field.name for field in view.key_fields),
        key=asked.key,
        columns=tuple(table.schema.names),
        rows=tuple(python_rows(table)),
        total=total,
    )
