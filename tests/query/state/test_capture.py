"""Epochs of real queries are captured, and run again without Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from examples.flights import data, expected, job, processor
from pyspark_ckpt.testing import replay
from tests.by_value import pickled_by_value
from tests.query.harness import BACKEND, BACKENDS, Feed, Job
from tests.unit.testing.stored_pickles import pickles_in_capture

ON_FAILURE = "spark.ckpt.capture.on-failure"
BAD = -1
TOTALS = "k string, n long"


class Totals(StatefulProcessor):
    """Sums up, keeps all values, and reports a key that was quiet."""

    step, bad = 1, None

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long")
        self.values = handle.getListState("values", "v long")
        self.seen = handle.getMapState("seen", "v long", "times long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (n,) = self.total.get() or (0,)
        for row in rows:
            if row.v == self.bad:
                msg = f"value {row.v}"
                raise ValueError(msg)
            n += row.v * self.step
            self.values.appendValue((row.v,))
            (times,) = self.seen.getValue((row.v,)) or (0,)
            self.seen.updateValue((row.v,), (times + 1,))
        self.total.update((n,))
        yield Row(k=key[0], n=n)

    def close(self) -> None:
        pass


class Doubled(Totals):
    step = 2


class Raising(Totals):
    bad = BAD


def captured(job: Job, epochs: Any = range(100)) -> ckpt.results.Capture:
    return ckpt.location(str(job.location_path)).capture(epochs)


def saved(job: Job, tmp_path: Path) -> Path:
    return captured(job).save(tmp_path / "saved.capture")


def rows_of(frame: pd.DataFrame) -> list[Any]:
    return sorted(frame.drop(columns="epoch").itertuples(index=False, name=None))


FILES = [[("a", 1), ("b", 2), ("a", 3)], [("c", 4), ("a", 5)], [("b", 6)] * 3 + [("ö", 7)]]


@pytest.mark.soak_variants
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_query_is_replayed_bit_for_bit(job: Job, tmp_path: Path, backend: str) -> None:
    job = job.but(processor=Totals, output=TOTALS).using({BACKEND: backend})
    job.feed.add(*FILES[:1])
    job.run()  # not captured
    assert not (job.checkpoint_path / "captures").exists()
    captured(job)
    job.feed.add(*FILES[1:])
    job.run()
    job.feed.add([("a", 10)])
    job.run()
    file = saved(job, tmp_path)
    for each in BACKENDS:
        result = replay(file, Totals(), backend=each)
        result.assert_same()
    assert result.epochs == [1, 2, 3]
    before = [("a", 4), ("b", 2)]
    assert sorted([*before, *rows_of(result.output)]) == [tuple(row) for row in job.result()]
    changed = {
        (each.epoch, each.key, each.old["n"], each.new["n"])
        for each in replay(file, Doubled()).differences
        if each.where == "output" and each.old is not None and each.new is not None
    }
    assert changed == {
        (1, ("a",), 9, 14),
        (1, ("c",), 4, 8),
        (2, ("b",), 20, 38),
        (2, ("ö",), 7, 14),
        (3, ("a",), 19, 34),
    }


def test_a_running_query_is_captured_from_its_next_epoch(job: Job, tmp_path: Path) -> None:
    job = job.but(processor=Totals, output=TOTALS)
    with job.running() as query:
        job.feed.add(FILES[0])
        query.processAllAvailable()
        capture = query.capture(range(10))
        job.feed.add(*FILES[1:])
        query.processAllAvailable()
        assert capture.captured() == [1, 2]
    result = replay(capture.save(tmp_path / "saved.capture"), Totals())
    result.assert_same()
    assert sorted([("a", 4), ("b", 2), *rows_of(result.output)]) == list(map(tuple, job.result()))


class Frames(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        n = (self.count.get() or (0,))[0] + sum(int(frame["v"].sum()) for frame in rows)
        self.count.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})

    def close(self) -> None:
        pass


class Batches(ckpt.BatchProcessor):
    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputBatch(self, keys: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        n = self.count.getMany(keys)["n"].fillna(0) + rows.groupby(level=0)["v"].sum()
        self.count.updateMany(keys, n.astype(np.int64).to_frame("n"))
        yield keys.assign(n=n.astype(np.int64))

    def close(self) -> None:
        pass


class Tables(ckpt.ArrowProcessor):
    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputArrow(self, keys: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        sums = rows.group_by("key_position").aggregate([("v", "sum")]).sort_by("key_position")
        n = pc.add(pc.fill_null(self.count.getMany(keys).column("n"), 0), sums.column("v_sum"))
        self.count.updateMany(keys, pa.table({"n": n}))
        yield keys.append_column("n", n)

    def close(self) -> None:
        pass


@pytest.mark.soak_variants
@pytest.mark.parametrize(
    ("method", "kind"), [("InPandas", Frames), ("InBatches", Batches), ("InArrow", Tables)]
)
def test_each_way_of_getting_rows(job: Job, tmp_path: Path, method: str, kind: Any) -> None:
    job = job.but(processor=kind, output=TOTALS, method=f"transformWithState{method}")
    captured(job)
    job.feed.add(*FILES)
    job.run()
    result = replay(saved(job, tmp_path), kind())
    result.assert_same()
    assert rows_of(result.output) == [tuple(row) for row in job.result()]


class Alarms(StatefulProcessor):
    """Alarms ten seconds after the last row of a key, in a limit that is broadcast."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.limits = handle.getBroadcastState("limits", "name string", "most long")
        self.newest = handle.getValueState("newest", "at timestamp, v decimal(10, 2)")

    def handleBroadcastRows(self, rows: Iterator[Row], timerValues: Any) -> None:
        for row in rows:
            self.limits.updateValue((row.k,), (row.v,))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (most,) = self.limits.getValue(("all",)) or (1000,)
        newest = max(rows, key=lambda row: row.at)
        self.newest.update((newest.at, newest.v))
        self.handle.registerTimer(int(newest.at.timestamp() * 1000) + 10_000)
        if newest.v > most:
            yield Row(k=key[0], n=int(newest.v), at=newest.at)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        at, v = self.newest.get() or (None, 0)
        self.newest.clear()
        yield Row(k=key[0], n=-int(v), at=at)

    def close(self) -> None:
        pass


