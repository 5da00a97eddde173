"""What one state holds: a bounded sample of it, its heaviest keys, and the entries of one key.

A sample has the first rows of a state in stored order: at most :data:`MOST_ROWS`, in equal parts of
its subtasks. It ends after :data:`MOST_SECONDS`, also while only entries of other states are read.
No key is looked up in the older snapshot after as long again. The time is looked at after each part
of a file. So what grows with the state is only the fetch of a subtask's files, which are checked as
a whole before their first part is read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.console.data.pace import Pace
from pyspark_ckpt.errors import StateUseError
from pyspark_ckpt.snapshot.snapshot import Snapshot
from pyspark_ckpt.snapshot.views import StateView, TableView

MOST_ROWS = 200_000
MOST_SECONDS = 3.0
NESTED_ROWS = 20_000
"""Rows that are ranked if a key is of a nested type: Python makes its text."""

HEAVIEST = 20
MOST_BY_ROWS = 10
ENTRIES_SHOWN = 200


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
    table, is_whole = _sampled(view)
    expired = None
    if view.now_ms is not None:
        # The last column says when entries expire; its name is another one if a value has it.
        expired = _reached(table.columns[-1], view.now_ms)
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
    table, is_whole = _sampled(view)
    metadata = view.schema.metadata or {}
    is_event_time = metadata.get(b"time_mode", b"").lower().startswith(b"event")
    now_ms = snapshot.watermark_ms if is_event_time else snapshot.processing_time_ms
    return TimerSample(table.num_rows, _reached(table.column("fires_at"), now_ms), is_whole)


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
        raise StateUseError(f"{text[:80]!r} is no {field.type} for {field.name!r}: {exc}") from exc


def _sampled(view: TableView) -> tuple[pa.Table, bool]:
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


def _reached(times: pa.ChunkedArray, now_ms: int) -> int:
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
                has_grown = row["__bytes_count"] > 1  # one row is no growth, and a look is dear
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
