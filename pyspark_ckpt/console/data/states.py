"""The states of a query: their growth, samples of the newest checkpoint, and one key's entries.

A sample has the first rows of a state in stored order: at most :data:`MOST_ROWS`, in equal parts of
its subtasks. It ends after :data:`MOST_SECONDS`, also while only entries of other states are read.
No key is looked up in the older snapshot after as long again. The time is looked at after each part
of a file. So what grows with the state is only the fetch of a subtask's files, which are checked as
a whole before their first part is read.

The lowest priority is not enough. Linux still gives a thread that waits a slice of each processor,
some percent where no processor is ever free, and a query would lose that.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.console.data.checkpoints import retained_checkpoints
from pyspark_ckpt.console.data.places import QueryPlace
from pyspark_ckpt.console.data.timeline import NOTES_SHOWN
from pyspark_ckpt.errors import CkptError, StateUseError
from pyspark_ckpt.formats.layout import checkpoint_name
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.history.run_log import CheckpointRecord, RecordedRuns, RunStarted, SlowKeyRecord
from pyspark_ckpt.snapshot.columns import python_rows
from pyspark_ckpt.snapshot.snapshot import Snapshot, open_state
from pyspark_ckpt.snapshot.views import StateView, TableView

STATES_SAMPLED = 8

_OLDER = 20
"""The growth of keys is shown against the oldest of so many retained checkpoints."""

GROWN_SHOWN = 5
SLOW_SHOWN = 8
WITHOUT_DATA = "a bundle has no data, so there are no samples of states and no entries of keys"
MOST_ROWS = 200_000
MOST_SECONDS = 3.0

NESTED_ROWS = 20_000
"""Rows that are ranked if a key is of a nested type: Python makes its text."""

HEAVIEST = 20
MOST_BY_ROWS = 10
ENTRIES_SHOWN = 200

_RESTS = 4
"""A page rests this many times as long as its thread waited for a processor."""

_MOST_SECONDS = 1.0

_STATISTICS = Path("/proc/thread-self/schedstat")
"""Three numbers of a thread; the second is how many nanoseconds it waited for a processor."""

_JUDGED_RECORDS = 6
_SAME_SHARE = 0.05

_MATERIAL_SHARE = 0.1
"""A state grows materially if its growth is at least this part of the fastest state's growth."""


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


class _TimeIsOverError(Exception):
    """The time for a sample is over; never leaves this module."""


class _TimeLimit:
    """Ends :data:`MOST_SECONDS` after it was made; a check rests if other programs want to run."""

    def __init__(self) -> None:
        self._end_at = time.monotonic() + MOST_SECONDS
        self._pace = Pace()

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._end_at

    def rest(self) -> None:
        """Let other programs run if they want to."""
        self._pace.rest()

    def check(self) -> None:
        """Rest if need be, and raise the error of this module if the time is over."""
        self.rest()
        if self.is_over:
            raise _TimeIsOverError