@pytest.mark.soak
def test_event_time_keys_that_are_computed_and_a_broadcast_stream(
    job: Job, spark: SparkSession, tmp_path: Path
) -> None:
    rules = Feed(tmp_path / "rules")
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("v", pa.decimal128(10, 2))])
    events = Feed(tmp_path / "events", schema, "at timestamp, v decimal(10, 2)")
    noon = dt.datetime(2024, 5, 17, 12, tzinfo=dt.timezone.utc)

    def at(seconds: int, value: int) -> tuple[dt.datetime, int]:
        return noon + dt.timedelta(seconds=seconds), value

    def plan(job: Job) -> Any:
        stream = events.stream(spark).withWatermark("at", "0 seconds")
        keyed = ckpt.key_by(stream, F.date_format("at", "mm").alias("day"))
        return keyed.connectBroadcast(rules.stream(spark)).transformWithState(
            Alarms(), "k string, n long, at timestamp", "Append", "EventTime", uid="op"
        )

    job = job.but(plan=plan)
    captured(job)
    rules.add([("all", 50)])
    events.add([at(0, 10), at(61, 70)])
    job.run()
    rules.add([("all", 80)])
    events.add([at(5, 90), at(62, 75), at(300, 1)])  # the first is late
    job.run()
    result = replay(saved(job, tmp_path), Alarms(), backend="rocksdb")
    result.assert_same()
    sent = spark.read.parquet(str(job.base / job.out)).collect()
    assert sorted(result.output["n"]) == sorted(row.n for row in sent)
    assert {-10, 70} <= set(result.output["n"])


@pytest.mark.slow
def test_a_crash_is_a_unit_test(job: Job) -> None:
    job = job.but(processor=Raising, output=TOTALS).using({ON_FAILURE: "true"})
    job.feed.add(FILES[0])
    job.run()
    assert not (job.checkpoint_path / "captures").exists()
    job.feed.add([("a", 5), ("b", 6), ("a", BAD), ("c", 7)])
    for _ in range(2):  # a supervisor starts it again
        with pytest.raises(
            ckpt.errors.ProcessorError, match="run it again without Spark"
        ) as caught:
            job.run()
    (file,) = (job.checkpoint_path / "captures").iterdir()
    assert file.name in str(caught.value)
    with pytest.raises(ckpt.errors.ProcessorError, match=r"key \('a',\).*value -1"):
        replay(file, Raising())
    result = replay(file, Totals())
    assert rows_of(result.output) == [("a", 4 + 5 + BAD)]
    assert "value -1" in result.failures[0]


