"""A candidate next to a running query: what differs is found and named, and nothing else is."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor, StreamingQueryListener

import pyspark_ckpt as ckpt
from pyspark_ckpt.api.shadowing import shadow_of_location
from pyspark_ckpt.query.coordinator import CheckpointCoordinator
from pyspark_ckpt.shadowing.report import Rules
from pyspark_ckpt.storage.open import LocalStorage
from tests.query.harness import BACKEND, BACKENDS, INTERVAL, Feed, Job, digests, until
from tests.query.leftovers import metadata_json
from tests.query.session_conf import session_conf
from tests.query.timed import at, timed_feed

PARTITIONS = "spark.sql.shuffle.partitions"
KEYS = [f"k{number}" for number in range(12)]
OUTPUT = "k string, what string, n long, mean double"
SHORT_MS = 3_000


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return timed_feed(tmp_path / "in")


class Everything(StatefulProcessor):
    """Keep state of all kinds, with timers and times to live, and emit a row per call."""

    planted: tuple[str, int] | None = None

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long, x double")
        self.values = handle.getListState("values", "v long")
        self.recent = handle.getMapState(
            "recent", "v long", "ts long", ckpt.StateTtlConfig(SHORT_MS, "event")
        )
        self.fresh = handle.getValueState("fresh", "v long", ckpt.StateTtlConfig(1))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, x = self.total.get() or (0, 0.0)
        for row in rows:
            n, x = n + 1, x + row.v / 3
            self.values.appendValue((row.v,))
            self.recent.updateValue((row.v,), (int(row.ts.timestamp()),))
            self.handle.registerTimer(int(row.ts.timestamp() * 1000) + 4_000)
        if self.planted == (key[0], n):
            n += 1
        self.total.update((n, x))
        self.fresh.update((n,))
        yield Row(k=key[0], what=f"{len(list(self.recent.keys()))} recent", n=n, mean=x / n)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        n, x = self.total.get() or (0, 0.0)
        yield Row(k=key[0], what="timer", n=n, mean=x)

    def close(self) -> None:
        pass


class Planted(Everything):
    planted = ("k7", 6)


class PlantedOnce(Everything):
    planted = ("k77777", 2)


class Float(Everything):
    """Sums in another order of magnitude, which differs in the last bits only."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in super().handleInputRows(key, rows, timerValues):
            yield Row(k=row.k, what=row.what, n=row.n, mean=row.mean * (1 + 1e-13))


class Fails(Everything):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        msg = "no luck"
        raise ValueError(msg)


@pytest.fixture
def job(job: Job) -> Job:
    job = job.but(processor=Everything, output=OUTPUT, time_mode="EventTime", watermark="ts")
    return job.using({INTERVAL: "1h"})


def epoch_of(job: Job, second: int) -> None:
    """Add rows of all keys around a second; some of them are late."""
    chance = random.Random(second)
    rows = [(key, chance.randrange(100), at(second + chance.random())) for key in KEYS * 2]
    rows += [(key, 1, at(second - 5 + chance.random())) for key in KEYS[:3]]
    chance.shuffle(rows)
    job.feed.add(rows)


def in_another_order(job: Job, processor: type = Everything) -> Callable[[], DataFrame]:
    """Return a program whose subtasks get the rows in another order."""
    other = job.but(processor=processor)

    def build() -> DataFrame:
        rows = other.stream().repartition(3)
        return other.process(ckpt.key_by(rows, *other.keys))

    return build


def compared(shadow: ckpt.Shadow, query: ckpt.CheckpointedQuery) -> ckpt.results.ShadowReport:
    """Wait until the shadow has compared what the query has committed."""
    query.processAllAvailable()
    last = query._coordinator.files.spark_log.committed_epoch()
    until(lambda: shadow.report.last_epoch == last or not shadow.isActive, "no comparison")
    assert shadow.exception() is None, shadow.exception()
    return shadow.report


def begun(job: Job) -> ckpt.CheckpointedQuery:
    epoch_of(job, 0)
    epoch_of(job, 2)
    query = job.start()
    query.processAllAvailable()
    return query


@pytest.mark.soak
@pytest.mark.parametrize("backend", BACKENDS)
def test_programs_that_agree_have_no_difference(job: Job, backend: str) -> None:
    """With timers, times to live, late rows, another order, other subtasks, another backend."""
    with session_conf(job.spark, {PARTITIONS: "2"}):
        query = begun(job.using({BACKEND: backend}))
        other = next(each for each in BACKENDS if each != backend)
        before = digests(job.base / job.out)
        with ckpt.shadow(
            query, in_another_order(job), parallelism=3, options={BACKEND: other}, tolerance=1e-12
        ) as shadow:
            assert digests(job.base / job.out) == before
            for second in (5, 9, 14):
                epoch_of(job, second)
                query.processAllAvailable()
            report = compared(shadow, query)
            print(report)
            assert report.is_equal, report
            assert report.epochs >= 6  # with those in which timers fire without rows
            assert report.state_comparisons == report.epochs
            assert report.rows > 3 * len(KEYS)
            assert report.notes == ()
        query.stop()


