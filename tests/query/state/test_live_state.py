"""Live reads of a running query: exactly the newest committed epoch, whatever else happens."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.checkpoint import handles
from pyspark_ckpt.checkpoint.handles import read_handles
from pyspark_ckpt.formats.handle import decode_handle
from pyspark_ckpt.live.newest_handles import CommittedEpoch, CommittedEpochs
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.session import reading_session
from pyspark_ckpt.spark.state_changes import handles_in_changes
from pyspark_ckpt.storage.open import LocalStorage, open_storage
from pyspark_ckpt.stored import replica
from tests.query.harness import BACKEND, BACKENDS, INLINE, OFTEN, RETAINED, Feed, Job
from tests.query.model import Count, Event, events_of, states_after
from tests.query.timed import at, timed_feed

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
MATERIALIZE = "spark.ckpt.internal.state.changelog.materialize"
REBASED = {f"{MATERIALIZE}.max-segments": "2", f"{MATERIALIZE}.min-size": "1b", RETAINED: "1"}
KEYS = [f"k{i}" for i in range(5)]


def joined(epochs: Iterable[list[Event]]) -> list[Event]:
    return list(chain.from_iterable(epochs))


def in_order(entries: Any) -> Any:
    return None if entries is None else sorted(entries, key=lambda entry: entry["bucket"])


def check_all(query: ckpt.CheckpointedQuery, events: list[Event], epoch: int) -> None:
    """Check single reads and whole tables of all states against the model."""
    model = states_after(events)
    count, recent, tally = (query.state("op", name) for name in ("count", "recent", "tally"))
    for key in [*KEYS, "nobody"]:
        wanted = model.get(key, (None, None, None))
        got = [state.get_with_epoch(key) for state in (count, recent, tally)]
        assert [each.epoch for each in got] == [epoch] * 3
        assert (got[0].value, got[1].value, in_order(got[2].value)) == wanted
    frame = count.to_pandas()
    assert frame.attrs["epoch"] == epoch
    assert {k: {"n": n, "total": total} for k, n, total in frame.values.tolist()} == {
        key: value for key, (value, _, _) in model.items()
    }
    table = tally.to_arrow()
    assert table.schema.metadata[b"epoch"] == str(epoch).encode()
    assert table.num_rows == sum(len(entries or ()) for _, _, entries in model.values())


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_epoch(job: Job, backend: str) -> None:
    """Epoch by epoch, with idle subtasks and deletes, every kind of keyed state is as it was."""
    job = job.using(REBASED, **{BACKEND: backend, INLINE: "100b"})
    events: list[Event] = []
    with job.running() as query:
        for epoch in range(8):
            rows = events_of(epoch) if epoch % 3 else [("k1", epoch)]
            job.feed.add(rows)
            events += rows
            query.processAllAvailable()
            check_all(query, events, epoch)
        assert query.state("op", "count").get_with_epoch("k1").watermark_ms == 0
        assert '"logOffset":7' in query.state("op", "count").get_with_epoch("k1").offsets[0]


@pytest.mark.soak
def test_beside_a_query_that_checkpoints_every_epoch(job: Job) -> None:
    """No read is older than what was committed before it, or differs from its epoch's state."""
    epochs = 12
    events = [events_of(epoch, rows=40) for epoch in range(epochs)]
    models = [states_after(joined(events[: epoch + 1])) for epoch in range(epochs)]
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    job = job.using({**OFTEN, **REBASED})
    job.feed.add(events[0])
    failures: list[BaseException] = []
    seen: list[int] = []
    end = threading.Event()

    def read(query: ckpt.CheckpointedQuery, number: int) -> None:
        chance = random.Random(seed + number)
        last = 0
        try:
            while not end.wait(0.005):  # the query needs the processors too
                commits = [p.name for p in (job.location_path / "commits").iterdir()]
                committed = max(int(name) for name in commits if name.isdecimal())
                key = chance.choice(KEYS)
                name = chance.choice(("count", "recent", "tally"))
                got = query.state("op", name).get_with_epoch(key)
                assert got.epoch >= max(committed, last)
                last = got.epoch
                place = ("count", "recent", "tally").index(name)
                value = in_order(got.value) if name == "tally" else got.value
                assert value == models[last].get(key, (None, None, None))[place], (name, key, last)
                seen.append(last)
                if chance.random() < 0.05:
                    frame = query.state("op", "count").to_pandas()
                    found = {k: n for k, n, _ in frame.values.tolist()}
                    model = models[frame.attrs["epoch"]]
                    assert found == {k: value["n"] for k, (value, _, _) in model.items()}
        except BaseException as exc:
            failures.append(exc)

    with job.running() as query:
        query.processAllAvailable()
        threads = [threading.Thread(target=read, args=(query, number)) for number in range(2)]
        for thread in threads:
            thread.start()
        for rows in events[1:]:
            job.feed.add(rows)
        query.processAllAvailable()
        end.set()
        for thread in threads:
            thread.join()
        check_all(query, joined(events), epochs - 1)
    assert not failures, failures
    assert len(set(seen)) > 2  # it did read while epochs were committed


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["to_pandas", "get"])
def test_a_read_that_another_one_overtakes(
    job: Job, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    """A newer epoch is committed and read after a read has looked up the epoch to read."""
    epochs = [[(key, epoch) for key in KEYS] for epoch in range(2)]
    look_up = CommittedEpochs.newest
    with job.running() as query:
        count = query.state("op", "count")
        job.feed.add(epochs[0])
        query.processAllAvailable()
        assert len({count.get_with_epoch(key).epoch for key in KEYS}) == 1

        def overtaken(self: CommittedEpochs) -> CommittedEpoch:
            committed = look_up(self)
            monkeypatch.setattr(CommittedEpochs, "newest", look_up)
            job.feed.add(epochs[1])
            query.processAllAvailable()
            if slow == "get":
                assert count.to_pandas().attrs["epoch"] == 1
            else:
                assert count.get_with_epoch(KEYS[0]).epoch == 1
            return committed

        monkeypatch.setattr(CommittedEpochs, "newest", overtaken)
        if slow == "get":
            read = count.get_with_epoch(KEYS[0])
            found, epoch = {KEYS[0]: read.value["n"]}, read.epoch
        else:
            frame = count.to_pandas()
            found = {k: n for k, n, _ in frame.values.tolist()}
            epoch = frame.attrs["epoch"]
        model = states_after(joined(epochs[: epoch + 1]))
        assert found == {key: model[key][0]["n"] for key in found}
        assert len(found) in (1, len(KEYS))


@pytest.mark.slow
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_writes_that_leave_memory(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was put into the copy on disk is read from there, deletes included."""
    monkeypatch.setattr(replica, "_FOLD_SEGMENTS", 2)
    monkeypatch.setattr(replica, "_STEP_ENTRIES", 3)
    events: list[Event] = []
    with job.running() as query:
        for epoch in range(8):
            job.feed.add(events_of(epoch))
            events += events_of(epoch)
            query.processAllAvailable()
            check_all(query, events, epoch)


@pytest.mark.slow
def test_changes_files_have_what_spark_reads(job: Job, spark: SparkSession) -> None:
    """The handles read without Spark are those that Spark reads, epoch by epoch."""
    job.feed.add(*[events_of(epoch) for epoch in range(3)], [("k1", 1)])
    job.run()
    location = open_storage(str(job.location_path))
    compared, log = 0, SparkLog(LocalStorage(job.location_path))
    for epoch in range(4):
        of_spark = read_handles(reading_session(spark), log, epoch, 0, 2)
        for handle in of_spark:
            found = handles_in_changes(location, 0, handle.subtask, epoch)
            assert found is not None
            if handle.epoch == epoch:
                assert [decode_handle(each) for each in found] == [handle]
                compared += 1
            else:
                assert found == []
    assert compared > 4


@pytest.mark.slow
def test_with_sparks_other_state_store(job: Job, spark: SparkSession) -> None:
    """With a store whose files are not read, Spark reads the handles."""
    name = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(name)
    spark.conf.set(name, ROCKSDB)
    try:
        job.feed.add(events_of(0), [("k1", 5)])
        with job.running() as query:
            query.processAllAvailable()
            jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(None)
            got = query.state("op", "count").get_with_epoch("k1")
            assert got.value == states_after([*events_of(0), ("k1", 5)])["k1"][0]
            assert spark.sparkContext.statusTracker().getJobIdsForGroup(None) == jobs
            check_all(query, [*events_of(0), ("k1", 5)], 1)
    finally:
        spark.conf.set(name, before)


@pytest.mark.slow
def test_a_gap_of_many_epochs(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that is out of date is built again from newer files."""
    monkeypatch.setattr(handles, "_MOST_FILES", 2)
    job = job.using(REBASED)
    job.feed.add(events_of(0))
    with job.running() as query:
        query.processAllAvailable()
        check_all(query, events_of(0), 0)
        job.feed.add(*[events_of(epoch) for epoch in range(1, 7)])
        query.processAllAvailable()
        check_all(query, joined(map(events_of, range(7))), 6)


@pytest.mark.soak
def test_restored_and_started_again(job: Job, tmp_path: Path) -> None:
    """A fork at another parallelism, and a query that continues, read what they restored."""
    events = [*events_of(0), *events_of(1)]
    job.feed.add(events_of(0), events_of(1))
    with job.running() as query:
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(tmp_path / "savepoints"))
    fork = job.but(location="fork", out="fork-out")
    before = job.spark.conf.get("spark.sql.shuffle.partitions")
    job.spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        with fork.running(restore=savepoint.path) as query:
            query.processAllAvailable()
            check_all(query, events, 1)
            job.feed.add([("k2", 3)])
            query.processAllAvailable()
            check_all(query, [*events, ("k2", 3)], 2)
    finally:
        job.spark.conf.set("spark.sql.shuffle.partitions", before)
    with job.running() as query:
        query.processAllAvailable()
        check_all(query, [*events, ("k2", 3)], 2)


@pytest.mark.slow
def test_what_cannot_be_read(job: Job) -> None:
    """Errors name the query, operator and state, and say what to do."""
    with job.running() as query:
        with pytest.raises(ckpt.errors.UnknownEpochError, match="committed no epoch yet"):
            query.state("op", "count").get("k1")
        with pytest.raises(ckpt.errors.StateUseError, match="no operator 'other': it has 'op'"):
            query.state("other", "count")
        with pytest.raises(ckpt.errors.StateUseError, match="no state 'other': it has 'count'"):
            query.state("op", "other")
        job.feed.add(events_of(0))
        query.processAllAvailable()
        with pytest.raises(ckpt.errors.StateValueError, match="one value for each key column"):
            query.state("op", "count").get("k1", "k2")
        live = query.state("op", "count")
        assert live.get_with_epoch("k1").epoch == 0
    with pytest.raises(ckpt.errors.StateUseError, match="the query has ended"):
        live.get("k1")
    with pytest.raises(ckpt.errors.StateUseError, match="the query has ended"):
        live.to_pandas()


class Ages(StatefulProcessor):
    """Write a state that ages with the watermark, one that is over at once, and one that stays."""

    def init(self, handle: Any) -> None:
        ages = {"event": (10_000, "event"), "gone": (1, "processing"), "kept": (3_600_000,)}
        self.states = [
            handle.getValueState(name, "v long", ckpt.StateTtlConfig(*ttl))
            for name, ttl in ages.items()
        ]

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            for state in self.states:
                state.update((row.v,))
        return iter(())

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_time_to_live(job: Job, tmp_path: Path) -> None:
    """An entry whose time is over is hidden, as it is from the processor in the next epoch."""
    feed: Feed = timed_feed(tmp_path / "timed")
    job = job.but(feed=feed, processor=Ages, output="k string", watermark="ts")
    feed.add([("a", 1, at(0)), ("b", 2, at(0))])
    with job.running() as query:
        query.processAllAvailable()
        event, gone, kept = (query.state("op", name) for name in ("event", "gone", "kept"))
        assert event.get("a")["v"] == 1
        assert gone.get("a") is None
        assert kept.get("a")["v"] == 1
        feed.add([("b", 3, at(20))])
        query.processAllAvailable()
        assert event.get("a") is None
        assert event.get("b")["v"] == 3
        assert event.get_with_epoch("b").watermark_ms == at(20).timestamp() * 1000
        assert kept.to_pandas()["k"].sort_values().tolist() == ["a", "b"]
        assert event.to_pandas()["k"].tolist() == ["b"]
        assert gone.to_pandas().empty


class Digits(StatefulProcessor):
    """Keep the value of each row, and null for 0."""

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.n.update((row.v or None,))
        return iter(())

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_an_integer_beside_a_null_keeps_its_digits(job: Job) -> None:
    """A frame of doubles would not have 2**60 + 1."""
    job = job.but(processor=Digits, output="k string")
    job.feed.add([("a", 0), ("b", 2**60 + 1)])
    with job.running() as query:
        query.processAllAvailable()
        frame = query.state("op", "n").to_pandas()
    assert frame.sort_values("k")["n"].tolist() == [None, 2**60 + 1]


class Total(Count):
    """The second operator of a query."""

    OUTPUT: ClassVar = "k string, n long"

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("total", "n long")


@pytest.mark.slow
def test_two_operators(job: Job) -> None:
    """Each operator has its own states."""

    def plan(job: Job) -> DataFrame:
        first = ckpt.key_by(job.stream(), "k").transformWithState(
            Count(), Total.OUTPUT, "Append", "None", uid="first"
        )
        return ckpt.key_by(first, "k").transformWithState(
            Total(), Total.OUTPUT, "Append", "None", uid="second"
        )

    job = job.but(plan=plan)
    job.feed.add([("a", 1), ("a", 2), ("b", 1)])
    with job.running() as query:
        query.processAllAvailable()
        assert query.state("first", "count").get("a") == {"n": 2}
        assert query.state("second", "total").get("b") == {"n": 1}
        with pytest.raises(ckpt.errors.StateUseError, match="no state 'count': it has 'total'"):
            query.state("second", "count")
