"""Live reads across failed epochs, restarts and rollbacks, and of every kind of state and value."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.harness import BACKEND, BACKENDS, RETAINED, Feed, Job, await_checkpoint
from tests.query.model import Event, events_of
from tests.query.session_conf import session_conf
from tests.query.state.test_live_state import ROCKSDB, check_all
from tests.query.state.test_operator_state import OUTPUT, PARALLELISM, RULE, Ruled
from tests.query.timed import at, timed_feed

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize("provider", [HDFS, ROCKSDB], ids=["files", "rocksdb"])
def test_an_epoch_that_fails_is_never_read(job: Job, provider: str) -> None:
    """What Spark's state store has of an epoch without a commit is not read, before or after."""
    seen: list[int] = []
    fails = True

    def sink(batch: DataFrame, epoch: int) -> None:
        batch.count()
        batch.count()  # all subtasks wrote their handles to Spark's state store, twice
        if epoch:
            check_all(started[-1], events_of(0), 0)
            seen.append(epoch)
            if fails:
                raise RuntimeError("the sink is full")

    def start() -> ckpt.CheckpointedQuery:
        writer = ckpt.write_stream(job.df()).foreachBatch(sink)
        location = str(job.location_path)
        started.append(writer.option("checkpointLocation", location).start())
        return started[-1]

    started: list[ckpt.CheckpointedQuery] = []
    job.feed.add(events_of(0))
    with session_conf(job.spark, {PROVIDER: provider}):
        query = start()
        query.processAllAvailable()
        check_all(query, events_of(0), 0)
        job.feed.add(events_of(1))
        with pytest.raises(StreamingQueryException, match="the sink is full"):
            query.awaitTermination()
        fails = False
        query = start()
        try:
            query.processAllAvailable()
            assert seen == [1, 1]
            check_all(query, [*events_of(0), *events_of(1)], 1)
        finally:
            query.stop()


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize("backend", BACKENDS)
def test_after_a_rollback(job: Job, backend: str) -> None:
    """An epoch that ran again with other rows is read as it is now."""
    job = job.using({RETAINED: "3", BACKEND: backend})
    first: list[Event] = [("k1", 1), ("k2", 2)]
    job.feed.add(first)
    with job.running() as query:
        query.processAllAvailable()
        query.triggerCheckpoint()
        chosen = await_checkpoint(query, 0)
        job.feed.add([("k1", 3), ("k3", 3)])
        query.processAllAvailable()
        check_all(query, [*first, ("k1", 3), ("k3", 3)], 1)
    ckpt.location(str(job.location_path)).rollback(Path(chosen.path).name)
    later = sorted(job.feed.path.glob("f*.parquet"))[-1]
    later.unlink()
    job.feed.add([("k2", 5), ("k4", 4)])
    with job.but(out="out-again").running() as query:
        query.processAllAvailable()
        check_all(query, [*first, ("k2", 5), ("k4", 4)], 1)


@pytest.mark.slow
def test_operator_and_broadcast_state(job: Job, tmp_path: Path) -> None:
    """State that belongs to no key is read as a table, stamped like the others."""
    rules = Feed(tmp_path / "rules", RULE, "name string, factor long")

    def plan(job: Job) -> DataFrame:
        keyed = ckpt.key_by(job.stream(), "k").connectBroadcast(rules.stream(job.spark))
        return job.process(keyed)

    with session_conf(job.spark, {"spark.sql.shuffle.partitions": str(PARALLELISM)}):
        job = job.but(processor=Ruled, output=OUTPUT, plan=plan)
        rules.add([("a", 1), ("b", 2)])
        job.feed.add([("x", 1), ("y", 2)])
        with job.running() as query:
            query.processAllAvailable()
            state = query.state("op", "rules")
            assert sorted(state.to_pandas().values.tolist()) == [["a", 1], ["b", 2]]
            assert sorted(query.state("op", "seen").to_pandas()["v"]) == [1, 2]
            rules.add([("a", 3), ("b", None)])
            job.feed.add([("x", 5)])
            query.processAllAvailable()
            frame = state.to_pandas()
            assert frame.values.tolist() == [["a", 3]]
            seen = query.state("op", "seen").to_pandas()
            assert sorted(seen["v"]) == [1, 2, 5]
            assert set(seen["subtask"]) <= set(range(PARALLELISM))
            assert seen.attrs == frame.attrs
            with pytest.raises(
                ckpt.errors.StateUseError, match="belongs to no key: read it with to_pan"
            ):
                state.get("a")


