"""transformWithStateInBatches gives what the same processor gives row by row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from pyspark_ckpt import BatchProcessor, key_by
from pyspark_ckpt.errors import StateValueError
from tests.query.harness import BACKEND, OFTEN, Feed, Job
from tests.query.model import in_order
from tests.query.session_conf import session_conf
from tests.query.timed import ORIGIN_MS, at, timed_feed

INPUT = "k string, g int, v long, w string, u long"
TYPES = (pa.string(), pa.int32(), pa.int64(), pa.string(), pa.int64())
SCHEMA = pa.schema(list(zip("kgvwu", TYPES, strict=True)))
STATE = "n long, total long, mean double, last string, units long"
OUTPUT = f"g int, k string, {STATE}"


class Rows(StatefulProcessor):
    """Number, sum and mean of `v`, which may be null, and the greatest `w`, for each key."""

    def init(self, handle: Any) -> None:
        self.totals = handle.getValueState("totals", STATE)
        self.tries = handle.getValueState("tries", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total, _, last, units = self.totals.get() or (0, None, None, None, 0)
        for row in rows:
            n, units = n + 1, units + row.u
            total = total if row.v is None else row.v + (total or 0)
            last = max((w for w in (last, row.w) if w is not None), default=None)
        new = (n, total, None if total is None else total / n, last, units)
        if n % 7 == 0:
            self.totals.clear()
        else:
            self.totals.update(new)
        yield Row(**dict(zip(OUTPUT_NAMES, (*key, *new), strict=True)))

    def close(self) -> None:
        pass


OUTPUT_NAMES = [column.split()[0] for column in OUTPUT.split(", ")]


class Batches(Rows, BatchProcessor):
    """The same for all keys at once."""

    def handleInputBatch(
        self, keys: pd.DataFrame, rows: pd.DataFrame, timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        stored = self.totals.getMany(keys)
        by_key = rows.groupby(level=0)
        sums = by_key["v"].sum(min_count=1).astype("Int64")
        new = pd.DataFrame(index=keys.index)
        new["n"] = stored["n"].fillna(0) + by_key.size()
        new["total"] = stored["total"].add(sums, fill_value=0)
        new["mean"] = new["total"] / new["n"]
        greatest = pd.concat([stored["last"].dropna(), rows["w"].dropna()]).groupby(level=0).max()
        new["last"] = greatest.reindex(keys.index).astype(object)
        new["units"] = stored["units"].fillna(0) + by_key["u"].sum()
        full = new["n"] % 7 == 0
        self.totals.clearMany(keys[full])
        self.totals.updateMany(keys[~full], new[~full])
        yield keys.join(new)


def rows_of(epoch: int, number: int) -> list[Any]:
    """Rows of composite keys with nulls in every column; sums beyond what a double holds."""
    rows: list[Any] = []
    for i in range(number):
        k, g = f"k{i % 11}" if i % 13 else None, i % 5 if i % 17 else None
        v = None if i % 3 == 0 or i % 11 == 5 else epoch * number + i
        rows.append((k, g, v, None if i % 4 else f"w{(i * 7 + epoch) % 100:02}", 2**53 + i))
    return rows


@pytest.mark.slow
def test_as_row_by_row(job: Job, tmp_path: Path) -> None:
    """The same output with composite keys and nulls, across a restart on another backend."""
    feed = Feed(tmp_path / "rows", SCHEMA, INPUT)
    job = job.but(feed=feed, keys=("g", "k"), processor=Batches, output=OUTPUT).using(OFTEN)
    batches = job.but(method="transformWithStateInBatches", location="loc2", out="out2")
    # The rows of the last epoch are more than a half of this limit: they come in several batches.
    batches = batches.using({"spark.ckpt.execution.memory-limit": "1mb"})
    feed.add(rows_of(0, 100), rows_of(1, 300))
    single = job.but(processor=lambda: Rows())
    for each in (single, batches):
        each.run()
    feed.add(rows_of(2, 10), rows_of(3, 8000))
    single.run()
    batches.using({BACKEND: "heap"}).run()
    assert single.result()
    assert batches.result() == single.result()


class BatchAlarm(BatchProcessor):
    """Set a timer at each row's value, in seconds, and delete the one before; keep the last."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.last = handle.getValueState("last", "v long")

    def handleInputBatch(
        self, keys: pd.DataFrame, rows: pd.DataFrame, timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        before = self.last.getMany(keys)["v"].dropna()
        self.handle.deleteTimers(keys.loc[before.index], before)
        new = ORIGIN_MS + rows.groupby(level=0)["v"].max() * 1000
        self.handle.registerTimers(keys, new)
        self.last.updateMany(keys, new.to_frame("v"))
        with pytest.raises(StateValueError, match="registerTimers got 0 times"):
            self.handle.registerTimers(keys, [])
        yield keys.assign(what="set", v=new - ORIGIN_MS)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        fired = expiredTimerInfo.getExpiryTimeInMs()
        assert self.last.get() == (fired,)
        self.last.clear()
        yield pd.DataFrame({"k": [key[0]], "what": "fired", "v": fired - ORIGIN_MS})


class BatchAlarms(BatchAlarm):
    """The same for all timers at once."""

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        raise AssertionError("it is called timer by timer")

    def handleExpiredTimers(
        self, keys: pd.DataFrame, timers: pd.DataFrame, timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        assert timers.index.tolist() == keys.index.tolist()
        assert self.last.getMany(keys)["v"].tolist() == timers["time_ms"].tolist()
        self.last.clearMany(keys)
        yield keys.assign(what="fired", v=timers["time_ms"] - ORIGIN_MS)


class Keys(BatchProcessor):
    """Yields the keys as they come."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "n long")

    def handleInputBatch(
        self, keys: pd.DataFrame, rows: pd.DataFrame, timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        self.seen.updateMany(keys, pd.DataFrame({"n": 1}, index=keys.index))
        yield keys.assign(n=rows.groupby(level=0).size())

    def close(self) -> None:
        pass


@pytest.mark.parametrize("numbers", [[1, 2], [1_700_000_000_000_000_123, -(2**63), 2**63 - 1]])
def test_long_keys_beside_a_null_keep_their_digits(job: Job, numbers: list[int]) -> None:
    keys = [*numbers, None]
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    feed = Feed(job.base / "long", schema, "k long, v long")
    job = job.but(feed=feed, processor=Keys, output="k long, n long")
    feed.add([(k, 1) for k in keys] * 2)
    with session_conf(job.spark, {"spark.sql.shuffle.partitions": "1"}):
        job.but(method="transformWithStateInBatches").run()
    assert job.result() == in_order([(k, 2) for k in keys])


@pytest.mark.slow
@pytest.mark.parametrize("processor", [BatchAlarm, BatchAlarms])
def test_timers(job: Job, tmp_path: Path, processor: type[BatchProcessor]) -> None:
    """A BatchProcessor sets and deletes timers of many keys; they fire once, after a restart."""
    feed = timed_feed(tmp_path / "timed")
    job = job.but(feed=feed, processor=processor, output="k string, what string, v long")
    job = job.but(method="transformWithStateInBatches", time_mode="EventTime", watermark="ts")
    keys = [f"k{i}" for i in range(8)]
    feed.add([(k, 10 + i, at(0)) for i, k in enumerate(keys)])
    job.run()
    feed.add([(k, 30, at(1)) for k in keys[:3]], [("tick", 99, at(15))])
    job.run()
    emitted = [(k, "set", 1000 * (10 + i)) for i, k in enumerate(keys)] + [("tick", "set", 99_000)]
    emitted += [(k, "set", 30_000) for k in keys[:3]]
    emitted += [(keys[i], "fired", 1000 * (10 + i)) for i in range(3, 6)]
    assert job.result() == in_order(emitted)


EXACT = [2**53 + 1, -(2**63), 2**63 - 1]
VALUES = "n long, i int, ns array<long>, s struct<n: long>, m map<long, long>, b boolean"


class Exact(BatchProcessor):
    """Yield rows and keys back, through states."""

    def init(self, handle: Any) -> None:
        self.last = handle.getValueState("last", VALUES)
        self.rules = handle.getBroadcastState("rules", "n long", "n long")

    def handleBroadcastRows(self, rows: Any, timerValues: Any) -> None:
        for frame in rows:
            for n in frame["n"].dropna():
                self.rules.updateValue((int(n),), (int(n),))

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        (first,) = initialState["first"]
        assert (None if first is pd.NA else int(first)) == key[0]

    def handleInputBatch(
        self, keys: pd.DataFrame, rows: pd.DataFrame, timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        assert str(keys["k"].dtype) == str(rows["n"].dtype) == str(rows["i"].dtype) == "Int64"
        self.last.updateMany(keys, rows)
        rules = [str(sorted(key for (key,), _ in self.rules.iterator()))] * len(keys)
        yield self.last.getMany(keys).assign(k=keys["k"], rules=rules)

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_integers_beside_nulls_keep_their_digits(spark: SparkSession) -> None:
    """They do in rows, keys, states, and broadcast and initial rows, also inside other values."""
    rows = [
        Row(k=n, n=n, i=None if n is None else 7, ns=[n, None], s=Row(n=n), m={1: n}, b=n != 0)
        for n in (*EXACT, None)
    ]
    df = spark.createDataFrame(rows, f"k long, {VALUES}")
    with session_conf(spark, {"spark.sql.shuffle.partitions": "1"}):  # the null is among the rest
        keyed = key_by(df, "k").connectBroadcast(df.select("n"))
        out = keyed.transformWithStateInBatches(
            Exact(),
            f"k long, rules string, {VALUES}",
            "Append",
            "None",
            initialState=df.selectExpr("k", "n as first").groupBy("k"),
        ).collect()
    rules = str(sorted(EXACT))
    assert in_order(map(tuple, out)) == in_order((row[0], rules, *row[1:]) for row in rows)
