"""Spark's own stateful operators in a query: checkpointed, restored and rolled back with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.spark.plan import operators_of
from pyspark_ckpt.storage.open import LocalStorage
from tests.query.harness import Feed, Job, digests, newest_checkpoint, refused
from tests.query.model import Event, in_order
from tests.query.session_conf import session_conf

STATE_STORE = "spark.sql.streaming.stateStore."
HDFS: dict[str, str] = {}
ROCKSDB = {
    f"{STATE_STORE}providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    f"{STATE_STORE}rocksdb.changelogCheckpointing.enabled": "true",
}
PHYSICAL = {
    "op": "FlatMapGroupsInPandasWithState",
    "second": "FlatMapGroupsInPandasWithState",
    "dedupe": "StreamingDeduplicate",
    "globalLimit": "StreamingGlobalLimit",
    "sessionWindowStateStoreSaveExec": "SessionWindowStateStoreSave",
    "stateStoreSave": "StateStoreSave",
    "symmetricHashJoin": "StreamingSymmetricHashJoin",
    "transformWithStateInPySparkExec": "TransformWithStateInPySpark",
}
"""Nodes of Spark's physical plan by what the state metadata calls their operators."""

PARTITIONS = "spark.sql.shuffle.partitions"


class Numbered(StatefulProcessor):
    """Number the rows of a key."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self.count.get() or (0,))[0]
        for row in sorted(rows, key=lambda row: row.v):
            n += 1
            yield Row(k=key[0], n=n, t=row.t)
        self.count.update((n,))

    def close(self) -> None:
        pass


NUMBERED = "k string, n long, t timestamp"


def timed(job: Job, feed: Feed) -> DataFrame:
    rows = feed.stream(job.spark).withColumn("t", F.timestamp_seconds("v"))
    return rows.withWatermark("t", "5 seconds")


def numbered(rows: DataFrame, uid: str = "op") -> DataFrame:
    keyed = ckpt.key_by(rows, "k")
    return keyed.transformWithState(
        Numbered(), NUMBERED, "Append", "None", uid=uid, eventTimeColumnName="t"
    )


def deduplicated(job: Job) -> DataFrame:
    return numbered(timed(job, job.feed).dropDuplicates(["k", "v"]))


def joined(job: Job) -> DataFrame:
    left, other = timed(job, job.feed).alias("a"), timed(job, job.feed).alias("b")
    return left.join(other, F.expr("a.k = b.k AND a.t = b.t")).selectExpr("a.k", "a.v", "a.t")


def windows(rows: DataFrame) -> DataFrame:
    counts = rows.groupBy(F.window("t", "10 seconds"), "k").agg(F.max("n").alias("n"))
    return counts.selectExpr("k", "n", "window.start AS t")


def events(first: int, last: int) -> list[Event]:
    """Return each row twice, three rows apart, with a separate key for every third."""
    return [(f"k{v % 3}", v) for i in range(first, last) for v in (i, max(i - 3, 9))]


FILES = [events(10 * i + 9, 10 * i + 19) for i in range(4)]


def ids_of(metadata: CheckpointMetadata) -> dict[int, str]:
    return {
        **{each.operator_id: each.uid for each in metadata.operators},
        **{each.operator_id: each.name for each in metadata.spark_operators},
    }


def metadata_of(path: str) -> CheckpointMetadata:
    return read_metadata(LocalStorage(Path(path)))


@pytest.fixture
def job(job: Job) -> Job:
    return job.but(output=NUMBERED)


def interrupted(job: Job, feeds: list[Feed], conf: dict[str, str]) -> tuple[str, str, list[Any]]:
    """Run over the first two files; return a savepoint, the last checkpoint and the output."""
    for rows in FILES[:2]:
        for feed in feeds:
            feed.add(rows)
    with session_conf(job.spark, conf), job.running() as query:
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(job.base / "savepoints")).path
    checkpoint = newest_checkpoint(query)
    for feed in feeds:
        feed.add(*FILES[2:])
    return savepoint, checkpoint, job.result()


@pytest.mark.soak
def test_deduplicated_before(job: Job) -> None:
    """It restores from a savepoint and a checkpoint at its parallelism, restarts and rolls back."""
    job = job.but(plan=deduplicated)
    savepoint, checkpoint, before = interrupted(job, [job.feed], HDFS)
    whole = [(f"k{v % 3}", v // 3 - 2, datetime.fromtimestamp(v)) for v in range(9, 49)]
    assert before == in_order(whole[:20])
    assert ids_of(metadata_of(savepoint)) == {0: "op", 1: "dedupe"}
    kept = digests(Path(savepoint))
    forks = [job.but(location=f"loc{i}", out=f"out{i}") for i in range(3)]
    with session_conf(job.spark, {PARTITIONS: "3"}):
        with refused(ckpt.errors.RestoreError, "2 partitions", "dedupe", unchanged=job.base):
            forks[0].start(savepoint)
        plan = ckpt.location(savepoint).plan(forks[0].df())
        assert [row.operator for row in plan.refused] == ["Spark's dedupe"]
    assert "nothing changes" in str(ckpt.location(savepoint).plan(forks[0].df()))
    forks[0].run(savepoint)
    with session_conf(job.spark, ROCKSDB):  # Spark stays with the state store that it began with
        forks[1].run(checkpoint)
    for fork in forks[:2]:
        assert fork.result() == in_order(whole[20:])
    without = forks[2].but(plan=lambda job: numbered(timed(job, job.feed)))
    with refused(ckpt.errors.RestoreError, "dedupe", "allowNonRestoredState", unchanged=job.base):
        without.start(savepoint)
    writer = without.writer().restoreFrom(savepoint, allowNonRestoredState=True)
    writer.trigger(availableNow=True).start().awaitTermination()
    assert len(without.result()) == 40
    ckpt.location(str(job.location_path)).rollback(Path(checkpoint).name)
    job.run()  # into the same path, as there was no later epoch
    job.feed.add(FILES[3])  # nothing but duplicates
    forks[0].run()
    assert forks[0].result() == in_order(whole[20:])
    assert job.result() == in_order(whole)
    assert digests(Path(savepoint)) == kept
    with refused(ckpt.errors.IncompatibleStateError, "dedupe", unchanged=job.base):
        forks[0].but(plan=without.plan).run()


def join_before(job: Job) -> DataFrame:
    return numbered(joined(job).dropDuplicatesWithinWatermark(["k", "v"]))


def windows_after(job: Job) -> DataFrame:
    return windows(numbered(timed(job, job.feed).dropDuplicatesWithinWatermark(["k", "v"])))


def windows_before(job: Job) -> DataFrame:
    """Have event time in the whole column of windows, which the operator gets."""
    counts = (
        timed(job, job.feed).groupBy(F.window("t", "5 seconds"), "k").agg(F.max("v").alias("v"))
    )
    return numbered(counts.selectExpr("window", "k", "v", "window.end AS t"))


def sessions_before(job: Job) -> DataFrame:
    sessions = timed(job, job.feed).groupBy(F.session_window("t", "2 seconds"), "k")
    return numbered(
        sessions.agg(F.max("v").alias("v")).selectExpr(
            "session_window", "k", "v", "session_window.end AS t"
        )
    )


def sessions_after(job: Job) -> DataFrame:
    sessions = numbered(timed(job, job.feed)).groupBy(F.session_window("t", "2 seconds"), "k")
    return sessions.agg(F.max("n").alias("n")).selectExpr("k", "n", "session_window.start AS t")


def limited_before(job: Job) -> DataFrame:
    return numbered(timed(job, job.feed).limit(3 * len(FILES[0])))


def sparks_processor_before(job: Job) -> DataFrame:
    return numbered(numbered_by_spark(timed(job, job.feed)).selectExpr("k", "n AS v", "t"))


def numbered_by_spark(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").transformWithState(
        Numbered(), NUMBERED, "Append", "None", eventTimeColumnName="t"
    )


SESSIONS, PROCESSOR = "sessionWindowStateStoreSaveExec", "transformWithStateInPySparkExec"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("plan", "names", "conf", "from_savepoint"),
    [
        (join_before, ["op", "dedupeWithinWatermark", "symmetricHashJoin"], HDFS, False),
        (windows_after, ["stateStoreSave", "op", "dedupeWithinWatermark"], ROCKSDB, True),
        (windows_before, ["op", "stateStoreSave"], HDFS, True),
        pytest.param(sessions_before, ["op", SESSIONS], ROCKSDB, False, marks=pytest.mark.soak),
        pytest.param(sessions_after, [SESSIONS, "op"], HDFS, True, marks=pytest.mark.soak),
        pytest.param(limited_before, ["op", "globalLimit"], HDFS, False, marks=pytest.mark.soak),
        pytest.param(
            sparks_processor_before, ["op", PROCESSOR], ROCKSDB, True, marks=pytest.mark.soak
        ),
        pytest.param(
            sparks_processor_before, ["op", PROCESSOR], ROCKSDB, False, marks=pytest.mark.soak
        ),
    ],
)
def test_others_before_and_after(
    job: Job,
    plan: Callable[[Job], DataFrame],
    names: list[str],
    conf: dict[str, str],
    *,
    from_savepoint: bool,
) -> None:
    """The ids are Spark's; the output is the output of an uninterrupted query."""
    job = job.but(plan=plan)
    savepoint, checkpoint, before = interrupted(job, [job.feed], conf)
    assert ids_of(metadata_of(savepoint)) == dict(enumerate(names))
    fork = job.but(location="day=1,ü+fork", out="out-fork")
    whole = job.but(location="loc-whole", out="out-whole")
    with session_conf(job.spark, conf):
        fork.run(savepoint if from_savepoint else checkpoint)
        whole.run()
    assert before
    assert fork.result()
    assert in_order(before + fork.result()) == whole.result()