@dataclass(frozen=True, slots=True)
class HeavyKey:
    """A key with its rows and bytes in the sample; `text` finds it again, ``None`` is a null."""

    text: tuple[str | None, ...]
    rows: int
    size_bytes: int
    rows_before: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of a state.

    `is_whole` says that it has all rows. `expired` of its rows have lived longer than their time to
    live and are still stored; ``None`` if the state has no time to live. `heaviest` are keys by
    bytes, `by_rows` by rows: none if no key has two rows. `keys` is the number of ranked keys.
    """

    rows: int
    size_bytes: int
    expired: int | None
    is_whole: bool
    key_columns: tuple[str, ...]
    heaviest: tuple[HeavyKey, ...]
    by_rows: tuple[HeavyKey, ...] = ()
    keys: int = 0


@dataclass(frozen=True, slots=True)
class TimerSample:
    """The timers of an operator in a sample; `due` of them have a time that is reached."""

    timers: int
    due: int
    is_whole: bool


def sample_of(snapshot: Snapshot, operator: str, name: str, older: Snapshot | None) -> Sample:
    """Return a sample of a state."""
    view = snapshot.state(operator, name)
    table, is_whole = _first_rows(view)
    expired = None
    if view.now_ms is not None:
        # The last column says when entries expire; its name is another one if a value has it.
        expired = _count_reached(table.columns[-1], view.now_ms)
    keys = [field.name for field in view.key_fields]
    sizes = _sizes(table)
    before = None if older is None else _view(older, view, operator)
    ranked = _heaviest(table, keys, sizes, before) if keys else RankedKeys()
    return Sample(
        rows=table.num_rows,
        size_bytes=pc.sum(sizes).as_py() or 0,
        expired=expired,
        is_whole=is_whole,
        key_columns=tuple(keys),
        heaviest=ranked.heaviest,
        by_rows=ranked.by_rows,
        keys=ranked.keys,
    )


def timers_of(snapshot: Snapshot, operator: str) -> TimerSample:
    """Return how many timers an operator has, and how many are due, in a sample."""
    view = snapshot.timers(operator)
    table, is_whole = _first_rows(view)
    metadata = view.schema.metadata or {}
    is_event_time = metadata.get(b"time_mode", b"").lower().startswith(b"event")
    now_ms = snapshot.watermark_ms if is_event_time else snapshot.processing_time_ms
    return TimerSample(table.num_rows, _count_reached(table.column("fires_at"), now_ms), is_whole)


def entries_of_key(view: StateView, texts: Sequence[str | None]) -> tuple[pa.Table, int]:
    """Return the first entries of one key, and how many it has.

    `texts` has one text per key column, ``None`` for a null; bytes are in hex.
    """
    fields = view.key_fields
    if len(texts) != len(fields):
        raise StateUseError(f"the key has {len(fields)} columns, and {len(texts)} were given")
    key = [_value(field, text) for field, text in zip(fields, texts, strict=True)]
    found = view.rows_of(*key, include_expired=True)
    return found.slice(0, ENTRIES_SHOWN), found.num_rows


def _value(field: pa.Field, text: str | None) -> Any:
    if text is None:
        return None
    try:
        if field.type == pa.binary():
            return bytes.fromhex(text)
        return pa.array([text], pa.string()).cast(field.type)[0].as_py()
    except (pa.ArrowException, ValueError) as exc:
        raise StateUseError(
            f"{text[:80]!r} cannot be read as {field.type} for {field.name!r}: {exc}"
        ) from exc


def _first_rows(view: TableView) -> tuple[pa.Table, bool]:
    """Return the first rows of the subtasks, and whether these are all rows."""
    subtasks: Sequence[int | None] = view.subtasks or [None]
    share = max(MOST_ROWS // len(subtasks), 1)
    limit = _TimeLimit()
    batches: list[pa.RecordBatch] = []
    is_whole = True
    try:
        for subtask in subtasks:
            rows = 0
            for batch in view.batches(include_expired=True, subtask=subtask, on_step=limit.check):
                batches.append(batch.slice(0, share - rows))
                rows += batch.num_rows
                if rows >= share:
                    is_whole = False
                    break
    except _TimeIsOverError:
        is_whole = False
    return pa.Table.from_batches(batches, view.schema), is_whole


def _count_reached(times: pa.ChunkedArray, now_ms: int) -> int:
    """Return how many of the times are not after a time."""
    return pc.sum(pc.less_equal(times, pa.scalar(now_ms, times.type))).as_py() or 0


def _sizes(table: pa.Table) -> pa.Array:
    """Return about how many bytes each row has: of texts and bytes their length, else a word."""
    total = pa.array([0] * table.num_rows, pa.int64())
    for column in table.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            sizes = pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())
        else:
            each = max(column.nbytes // max(table.num_rows, 1), 1)
            sizes = pa.array([each] * table.num_rows, pa.int64())
        total = pc.add(total, sizes)
    return total.combine_chunks() if isinstance(total, pa.ChunkedArray) else total


class RankedKeys(NamedTuple):
    """The keys with most bytes, the keys with most rows, and how many keys were ranked."""

    heaviest: tuple[HeavyKey, ...] = ()
    by_rows: tuple[HeavyKey, ...] = ()
    keys: int = 0


def _heaviest(
    table: pa.Table, keys: list[str], sizes: pa.Array, before: StateView | None
) -> RankedKeys:
    nested = [key for key in keys if pa.types.is_nested(table.schema.field(key).type)]
    if nested:  # Arrow groups by flat columns only
        table, sizes, before = table.slice(0, NESTED_ROWS), sizes.slice(0, NESTED_ROWS), None
        for name in nested:
            texts = pa.array(map(_nested_text, table.column(name).to_pylist()), pa.string())
            table = table.set_column(table.schema.get_field_index(name), name, texts)
    grouped = (
        table.select(keys)
        .append_column("__bytes", sizes)
        .group_by(keys)
        .aggregate([("__bytes", "sum"), ("__bytes", "count")])
    )
    by_bytes = grouped.sort_by([("__bytes_sum", "descending"), ("__bytes_count", "descending")])
    by_rows = grouped.sort_by([("__bytes_count", "descending"), ("__bytes_sum", "descending")])
    limit = _TimeLimit()
    known: dict[tuple[Any, ...], int | None] = {}

    def ranked(rows: pa.Table) -> tuple[HeavyKey, ...]:
        found = []
        for row in rows.to_pylist():
            key = tuple(row[name] for name in keys)
            if key not in known:
                has_grown = row["__bytes_count"] > 1  # one row is not growth, and a look is slow
                limit.rest()
                is_asked = has_grown and not limit.is_over
                known[key] = (  # with expired entries, as the sample
                    before.rows_of(*key, include_expired=True).num_rows
                    if before is not None and is_asked
                    else None
                )
            text = tuple(None if each is None else _text(each) for each in key)
            found.append(HeavyKey(text, row["__bytes_count"], row["__bytes_sum"], known[key]))
        return tuple(found)

    is_single = len(table) == len(grouped)
    return RankedKeys(
        ranked(by_bytes.slice(0, HEAVIEST)),
        () if is_single else ranked(by_rows.slice(0, MOST_BY_ROWS)),
        len(grouped),
    )


def _nested_text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, default=_text, ensure_ascii=False)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _view(older: Snapshot, view: StateView, operator: str) -> StateView | None:
    try:
        found = older.state(operator, view.name)
    except StateUseError:  # the state is new
        return None
    return found if found.key_fields == view.key_fields else None


class Pace:
    """The pace of one thread: it rests after it had to wait for a processor.

    Where the system does not say how long a thread waited, it never rests.
    """

    def __init__(self) -> None:
        self._waited_ns = _waited_ns()

    def rest(self) -> None:
        """Sleep four times as long as the thread waited since the last rest, at most a second."""
        due = _RESTS * (_waited_ns() - self._waited_ns) / 1e9
        if due > 0:
            time.sleep(min(due, _MOST_SECONDS))
        self._waited_ns = _waited_ns()  # also what it waited after the sleep


def _waited_ns() -> int:
    try:
        return int(_STATISTICS.read_text().split()[1])
    except (OSError, IndexError, ValueError):  # another kernel, or Linux without it
        return 0


@dataclass(frozen=True, slots=True)
class Trend:
    """The recorded sizes of a state: pairs of an epoch and bytes, oldest first.

    A state that is filled and emptied in turn looks as if it grew between two records. So the
    largest sizes of the older and of the newer records are compared.
    """

    name: str
    sizes: tuple[tuple[int, int], ...]

    @property
    def least(self) -> int:
        """The smallest size."""
        return min(size for _, size in self.sizes)

    @property
    def most(self) -> int:
        """The largest size."""
        return max(size for _, size in self.sizes)

    @property
    def bytes_per_epoch(self) -> float | None:
        """By how much the state grows in an epoch, ``None`` if too few sizes are recorded."""
        if len(self.sizes) < _JUDGED_RECORDS:
            return None
        (first, before), (last, now) = self._largest()
        if abs(now - before) <= _SAME_SHARE * max(before, now):
            return 0.0
        return (now - before) / max(last - first, 1)  # a rollback repeats epochs

    @property
    def ratio(self) -> float | None:
        """How many times the largest older size is the largest newer size; ``None`` if unknown."""
        if len(self.sizes) < _JUDGED_RECORDS:
            return None
        (_, before), (_, now) = self._largest()
        return now / before if before else None

    def _largest(self) -> tuple[tuple[int, int], tuple[int, int]]:
        middle = len(self.sizes) // 2
        older, newer = (
            max(half, key=lambda each: each[1])
            for half in (self.sizes[:middle], self.sizes[middle:])
        )
        return older, newer


@dataclass(frozen=True, slots=True)
class Growth:
    """The trends of a query's states, the fastest growing state first."""

    trends: tuple[Trend, ...]

    @property
    def is_known(self) -> bool:
        """Whether enough sizes of any state are recorded to say whether it grows."""
        return any(each.bytes_per_epoch is not None for each in self.trends)

    @property
    def fastest(self) -> Trend | None:
        """The state that grows fastest, ``None`` if no state is known to grow."""
        return self.trends[0] if self.trends and _rate(self.trends[0]) > 0 else None

    def is_material(self, trend: Trend) -> bool:
        """Return whether a state's growth matters compared with the growth of the fastest state."""
        fastest = self.fastest
        return fastest is not None and _rate(trend) >= _MATERIAL_SHARE * _rate(fastest)


