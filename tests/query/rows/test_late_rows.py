"""Late rows reach a processor that asks for them: the rows that Spark's own operator drops."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.testing import replay
from tests.query.harness import HAND_OVER, Feed, Job
from tests.query.session_conf import session_conf
from tests.query.timed import at, timed_feed

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PER_OPERATOR = "spark.sql.streaming.statefulOperator.allowMultiple"
OUTPUT = "k string, v long, is_late boolean"
DELAY = "5 seconds"

Plan = Callable[[DataFrame], DataFrame]


class Seen(StatefulProcessor):
    """Pass each row on with whether it was late; `n` counts the rows of a key."""

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield Row(k=key[0], v=row.v, is_late=False)

    def handleLateRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield Row(k=key[0], v=row.v, is_late=True)

    def close(self) -> None:
        pass


class SeenInPandas(Seen):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for frame in rows:
            yield pd.DataFrame({"k": key[0], "v": frame["v"], "is_late": False})

    def handleLateRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for frame in rows:
            yield pd.DataFrame({"k": key[0], "v": frame["v"], "is_late": True})


class SeenInBatches(ckpt.BatchProcessor):
    def init(self, handle: Any) -> None:
        pass

    def handleInputBatch(self, keys: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield rows[["k", "v"]].assign(is_late=False)

    def handleLateBatch(self, keys: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield rows[["k", "v"]].assign(is_late=True)

    def close(self) -> None:
        pass


class SeenInArrow(ckpt.ArrowProcessor):
    def init(self, handle: Any) -> None:
        pass

    def handleInputArrow(self, keys: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield rows.append_column("is_late", pa.array([False] * len(rows)))

    def handleLateArrow(self, keys: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield rows.append_column("is_late", pa.array([True] * len(rows)))

    def close(self) -> None:
        pass


def in_rows(df: DataFrame) -> DataFrame:
    return ckpt.key_by(df, "k").transformWithState(Seen(), OUTPUT, "Append", "EventTime", uid="op")


def in_pandas(df: DataFrame) -> DataFrame:
    return ckpt.key_by(df, "k").transformWithStateInPandas(
        SeenInPandas(), OUTPUT, "Append", "EventTime", uid="op"
    )


def in_batches(df: DataFrame) -> DataFrame:
    return ckpt.key_by(df, "k").transformWithStateInBatches(
        SeenInBatches(), OUTPUT, "Append", "EventTime", uid="op"
    )


def in_arrow(df: DataFrame) -> DataFrame:
    return ckpt.key_by(df, "k").transformWithStateInArrow(
        SeenInArrow(), OUTPUT, "Append", "EventTime", uid="op"
    )


def sparks(df: DataFrame) -> DataFrame:
    return df.groupBy("k").transformWithState(Seen(), OUTPUT, "Append", "EventTime")


Files = list[list[tuple[str, int, dt.datetime | None]]]


def files(seed: int) -> Files:
    """Return rows around the watermark, before 1970 and without a time, numbered by `v`."""
    seeded, numbers, now, made = random.Random(seed), iter(range(10_000)), 20, []
    for epoch in range(9):
        now += 0 if epoch in (3, 4) else seeded.randint(2, 9)
        times = [now - seeded.choice([0, 1, 4, 5, 6, 9, 30]) for _ in range(12)]
        times += [now - 5 + seeded.choice([-1e-6, 0, 1e-6]) for _ in range(3)]
        rows: Any = [(seeded.choice("abcde"), next(numbers), at(time)) for time in (*times, now)]
        rows.append(("f", next(numbers), None))
        rows.append(("g", next(numbers), dt.datetime(1969, 5, 1, tzinfo=dt.timezone.utc)))
        made.append(rows)
    made.insert(7, [(key, next(numbers), at(1)) for key in "abcde"])  # all of them are late
    return made


class Ran:
    """What a query emitted by epoch, and its counts."""

    def __init__(self) -> None:
        self.output: dict[int, Counter[Any]] = {}
        self.dropped = 0
        self.late = 0


def as_it_is(df: DataFrame) -> DataFrame:
    return df


def joined(df: DataFrame) -> DataFrame:
    """A join whose output may be 7 s older than its input, so its watermark is held back."""
    left, right = df.alias("a"), df.where("v % 3 = 0").alias("b")
    near = "a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL 7 SECONDS AND a.ts"
    both = left.join(right, F.expr(near))
    return both.select("a.k", F.expr("a.v * 100000 + b.v").alias("v"), "b.ts")


def counted(df: DataFrame) -> DataFrame:
    windows = df.groupBy(F.window("ts", "2 seconds"), "k").agg(F.min("v").alias("v"))
    return windows.select("k", "v", "window")


def run(
    spark: SparkSession,
    base: Path,
    plan: Plan,
    given: Files,
    *,
    is_ours: bool,
    before: Plan = as_it_is,
) -> Ran:
    """Run over all files, with a restart in between."""
    ran, feed = Ran(), timed_feed(base / plan.__name__)
    for some in (given[:5], given[5:]):
        feed.add(*some)
        output = plan(before(feed.stream(spark).withWatermark("ts", DELAY)))

        def note(df: DataFrame, epoch: int) -> None:
            ran.output[epoch] = Counter(map(tuple, df.collect()))

        writer = ckpt.write_stream(output) if is_ours else output.writeStream
        query = (
            writer.foreachBatch(note)
            .option("checkpointLocation", str(base / f"location-{plan.__name__}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        for progress in query.recentProgress:
            for operator in progress["stateOperators"]:
                ran.dropped += operator["numRowsDroppedByWatermark"]
        if is_ours:
            ran.late += sum(each["numLateRows"] for each in query.recentOperatorProgress)
    return ran


def in_time(ran: Ran) -> dict[int, Counter[Any]]:
    found = {
        epoch: Counter({row: n for row, n in rows.items() if not row[-1]})
        for epoch, rows in ran.output.items()
    }
    return {epoch: rows for epoch, rows in found.items() if rows}


@pytest.mark.parametrize(
    ("plan", "conf"),
    [
        pytest.param(in_rows, {}, marks=pytest.mark.slow),
        pytest.param(in_pandas, {HAND_OVER: "packed"}, marks=pytest.mark.slow),
        pytest.param(in_batches, {}, marks=pytest.mark.soak),
        pytest.param(in_arrow, {}, marks=pytest.mark.slow),
        pytest.param(in_rows, {PER_OPERATOR: "False"}, marks=pytest.mark.slow),
        pytest.param(in_rows, {HAND_OVER: "packed"}, marks=pytest.mark.soak),
    ],
)
def test_the_late_rows_are_those_that_sparks_operator_drops(
    spark: SparkSession, tmp_path: Path, plan: Plan, conf: Mapping[str, str]
) -> None:
    given = files(11)
    with session_conf(spark, {PROVIDER: ROCKSDB, **conf}):
        wanted = run(spark, tmp_path, sparks, given, is_ours=False)
        found = run(spark, tmp_path, plan, given, is_ours=True)
    assert in_time(found) == in_time(wanted)
    assert wanted.dropped > 20
    assert found.late == wanted.dropped
    assert found.dropped == 0
    every = Counter(v for rows in found.output.values() for _, v, _ in rows.elements())
    assert every == Counter(v for rows in given for _, v, _ in rows)
    late = {row for rows in found.output.values() for row in rows if row[-1]}
    assert late.isdisjoint(row for rows in wanted.output.values() for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("before", [joined, counted])
def test_behind_another_operator(spark: SparkSession, tmp_path: Path, before: Plan) -> None:
    given = files(12)
    with session_conf(spark, {PROVIDER: ROCKSDB}):
        wanted = run(spark, tmp_path, sparks, given, is_ours=False, before=before)
        found = run(spark, tmp_path, in_rows, given, is_ours=True, before=before)
    print(wanted.dropped, found.dropped, found.late)
    assert sum(map(len, wanted.output.values())) > 5
    assert in_time(found) == in_time(wanted)
    assert found.late + found.dropped == wanted.dropped


class Audited(StatefulProcessor):
    """Number the rows of each key, and its late rows apart from them; a bad row raises."""

    bad: int | None = None

    def init(self, handle: Any) -> None:
        self.counts = handle.getMapState("counts", "late boolean", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        return self.numbered(key, rows, is_late=False)

    def handleLateRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        return self.numbered(key, rows, is_late=True)

    def numbered(self, key: Any, rows: Iterator[Row], *, is_late: bool) -> Iterator[Row]:
        (n,) = self.counts.getValue((is_late,)) or (0,)
        for row in rows:
            if row.v == self.bad:
                msg = f"value {row.v}"
                raise ValueError(msg)
            n += 1
            yield Row(k=key[0], v=row.v, is_late=is_late, n=n)
        self.counts.updateValue((is_late,), (n,))

    def close(self) -> None:
        pass


NUMBERED = "k string, v long, is_late boolean, n long"


def job_of(job: Job, feed: Feed, processor: type[StatefulProcessor], **arguments: Any) -> Job:
    def plan(job: Job) -> DataFrame:
        keyed = ckpt.key_by(feed.stream(job.spark).withWatermark("ts", DELAY), "k")
        return keyed.transformWithState(
            job.processor(), NUMBERED, "Append", "EventTime", uid="op", **arguments
        )

    return job.but(plan=plan, processor=processor, output=NUMBERED)


def late_by_plain_python(given: Files) -> set[int]:
    watermarks, newest, late = [dt.datetime.fromtimestamp(0, dt.timezone.utc)], None, set()
    for rows in given:
        late |= {v for _, v, time in rows if time is not None and time <= watermarks[-1]}
        if newest is not None:
            watermarks.append(newest - dt.timedelta(seconds=5))
        times = [time for *_, time in rows if time is not None]
        newest = max(times if newest is None else [newest, *times])
    return late


class Numbered(NamedTuple):
    k: str
    v: int
    is_late: bool
    n: int


def numbered(job: Job) -> list[Numbered]:
    return [Numbered(*row) for row in job.result()]


def check_numbers(rows: list[Numbered], given: Files) -> None:
    """Check that each row came once, late or not as by plain Python, and is numbered."""
    assert sorted(row.v for row in rows) == sorted(v for some in given for _, v, _ in some)
    assert {row.v for row in rows if row.is_late} == late_by_plain_python(given)
    numbers: dict[Any, list[int]] = {}
    for row in rows:
        numbers.setdefault((row.k, row.is_late), []).append(row.n)
    assert all(sorted(ns) == list(range(1, len(ns) + 1)) for ns in numbers.values())


@pytest.mark.slow
def test_a_fork_at_another_parallelism_goes_on(job: Job, tmp_path: Path) -> None:
    given, feed = files(13), timed_feed(tmp_path / "timed")
    job = job_of(job, feed, Audited)
    feed.add(*given[:6])
    with session_conf(job.spark, {"spark.sql.shuffle.partitions": "2"}):
        with job.running() as query:
            query.processAllAvailable()
            path = query.triggerSavepoint(str(tmp_path / "savepoints")).path
    feed.add(*given[6:])
    fork = job.but(location="fork", out="fork-out")
    with session_conf(job.spark, {"spark.sql.shuffle.partitions": "3"}):
        fork.run(path)
    check_numbers(numbered(job) + numbered(fork), given)


@pytest.mark.slow
def test_captured_epochs_with_late_rows_are_replayed(job: Job, tmp_path: Path) -> None:
    given, feed = files(14), timed_feed(tmp_path / "timed")
    job = job_of(job, feed, Audited)
    capture = ckpt.location(str(job.location_path)).capture(range(100))
    feed.add(*given)
    job.run()
    file = capture.save(tmp_path / "saved.capture")
    replay(file, Audited()).assert_same()
    without = replay(file, OnlyInTime())
    in_time = sorted(row.v for row in numbered(job) if not row.is_late)
    assert sorted(without.output["v"]) == in_time


class OnlyInTime(StatefulProcessor):
    """The program without the method for late rows, which are dropped then."""

    bad = None
    init, close, numbered = Audited.init, Audited.close, Audited.numbered

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        return Audited.numbered(self, key, rows, is_late=False)  # type: ignore[arg-type]


@pytest.mark.slow
def test_late_rows_of_a_quarantined_key_are_released_as_late(job: Job, tmp_path: Path) -> None:
    given, feed = files(15), timed_feed(tmp_path / "timed")
    late = sorted(late_by_plain_python(given))
    bad = late[len(late) // 4]

    class Flaky(Audited):
        pass

    Flaky.bad = bad
    flaky = job_of(job, feed, Flaky, onError="quarantine")
    feed.add(*given)
    query = flaky.run()
    assert bad not in {row.v for row in numbered(flaky)}
    query.release("op")
    feed.add([("z", 5_000, at(1_000))])
    job_of(job, feed, Audited, onError="quarantine").run()
    given.append([("z", 5_000, at(1_000))])
    check_numbers(numbered(flaky), given)


@pytest.mark.parametrize(
    ("processor", "mode", "says"),
    [
        (Seen, "ProcessingTime", "no row is late: use timeMode='EventTime'"),
        (
            type("Wrong", (SeenInArrow,), {"handleLateRows": Seen.handleLateRows}),
            "EventTime",
            "rename it",
        ),
    ],
)
def test_a_method_for_late_rows_that_is_never_called_is_refused(
    spark: SparkSession, tmp_path: Path, processor: Any, mode: str, says: str
) -> None:
    rows = timed_feed(tmp_path / "timed").stream(spark).withWatermark("ts", DELAY)
    with pytest.raises(ckpt.errors.PlanError, match=says):
        ckpt.key_by(rows, "k").transformWithState(processor(), OUTPUT, "Append", mode, uid="op")


class Correcting(Audited):
    """Write down late values, and fail at a value that came late before."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if self.counts.containsKey((True,)):
                msg = f"{key[0]} has late rows"
                raise ValueError(msg)
            yield Row(k=key[0], v=row.v, is_late=False, n=0)


