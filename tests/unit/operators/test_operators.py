"""Ready-made operators give what a plain Python model gives, whatever rows come in which epochs."""

from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from pyspark_ckpt import agg
from pyspark_ckpt.combine.combination import Aggregates
from pyspark_ckpt.operators.first_rows import FirstRows
from pyspark_ckpt.operators.greatest_rows import GreatestRows
from pyspark_ckpt.operators.rolling_windows import RollingWindows
from pyspark_ckpt.operators.sessions import Sessions
from pyspark_ckpt.operators.stream_columns import StreamColumns
from pyspark_ckpt.testing import ProcessorHarness

ORIGIN = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
K, V, X, AT = (
    T.StructField("k", T.StringType()),
    T.StructField("v", T.LongType()),
    T.StructField("x", T.DoubleType()),
    T.StructField("at", T.TimestampType()),
)
COLUMNS = StreamColumns((K,), (V, X, AT), (K, V, X, AT), AT)
ARROW = pa.schema(
    [("k", pa.string()), ("v", pa.int64()), ("x", pa.float64()), ("at", pa.timestamp("us", "UTC"))]
)
Row = tuple[str | None, int, float | None, dt.datetime | None]

keys = st.sampled_from(["a", "b", "c", None])
numbers = st.sampled_from([None, math.nan, math.inf, -1.5, 0.0, 2.0, 2.0, 7.25])
times = st.one_of(st.none(), st.integers(0, 40).map(lambda s: ORIGIN + dt.timedelta(seconds=s)))


@st.composite
def epochs(draw: st.DrawFn, at: Any = times) -> list[list[Row]]:
    """Draw epochs of rows, which `v` numbers."""
    made, number = [], 0
    for _ in range(draw(st.integers(1, 4))):
        rows: list[Row] = []
        for _ in range(draw(st.integers(1, 8))):
            rows.append((draw(keys), number, draw(numbers), draw(at)))
            number += 1
        made.append(rows)
    return made


def table(rows: Sequence[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(ARROW)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, ARROW, strict=True)]
    return pa.Table.from_arrays(arrays, schema=ARROW)


def run(processor: Any, given_epochs: list[list[Row]], **arguments: Any) -> list[list[Any]]:
    """Return the output of each epoch, as tuples; the harness reopens its state in between."""
    harness = ProcessorHarness(processor, **arguments)
    found = []
    for rows in given_epochs:
        output = harness.testInArrow(table(rows), "k")
        found.append([tuple(row.values()) for row in output.to_pylist()])
    return found


def plain(values: Any) -> Any:
    """Return values that are equal if they are the same, also NaN."""
    return repr([one.timestamp() if isinstance(one, dt.datetime) else one for one in values])


def same(found: list[list[Any]], wanted: list[list[Any]]) -> None:
    assert [sorted(map(plain, each)) for each in found] == [
        sorted(map(plain, each)) for each in wanted
    ]


def order_of(value: Any) -> Any:
    """Return what sorts as Spark does: a null first, NaN last."""
    if value is None:
        return (0, 0)
    if isinstance(value, float) and math.isnan(value):
        return (2, 0)
    return (1, value)


@given(epochs())
def test_deduplicate(some: list[list[Row]]) -> None:
    seen: set[Any] = set()
    wanted = []
    for rows in some:
        first = [row for n, row in enumerate(rows) if row[0] not in {r[0] for r in rows[:n]}]
        wanted.append([row for row in first if row[0] not in seen])
        seen |= {row[0] for row in rows}
    same(run(FirstRows(COLUMNS, None), some), wanted)


@pytest.mark.parametrize("by", [None, X, AT])
@given(some=epochs())
def test_last_value(by: T.StructField | None, some: list[list[Row]]) -> None:
    place = None if by is None else ARROW.names.index(by.name)
    newest: dict[Any, Row] = {}
    wanted = []
    for rows in some:
        before = dict(newest)
        for row in rows:
            old = newest.get(row[0])
            if old is None or place is None or order_of(row[place]) >= order_of(old[place]):
                newest[row[0]] = row
        wanted.append([row for key, row in newest.items() if before.get(key) is not row])
    processor = GreatestRows(COLUMNS, by, 1, "", None, descending=True, later_wins=True)
    same(run(processor, some), wanted)


@pytest.mark.parametrize("smallest", [False, True])
@given(some=epochs(), n=st.integers(1, 4))
def test_top_n(smallest: bool, some: list[list[Row]], n: int) -> None:
    came: dict[Any, list[Row]] = defaultdict(list)
    wanted = []
    for rows in some:
        before = {key: top(of_key, n, smallest=smallest) for key, of_key in came.items()}
        for row in rows:
            came[row[0]].append(row)
        output = []
        for key, of_key in came.items():
            now = top(of_key, n, smallest=smallest)
            if [row[1] for row in now] != [row[1] for row in before.get(key, [])]:
                output += [(*row, rank) for rank, row in enumerate(now, 1)]
        wanted.append(output)
    processor = GreatestRows(COLUMNS, X, n, "rank", None, descending=not smallest, later_wins=False)
    same(run(processor, some), wanted)