def test_a_planted_difference_is_named(job: Job) -> None:
    with session_conf(job.spark, {PARTITIONS: "2"}):
        query = begun(job)
        with ckpt.shadow(query, in_another_order(job, Planted), epochs=1) as shadow:
            assert shadow.report.epochs == 0
            with pytest.raises(ckpt.errors.ConfigurationError, match="no epoch was compared"):
                shadow.promote(str(job.base / "savepoints"))
            epoch_of(job, 5)
            query.processAllAvailable()
            assert shadow.awaitTermination(60)
            assert shadow.report.stopped == "1 epochs were compared"
            with pytest.raises(
                ckpt.errors.ConfigurationError, match=r"differs from the original(?s:.)*k7"
            ):
                shadow.promote(str(job.base / "savepoints"))
        report = shadow.report
        print(report)
        found = {(each.place, each.change, each.key["k"]): each for each in report.samples}
        places = ("output", "op.total", "op.fresh")
        assert set(found) == {(place, "changed", "k7") for place in places}
        output = found["output", "changed", "k7"]
        assert set(output.columns) == {"n", "mean"}
        assert output.old is not None
        assert output.new is not None
        assert (output.old["n"], output.new["n"]) == (6, 7)
        assert found["op.total", "changed", "k7"].columns == ("n",)
        assert "k7" in report._repr_html_()
        query.stop()