@pytest.mark.slow
def test_the_capture_of_a_failure_has_the_late_rows_of_the_key(job: Job, tmp_path: Path) -> None:
    feed = timed_feed(tmp_path / "timed")
    job = job_of(job, feed, Correcting).using({"spark.ckpt.capture.on-failure": "true"})
    feed.add([("a", 1, at(100)), ("b", 2, at(100))], [("b", 3, at(101))])
    job.run()
    feed.add([("b", 4, at(102)), ("a", 5, at(1)), ("a", 6, at(103))])
    with pytest.raises(ckpt.errors.ProcessorError, match="a has late rows"):
        job.run()
    (file,) = (job.checkpoint_path / "captures").iterdir()
    with pytest.raises(ckpt.errors.ProcessorError, match="a has late rows"):
        replay(file, Correcting())


def test_a_late_row_comes_to_its_method_and_its_key_counts_once(job: Job, tmp_path: Path) -> None:
    feed = timed_feed(tmp_path / "timed")
    job = job_of(job, feed, Audited)
    feed.add([("a", 1, at(100))], [("a", 2, at(101))], [("a", 3, at(1)), ("a", 4, at(102))])
    query = job.run()
    progress = query.recentOperatorProgress
    assert [each["numKeysTouched"] for each in progress if each["numLateRows"]] == [1]
    assert sorted((row.v, row.is_late, row.n) for row in numbered(job)) == [
        (1, False, 1), (2, False, 2), (3, True, 1), (4, False, 3),
    ]  # fmt: skip


def test_behind_another_operator_of_the_library_it_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = timed_feed(tmp_path / "timed").stream(spark).withWatermark("ts", DELAY)
    first = ckpt.key_by(rows, "k").transformWithState(
        Plain(), "k string, v long, ts timestamp", "Append", "EventTime", eventTimeColumnName="ts",
        uid="first",
    )  # fmt: skip
    with pytest.raises(ckpt.errors.PlanError, match="behind another operator"):
        ckpt.key_by(first, "k").transformWithState(
            Seen(), OUTPUT, "Append", "EventTime", uid="second"
        )


class Plain(StatefulProcessor):
    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield from rows

    def close(self) -> None:
        pass