def top(rows: list[Row], n: int, *, smallest: bool) -> list[Row]:
    ordered = sorted(rows, key=lambda row: row[1])
    return sorted(ordered, key=lambda row: order_of(row[2]), reverse=not smallest)[:n]


WINDOW = {
    "n": agg.Count(),
    "known": agg.Count("x"),
    "total": agg.Sum("v"),
    "least": agg.Min("v"),
    "most": agg.Max("x"),
    "vs": agg.CollectList("v"),
}
AGGREGATES = Aggregates(WINDOW, T.StructType([K, V, X, AT]), "operator 'op'")


def aggregated(rows: list[Row]) -> tuple[Any, ...]:
    known = [row[2] for row in rows if row[2] is not None]
    vs = [row[1] for row in rows]
    most = max(known, key=order_of) if known else None
    return len(rows), len(known), sum(vs), min(vs), most, vs, len({order_of(x) for x in known})


@given(some=epochs(), n=st.integers(1, 4))
def test_windows_of_the_last_rows(some: list[list[Row]], n: int) -> None:
    came: dict[Any, list[Row]] = defaultdict(list)
    wanted = []
    for rows in some:
        output = []
        for row in sorted(rows, key=lambda row: order_of(row[3])):
            came[row[0]].append(row)
            output.append((*row, *aggregated(came[row[0]][-n:])))
        wanted.append(output)
    processor = RollingWindows(COLUMNS, AT, AGGREGATES, {"different": "x"}, n, None, None)
    same(run(processor, some), wanted)


@given(some=epochs(), within_s=st.integers(1, 15))
def test_windows_of_time(some: list[list[Row]], within_s: int) -> None:
    came: dict[Any, list[Row]] = defaultdict(list)
    newest: dict[Any, dt.datetime] = {}
    wanted, within = [], dt.timedelta(seconds=within_s)
    for rows in some:
        output = []
        for row in sorted(rows, key=lambda row: order_of(row[3])):
            window = [row]
            if row[3] is not None:
                came[row[0]].append(row)
                window = [
                    one
                    for one in came[row[0]]
                    if row[3] - within < one[3] <= row[3]  # type: ignore[operator]
                ]
                window.sort(key=lambda one: one[3])  # type: ignore[arg-type, return-value]
            output.append((*row, *aggregated(window)))
        for row in rows:
            if row[3] is not None:
                newest[row[0]] = max(newest.get(row[0], row[3]), row[3])
        for key, time in newest.items():  # what no row in order can need is forgotten
            came[key] = [one for one in came[key] if one[3] > time - within]  # type: ignore[operator]
        wanted.append(output)
    processor = RollingWindows(
        COLUMNS, AT, AGGREGATES, {"different": "x"}, None, within_s * 1_000_000, None
    )
    same(run(processor, some), wanted)


GAP_S = 5


@given(
    some=epochs(st.one_of(st.none(), st.integers(1, 60).map(float))),
    moves=st.lists(st.integers(1, 25), min_size=4, max_size=4),
)
def test_sessions(some: list[list[Any]], moves: list[int]) -> None:
    """All rows of a key that are not late, and sessions of them that have ended by then."""
    epochs_of_times = [
        [
            (*row[:3], None if row[3] is None else ORIGIN + dt.timedelta(seconds=row[3]))
            for row in rows
        ]
        for rows in some
    ]
    aggregates = Aggregates(
        {"n": agg.Count(), "total": agg.Sum("v")}, T.StructType([K, V, X, AT]), "operator 'op'"
    )
    harness = ProcessorHarness(
        Sessions(COLUMNS, "at", GAP_S * 1_000_000, aggregates),
        timeMode="EventTime",
        eventTimeExtractor=lambda row: (
            None if row["at"] is None else int(row["at"].timestamp() * 1000)
        ),
    )
    came: dict[Any, list[tuple[float, int]]] = defaultdict(list)
    found, watermark_s, ended = [], 0.0, []
    for rows, timed, move in zip(some, epochs_of_times, moves, strict=False):
        found += rows_of(harness.testInArrow(table(timed), "k"))
        for key, v, _, second in rows:
            if second is not None and (watermark_s == 0 or second > watermark_s):
                came[key].append((second, v))
        watermark_s += move
        found += rows_of(harness.setWatermark(ORIGIN + dt.timedelta(seconds=watermark_s)))
    found += rows_of(harness.setWatermark(ORIGIN + dt.timedelta(days=1)))
    for key, of_key in came.items():
        sessions: list[list[tuple[float, int]]] = []
        for second, v in sorted(of_key):
            if sessions and second <= sessions[-1][-1][0] + GAP_S:
                sessions[-1].append((second, v))
            else:
                sessions.append([(second, v)])
        for each in sessions:
            start, end = (
                ORIGIN + dt.timedelta(seconds=s) for s in (each[0][0], each[-1][0] + GAP_S)
            )
            ended.append((key, start, end, len(each), sum(v for _, v in each)))
    assert sorted(map(plain, found)) == sorted(map(plain, ended))


def after(seconds: float | None) -> dt.datetime | None:
    return None if seconds is None else ORIGIN + dt.timedelta(seconds=seconds)


def rows_of(output: pa.Table) -> list[Any]:
    return [tuple(row.values()) for row in output.to_pylist()]