def operators_now(recorded: Sequence[CheckpointRecord]) -> frozenset[str]:
    """Return the uids of the operators that the newest record has: another program may have others.

    `recorded` must be ordered oldest first.
    """
    newest = next((each.operators for each in reversed(recorded) if each.operators), ())
    return frozenset(operator.uid for operator in newest)


def _states_now(recorded: Sequence[CheckpointRecord]) -> set[tuple[str, str]]:
    """Return the operator and the name of each state that its newest counts have."""
    waiting = set(operators_now(recorded))  # a state is counted some epochs after a start
    found: set[tuple[str, str]] = set()
    for each in reversed(recorded):
        for operator in each.operators:
            if operator.uid in waiting and operator.states is not None:
                waiting.remove(operator.uid)
                found.update((operator.uid, state.name) for state in operator.states)
        if not waiting:
            break
    return found


def growth_of(recorded: Sequence[CheckpointRecord]) -> Growth:
    """Return how the states of a query grow, as checkpoints recorded their sizes.

    A state or operator that was removed or renamed is left out: it grows no more.

    `recorded` must be ordered oldest first.
    """
    now = _states_now(recorded)
    found: dict[str, list[tuple[int, int]]] = {}
    for each in recorded:
        for operator in each.operators:
            for state in operator.states or ():
                if (operator.uid, state.name) not in now:
                    continue
                line = found.setdefault(f"{operator.uid} / {state.name}", [])
                line.append((each.epoch, state.size_bytes))
    trends = [Trend(name, tuple(line)) for name, line in found.items()]
    return Growth(tuple(sorted(trends, key=lambda trend: -_rate(trend))))


def _rate(trend: Trend) -> float:
    return trend.bytes_per_epoch or 0.0
