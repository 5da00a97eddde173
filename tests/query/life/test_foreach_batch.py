"""``foreachBatch`` whose actions come from several threads: exact, or refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt
from pyspark_ckpt.spark.query import ComputedStates
from tests.query.harness import INLINE, Job, completed, files_below
from tests.query.model import events_of, expected, in_order

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Sinks:
    """Two sinks that get each epoch by two actions; which thread runs them depends on the epoch."""

    def __init__(self, epochs_before: int = 0) -> None:
        self.first: dict[int, list[Any]] = {}
        self.second: dict[int, list[Any]] = {}
        self.counts: dict[int, int] = {}
        self.epochs_before = epochs_before

    def __call__(self, df: DataFrame, epoch: int) -> None:
        ways = [self._two_threads, self._main_then_thread, self._with_counts, self._inheriting]
        ways[epoch % len(ways)](df, epoch)

    def _two_threads(self, df: DataFrame, epoch: int) -> None:
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.submit(df.collect), pool.submit(df.collect)
            self.first[epoch], self.second[epoch] = first.result(), second.result()

    def _main_then_thread(self, df: DataFrame, epoch: int) -> None:
        self.first[epoch] = df.rdd.map(lambda row: row).collect()
        with ThreadPoolExecutor(1) as pool:
            self.second[epoch] = pool.submit(df.collect).result()

    def _with_counts(self, df: DataFrame, epoch: int) -> None:
        with ThreadPoolExecutor(2) as pool:
            count, rows = pool.submit(df.count), pool.submit(df.collect)
            self.counts[epoch], self.first[epoch] = count.result(), rows.result()
        self.second[epoch] = df.union(df.limit(0)).collect()

    def _inheriting(self, df: DataFrame, epoch: int) -> None:
        def collect(into: dict[int, list[Any]]) -> None:
            into[epoch] = df.collect()

        threads = [InheritableThread(collect, args=(sink,)) for sink in (self.first, self.second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def all(self) -> list[Any]:
        for epoch, count in self.counts.items():
            assert count == len(self.first[epoch])
        assert set(self.first) == set(self.second)
        for epoch, rows in self.first.items():
            assert in_order(rows) == in_order(self.second[epoch])
        return in_order([row for rows in self.first.values() for row in rows])


def run(job: Job, sink: Callable[[DataFrame, int], None]) -> ckpt.CheckpointedQuery:
    writer = ckpt.write_stream(job.df()).foreachBatch(sink).outputMode("append")
    writer = writer.option("checkpointLocation", str(job.location_path)).option(INLINE, "0b")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def run_in_pyspark(job: Job, sink: Callable[[DataFrame, int], None]) -> None:
    conf = job.spark.conf
    before = conf.get(PROVIDER)
    conf.set(PROVIDER, ROCKSDB)
    try:
        keyed = job.feed.stream(job.spark).groupBy(*job.keys)
        df = keyed.transformWithState(job.processor(), job.output, "Append", "None")
        writer = df.writeStream.foreachBatch(sink).outputMode("append")
        writer = writer.option("checkpointLocation", str(job.base / "loc-pyspark"))
        writer.trigger(availableNow=True).start().awaitTermination()
    finally:
        conf.set(PROVIDER, before)


@pytest.mark.soak
def test_actions_from_any_thread_give_what_pyspark_gives(job: Job) -> None:
    """The threads change in each epoch, from the first one on and after a restart."""
    job.feed.add(*map(events_of, range(5)))
    sinks = Sinks()
    query = run(job, sinks)
    assert max(row.epoch for row in completed(query)) == 4
    assert {row.status for row in query.checkpoints().collect()} == {"completed"}
    theirs = Sinks()
    run_in_pyspark(job, theirs)
    assert sinks.all() == theirs.all() == expected(job.feed.rows)
    job.feed.add(events_of(5), events_of(6))
    assert max(row.epoch for row in completed(run(job, sinks))) == 6
    assert sinks.all() == expected(job.feed.rows)
    names = [path.name for path in files_below(job.checkpoint_path / "taskowned")]
    assert names
    assert all(re.search(r"-[0-6]-[0-9a-f]{16}\.chg$", name) for name in names)


@pytest.mark.soak
def test_a_straggler_fails_by_name_and_writes_nothing(job: Job) -> None:
    """An action on the DataFrame of an epoch that is over, and an RDD action of another thread."""
    job.feed.add(events_of(0), events_of(1))
    kept: list[DataFrame] = []
    got: list[Any] = []
    messages: list[str] = []

    def refused(action: Callable[[], Any]) -> None:
        before = files_below(job.checkpoint_path / "taskowned")
        with pytest.raises(PySparkException) as caught, ThreadPoolExecutor(1) as pool:
            pool.submit(action).result()
        messages.append(str(caught.value))
        assert files_below(job.checkpoint_path / "taskowned") == before

    def sink(df: DataFrame, epoch: int) -> None:
        got.extend(df.collect())
        refused(lambda: df.rdd.collect())
        if kept:
            refused(kept[0].collect)
        kept.append(df)

    run(job, sink)
    refused(kept[1].collect)
    assert ["does not know its query" in text for text in messages] == [True, True, False, False]
    assert "UnknownEpochError" in messages[2]
    assert "another epoch" in messages[2]
    assert "outside of the foreachBatch function" in messages[3]
    assert all("operator 'op'" in text for text in messages)
    job.feed.add(events_of(2))
    run(job, lambda df, _: got.extend(df.collect()))
    assert in_order(got) == expected(job.feed.rows)


@pytest.mark.soak
def test_the_id_of_an_epoch(job: Job) -> None:
    """The id is equal if an epoch is repeated, differs after a rollback, and exists only there."""
    ids: list[ckpt.results.EpochId] = []
    fails = [True]

    def sink(df: DataFrame, epoch: int) -> None:
        df.count()
        ids.append(ckpt.current_epoch())
        assert ids[-1].number == epoch
        with (
            ThreadPoolExecutor(1) as pool,
            pytest.raises(ckpt.errors.UnknownEpochError, match="pass"),
        ):
            pool.submit(ckpt.current_epoch).result()
        if epoch == 1 and fails.pop():
            raise ConnectionError("cut off")

    job.feed.add(events_of(0), events_of(1))
    with pytest.raises(PySparkException, match="cut off"):
        run(job, sink)
    fails += [False]
    query = run(job, sink)
    assert [str(each) for each in ids] == [f"{query.id}/{number}" for number in (0, 1, 1)]
    assert ids[1] == ids[2]
    assert not ids[0].rolled_back
    first = max(completed(query), key=lambda row: row.checkpoint_id)
    job.feed.add(events_of(2))
    run(job, sink)
    rolled = ckpt.location(str(job.location_path)).rollback(f"chk-{first.checkpoint_id}")
    again = run(job, sink)
    before, after = ids[-2:]
    assert before.number == after.number == 2
    assert before.query_id == query.id
    assert after.query_id == again.id != query.id
    assert after.rolled_back == (ckpt.results.RolledBack(query.id, 1),)
    ckpt.location(str(job.location_path)).rollback(Path(rolled.kept).name)
    job.feed.add(events_of(3))
    run(job, sink)
    assert ids[-1] == ckpt.results.EpochId(query.id, 3, (ckpt.results.RolledBack(again.id, -1),))
    with pytest.raises(ckpt.errors.UnknownEpochError, match="outside of a foreachBatch"):
        ckpt.current_epoch()


def test_another_sink_chosen_after_foreach_batch(job: Job) -> None:
    """The sink that is chosen last counts, as in Spark."""
    job.feed.add(events_of(0))
    writer = ckpt.write_stream(job.df()).foreachBatch(lambda *_: pytest.fail("called"))
    writer = writer.format("parquet").option("checkpointLocation", str(job.location_path))
    writer.trigger(availableNow=True).start(str(job.base / job.out)).awaitTermination()
    assert job.result() == expected(job.feed.rows)


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["HDFSBacked", "RocksDB"])
@pytest.mark.parametrize("seen_in", ["plan", "files"])
@pytest.mark.parametrize("action", ["one subtask each", "take", "nothing"])
@pytest.mark.soak_variants
def test_an_epoch_whose_state_is_not_computed_is_not_committed(
    job: Job, action: str, seen_in: str, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark would commit it, and the state of the other subtasks would be gone for good.

    Over Spark Connect there is no plan to be seen. Spark 4.1 and later look for the state, too.
    """
    job = job.but(spark=job.spark.newSession())
    job.spark.conf.set("spark.sql.streaming.stateStore.commitValidation.enabled", "false")
    job.spark.conf.set(PROVIDER, ROCKSDB.replace("RocksDB", provider))
    if seen_in == "files":
        monkeypatch.setattr(ComputedStates, "_in_plan", lambda *_: None)
    rows: list[Any] = []
    is_mended = False

    def of_subtask(df: DataFrame, subtask: int) -> list[Any]:
        return df.sparkSession.sparkContext.runJob(df.rdd, list, [subtask])

    def partly(df: DataFrame, epoch: int) -> None:
        subtasks = range(df.rdd.getNumPartitions())
        if epoch == 0:
            df.isEmpty()  # an action over some rows does no harm next to one over all
            rows.extend(df.collect())
        elif is_mended:  # nor do several that are over all rows together
            rows.extend(row for subtask in subtasks for row in of_subtask(df, subtask))
        elif action == "take":
            df.take(1)
        elif action == "one subtask each":  # as many tasks as one action over all has
            for _ in subtasks:
                of_subtask(df, subtasks[-1])

    def start() -> ckpt.CheckpointedQuery:
        writer = ckpt.write_stream(job.df()).foreachBatch(partly).outputMode("append")
        return writer.option("checkpointLocation", str(job.location_path)).start()

    job.feed.add(events_of(0))
    query = start()
    query.processAllAvailable()
    job.feed.add(events_of(1))
    with pytest.raises(ckpt.errors.ConfigurationError, match="no action over all rows"):
        query.awaitTermination(120)
    assert {path.name for path in (job.location_path / "commits").glob("[0-9]")} == {"0"}
    is_mended = True
    query = start()
    query.processAllAvailable()
    query.stop()
    assert in_order([tuple(row) for row in rows]) == expected(job.feed.rows)