@pytest.mark.soak
def test_rolled_back_with_sparks_own_processor(job: Job) -> None:
    """Spark keeps whole paths of its schemas, which must be right once the location is in place."""
    job = job.but(plan=sparks_processor_before)
    _, checkpoint, _ = interrupted(job, [job.feed], ROCKSDB)
    whole = job.but(location="loc-whole", out="out-whole")
    with session_conf(job.spark, ROCKSDB):
        ckpt.location(str(job.location_path)).rollback(Path(checkpoint).name)
        job.run()
        whole.run()
    assert job.result() == whole.result()


@pytest.mark.slow
def test_ids_are_those_of_sparks_plan(job: Job) -> None:
    """The plans have several orders; nothing runs."""
    rows = timed(job, job.feed)
    ours = numbered(rows)
    sessions = rows.groupBy(F.session_window("t", "5 seconds"), "k").agg(F.max("v").alias("v"))
    plans = {
        ("op", "dedupe"): numbered(rows.dropDuplicates()),
        ("dedupe", "op"): ours.dropDuplicates(["k"]),
        ("dedupe", "op", "dedupe"): numbered(rows.distinct()).distinct(),
        ("stateStoreSave", "op"): windows(ours),
        ("globalLimit", "op"): ours.limit(3),
        ("op", "symmetricHashJoin"): numbered(joined(job)),
        ("op", "stateStoreSave"): numbered(
            rows.groupBy(F.window("t", "5 seconds"), "k")
            .agg(F.max("v").alias("v"))
            .selectExpr("k", "v", "window.end AS t")
        ),
        ("op", SESSIONS): numbered(sessions.selectExpr("k", "v", "session_window.end AS t")),
        ("op", "stateStoreSave", "dedupe"): ours.select("k").union(
            rows.dropDuplicates(["k"]).groupBy("k").count().select("k")
        ),
        ("second", "op", "dedupe"): numbered(
            numbered(rows.dropDuplicates(["k"])).selectExpr("k", "n AS v", "t"), "second"
        ),
        ("op", PROCESSOR): numbered(numbered_by_spark(rows).selectExpr("k", "n AS v", "t")),
    }
    mode = job.spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("simple")
    for wanted, df in plans.items():
        found = operators_of(df).in_order
        assert tuple(getattr(each, "uid", None) or each.name for each in found) == wanted
        text = df._jdf.queryExecution().explainString(mode)
        named = re.findall(r"^\W*([A-Z]\w+) .*opId = (\d+)", text, flags=re.MULTILINE)
        of_spark = {int(number): name for name, number in reversed(named)}
        assert [PHYSICAL[name] for name in wanted] == [of_spark[n] for n in sorted(of_spark)]