@pytest.mark.slow
def test_a_quarantined_key_is_a_unit_test_too(job: Job) -> None:
    job = job.but(processor=Raising, output=TOTALS, arguments={"onError": "quarantine"})
    job = job.using({ON_FAILURE: "true"})
    job.feed.add(FILES[0])
    job.run()
    assert not (job.checkpoint_path / "captures").exists()
    job.feed.add([("a", 5), ("b", 6), ("a", BAD), ("c", 7)])
    job.run()
    job.feed.add([("a", 8)])  # kept, without a call
    job.run()
    (file,) = (job.checkpoint_path / "captures").iterdir()
    with pytest.raises(ckpt.errors.ProcessorError, match=r"key \('a',\).*value -1"):
        replay(file, Raising())
    assert rows_of(replay(file, Totals()).output) == [("a", 4 + 5 + BAD)]


@pytest.mark.soak
def test_released_rows_are_replayed(job: Job, tmp_path: Path) -> None:
    job = job.but(processor=Raising, output=TOTALS, arguments={"onError": "quarantine"})
    captured(job)
    job.feed.add([("a", 1), ("b", BAD)])
    job.run()
    job.feed.add([("b", 4), ("a", 2)])
    query = job.run()
    query.release("op", ["b"])
    job.feed.add([("a", 3)])
    mended = job.but(processor=Totals)
    mended.run()
    file = saved(job, tmp_path)
    results = replay(file, Raising()), replay(file, Totals())
    assert {each.epoch for each in results[0].differences} == {2}  # the mended program ran then
    assert {each.epoch for each in results[1].differences} == {
        0
    }  # later b is quarantined as it was
    released = ckpt.location(str(job.location_path)).capture(2).save(tmp_path / "released.capture")
    replay(released, Totals()).assert_same()


def flights_captured(
    spark: SparkSession, tmp_path: Path, backend: str, weeks: int
) -> tuple[pd.DataFrame, Path, pd.DataFrame]:
    """Return the flights, a capture of all epochs, and what the query wrote."""
    flights = data.load_flights(weeks)
    data.deliver(flights, tmp_path / "flights")
    run = tmp_path / "run"
    capture = ckpt.location(str(run / "location")).capture(range(weeks + 1))
    with pickled_by_value(data, processor):
        writer = job.turnarounds(spark, tmp_path / "flights", run, 15, backend)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    return flights, capture.save(tmp_path / "flights.capture"), job.read_result(spark, run)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("weeks", [3, pytest.param(data.ALL_WEEKS, marks=pytest.mark.soak)])
def test_the_flights_are_replayed_and_a_threshold_differs_as_in_plain_pandas(
    spark: SparkSession, tmp_path: Path, backend: str, weeks: int
) -> None:
    flights, file, result = flights_captured(spark, tmp_path, backend, weeks)
    assert b"cloudpickle" not in file.read_bytes()
    assert pickles_in_capture(file) == []
    for each in BACKENDS:
        same = replay(file, processor.Turnarounds(15), backend=each)
        same.assert_same()
        assert expected.in_order(same.output).equals(result)
    changed = replay(file, processor.Turnarounds(30))
    old, new = (
        expected.in_order(expected.expected_turnarounds(flights, pd.Series(limit, flights.index)))
        for limit in (15, 30)
    )
    equal = (old == new) | (old.isna() & new.isna())
    differs = ~equal.fillna(False).all(axis=1)
    assert differs.any()
    wanted = set(zip(old["tailnum"][differs], old["flights"][differs], strict=True))
    found = {
        (each.new["tailnum"], each.new["flights"])
        for each in changed.differences
        if each.where == "output"
    }
    assert {(None if pd.isna(t) else t, n) for t, n in wanted} == found
    assert expected.in_order(changed.output).equals(new)