class Aged(StatefulProcessor):
    """Items of a list and entries of a map age one by one, with the watermark."""

    def init(self, handle: Any) -> None:
        ttl = ckpt.StateTtlConfig(10_000, "event")
        self.items = handle.getListState("items", "v long", ttl)
        self.entries = handle.getMapState("entries", "b long", "v long", ttl)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.items.appendValue((row.v,))
            self.entries.updateValue((row.v,), (row.v,))
        return iter(())

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_items_and_entries_that_age(job: Job, tmp_path: Path) -> None:
    """Each item and entry is hidden when its own time is over."""
    feed = timed_feed(tmp_path / "timed")
    job = job.but(feed=feed, processor=Aged, output="k string", watermark="ts")
    with job.running() as query:
        items, entries = (query.state("op", name) for name in ("items", "entries"))
        for second, v, kept in ((0, 1, [1]), (6, 2, [1, 2]), (12, 3, [2, 3]), (60, 4, None)):
            feed.add([("a" if kept else "z", v, at(second))])
            query.processAllAvailable()
            assert items.get_with_epoch("a").watermark_ms == at(second).timestamp() * 1000
            for state in (items, entries):
                shown = state.get("a")
                assert (None if shown is None else sorted(each["v"] for each in shown)) == kept
                frame = state.to_pandas()
                assert sorted(frame["v"]) == (kept or [4])
        assert [item["v"] for item in items.get("z")] == [4]


VALUES = (
    "n long, k string, flag boolean, ratio double, small float, data binary, day date, "
    "time timestamp, price decimal(10,2), items array<int>, inner struct<a: int, b: string>"
)
VALUE = (
    7, "other", True, 0.1, 0.1, b"\x00\xff", datetime.date(2024, 2, 29),
    datetime.datetime(2024, 2, 29, 12, 30, 15, 123456),  # noqa: DTZ001  # as PySpark
    Decimal("12.30"), [1, None], (1, "b"),
)  # fmt: skip


class Typed(StatefulProcessor):
    """Keep a value of many types, one of simple types, and one that is null in each field."""

    def init(self, handle: Any) -> None:
        self.many = handle.getValueState("many", VALUES)
        self.simple = handle.getValueState("simple", "k string, ratio double, data binary")
        self.null = handle.getValueState("null", "n long, text string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for _ in rows:
            self.many.update(VALUE)
            self.simple.update(("é", float("inf"), b"\x01"))
            self.null.update((None, None))
        return iter(())

    def close(self) -> None:
        pass


def test_values_are_those_of_the_table(job: Job, tmp_path: Path) -> None:
    """A live value equals what the snapshot of its epoch has, whatever its types and names."""
    job = job.but(processor=Typed, output="k string")
    job.feed.add([("a", 1)])
    with job.running() as query:
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(tmp_path / "savepoints"))
        with ckpt.location(savepoint.path).state() as snapshot:
            for name in ("many", "simple", "null"):
                found = query.state("op", name).get("a")
                assert found == snapshot.state("op", name).get("a")
                assert list(found) == snapshot.state("op", name).schema.names[1:]
        assert query.state("op", "simple").get("a") == {
            "value_k": "é", "ratio": float("inf"), "data": b"\x01",
        }  # fmt: skip
        assert query.state("op", "null").get("a") == {"n": None, "text": None}