class Started(StreamingQueryListener):
    """The queries of a session that have started."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def onQueryStarted(self, event: Any) -> None:
        self.ids.append(str(event.id))

    def onQueryProgress(self, event: Any) -> None: ...

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None: ...


@pytest.mark.soak
def test_forks_have_the_settings_of_the_query_in_sessions_of_their_own(job: Job) -> None:
    """Whoever waits with ``awaitAnyTermination`` waits on, and the session may be changed."""
    streams, started = job.spark.streams, Started()
    with session_conf(job.spark, {PARTITIONS: "2"}):
        with session_conf(job.spark, {BACKEND: "heap"}):
            query = begun(job)
        streams.addListener(started)
        streams.resetTerminated()
        waits = threading.Thread(target=streams.awaitAnyTermination, daemon=True)
        waits.start()
        options = {BACKEND: "rocksdb"}
        with ckpt.shadow(query, in_another_order(job), epochs=1, options=options) as shadow:
            epoch_of(job, 5)
            query.processAllAvailable()
            assert shadow.awaitTermination(60)
            assert shadow.report.is_equal, shadow.report
            place = Path(shadow.directory.removeprefix("file://"))
            backends = {
                path.parts[-3]: metadata_json(path)["operators"][0]["backend"]
                for path in place.glob("*/pyspark_ckpt/chk-*")
            }
            assert backends == {"original": "heap", "candidate": "rocksdb"}
        failing = ckpt.shadow(query, job.but(processor=Fails).df())
        epoch_of(job, 9)
        query.processAllAvailable()
        with pytest.raises(ckpt.errors.ProcessorError, match="no luck"):
            failing.awaitTermination(60)
        failing.discard()
        assert waits.is_alive()
        assert started.ids == []
        query.stop()
        waits.join(60)
        assert not waits.is_alive()
        streams.removeListener(started)


@pytest.mark.soak
def test_what_is_refused_before_a_savepoint_is_taken(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*_: Any, **__: Any) -> None:
        pytest.fail("a savepoint was taken")

    def no_stream() -> DataFrame:
        return job.stream()  # without an operator

    monkeypatch.setattr(CheckpointCoordinator, "trigger_savepoint", taken)
    other = job.base / "other"
    other.mkdir()
    (other / "metadata").write_text('{"id": "of another query"}')
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job, 0)
        query = job.start()
        query.processAllAvailable()
        before = digests(job.location_path)
        with pytest.raises(ckpt.errors.ConfigurationError, match="keys has missing"):
            ckpt.shadow(query, job.df, keys=["missing"])
        with pytest.raises(
            ckpt.errors.ConfigurationError, match=r"options has path: give spark.ckpt."
        ):
            ckpt.shadow(query, job.df, options={"path": "elsewhere"})
        with pytest.raises(ckpt.errors.ConfigurationError, match=BACKEND):
            ckpt.shadow(query, job.df, options={BACKEND: "none"})
        with pytest.raises(
            ckpt.errors.ConfigurationError, match="is the checkpointLocation of a query"
        ):
            ckpt.shadow(query, job.df, directory=str(other))
        with pytest.raises(ckpt.errors.PlanError):
            ckpt.shadow(query, no_stream)
        assert digests(job.location_path) == before
        query.stop()


@pytest.mark.soak
def test_one_key_in_100_000(job: Job) -> None:
    """Output and state name it, and nothing else."""
    rows = [(f"k{number}", 1, at(number / 100_000)) for number in range(100_000)]
    with session_conf(job.spark, {PARTITIONS: "2"}):
        job.feed.add(rows)
        query = job.start()
        query.processAllAvailable()
        planted = job.but(processor=PlantedOnce).df
        with ckpt.shadow(query, planted, epochs=1, ignore=["op.fresh"]) as shadow:
            job.feed.add([(key, v, at(10)) for key, v, _ in random.Random(1).sample(rows, 100_000)])
            query.processAllAvailable()
            assert shadow.awaitTermination(200)
        query.stop()
    report = shadow.report
    print(report)
    assert report.rows == 100_000
    assert [(each.place, each.key["k"]) for each in report.samples] == [
        ("output", "k77777"),
        ("op.total", "k77777"),
    ]


@pytest.mark.soak
def test_what_may_differ(job: Job) -> None:
    with session_conf(job.spark, {PARTITIONS: "2"}):
        query = begun(job)
        ignore = ["output.n", "output.mean", "op.total", "op.fresh.v"]
        shadows = [
            ckpt.shadow(query, in_another_order(job, Planted), ignore=ignore),
            ckpt.shadow(
                query,
                in_another_order(job, Planted),
                expected=lambda each: each.key["k"] == "k7",
                states_every=2,
            ),
            ckpt.shadow(query, in_another_order(job, Float), tolerance=1e-9),
            ckpt.shadow(query, in_another_order(job, Float), max_differences=2, keys=["what", "k"]),
        ]
        epoch_of(job, 5)
        ignoring, expecting, close, exact = (compared(shadow, query) for shadow in shadows)
        assert ignoring.is_equal, ignoring
        assert expecting.is_equal, expecting
        assert expecting.expected >= 2
        assert expecting.state_comparisons == expecting.epochs // 2
        assert close.is_equal, close
        assert close.expected == 0
        assert exact.differences >= 2
        assert "max_differences is 2" in str(exact.stopped)
        assert {each.columns for each in exact.samples} == {("mean",)}
        assert set(exact.samples[0].key) == {"what", "k"}
        for shadow in shadows:
            shadow.discard()
        query.stop()


@pytest.mark.soak
def test_a_shadow_that_ends(job: Job) -> None:
    """A candidate that fails leaves the query alone, and so does a discarded one: no trace."""
    with session_conf(job.spark, {PARTITIONS: "2"}):
        query = begun(job)
        query.triggerCheckpoint()
        before = digests(job.location_path)
        with pytest.raises(ckpt.errors.ConfigurationError, match="tolerance"):
            ckpt.shadow(query, job.df(), tolerance=2.0)
        shadow = ckpt.shadow(query, job.df())
        assert Path(shadow.directory.removeprefix("file://")).parent == job.location_path
        shadow.discard()
        assert digests(job.location_path) == before
        assert [row for row in query.checkpoints().collect() if row.kind == "savepoint"] == []
        with pytest.raises(ckpt.errors.ConfigurationError, match="was discarded"):
            shadow.promote(str(job.base / "savepoints"))

        failing = ckpt.shadow(query, job.but(processor=Fails).df(), directory=str(job.base / "s"))
        epoch_of(job, 5)
        query.processAllAvailable()
        with pytest.raises(ckpt.errors.ProcessorError, match="no luck"):
            failing.awaitTermination(60)
        assert "the candidate failed in epoch" in str(failing.report.stopped)
        failing.discard()
        assert list((job.base / "s").iterdir()) == []
        assert query.isActive

        left = ckpt.shadow(query, job.df())
        query.stop()
        assert left.awaitTermination(60)
        assert left.report.stopped == "the query has ended"
        with pytest.raises(ckpt.errors.CkptError, match="has ended: start it"):
            ckpt.shadow(query, job.df())
        left.discard()


@pytest.mark.soak
def test_a_shadow_of_a_query_that_is_rolled_back(job: Job) -> None:
    """The query runs on with other epochs of the same numbers, and no file says so but its id."""
    with session_conf(job.spark, {PARTITIONS: "2"}):
        query = begun(job)
        checkpoint = query.triggerCheckpoint()
        shadow = shadow_of_location(
            LocalStorage(job.location_path),
            job.df(),
            job.df(),
            Rules(),
            LocalStorage(job.base / "s"),
        )
        epoch_of(job, 5)
        report = compared(shadow, query)
        query.stop()
        ckpt.location(str(job.location_path)).rollback(f"chk-{checkpoint.checkpoint_id}")
        with job.but(out="again").running() as again:
            for second in (9, 14):
                epoch_of(job, second)
                again.processAllAvailable()
            with pytest.raises(ckpt.errors.CheckpointAbortedError, match="was rolled back"):
                shadow.awaitTermination(60)
        assert shadow.report.last_epoch == report.last_epoch
        assert "rolled back" in str(shadow.report.stopped)
        shadow.discard()
