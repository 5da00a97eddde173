"""Programs and settings that cannot work are refused with the reason and advice."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.restore.location.seedings import begin_seeding
from pyspark_ckpt.storage.open import LocalStorage
from tests.query.harness import OFTEN, SAVEPOINT_DIR, Feed, Job, newest_checkpoint, refused
from tests.query.model import Count, counted, counted_after, events_of, expected, sequences

PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True)
class Saved:
    job: Job
    savepoint: Path


@pytest.fixture(scope="module")
def saved(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Run two epochs and return their savepoint."""
    base = tmp_path_factory.mktemp("saved")
    job = Job(spark, base, Feed(base / "in"), Count, "k string, n long", uid="count")
    job = job.using({SAVEPOINT_DIR: base / "savepoints", **OFTEN})
    with job.running() as query:
        job.feed.add(events_of(0), events_of(1))
        query.processAllAvailable()
        return Saved(job, Path(query.triggerSavepoint().path))


class CountAsInt(Count):
    """Count whose state has another type of the same name."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n int")


class CountInList(StatefulProcessor):
    """Count whose state is of another kind of the same name."""

    def init(self, handle: Any) -> None:
        self.count = handle.getListState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield Row(k=key[0], n=0)

    def close(self) -> None:
        pass


class CountFrames(StatefulProcessor):
    """Count rows that come in pandas frames."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"k": [key[0]], "n": [sum(map(len, rows))]})

    def close(self) -> None:
        pass


@pytest.mark.soak
def test_times_that_pandas_does_not_have(spark: SparkSession) -> None:
    late = dt.datetime(9999, 12, 31, 23, 59, 59)  # noqa: DTZ001  # Spark's is without a zone
    rows = spark.createDataFrame([("a", late)], "k string, t timestamp_ntz")
    counts = ckpt.key_by(rows, "k").transformWithStateInPandas(
        CountFrames(), "k string, n long", "Append", "None", uid="count"
    )
    with pytest.raises(PythonException, match="from 1677 to 2262 only: use a processor of rows"):
        counts.collect()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "mentions"),
    [
        ({"uid": "another"}, ["another", "'count'"]),
        ({"keys": ("v",), "output": "k long, n long"}, ["count", "key"]),
        ({"keys": ("k", "v")}, ["count", "key"]),
        ({"processor": CountAsInt}, ["count", "n"]),
        ({"processor": CountInList}, ["count", "list"]),
    ],
    ids=["uid", "key type", "key columns", "state schema", "state kind"],
)
def test_another_program(
    saved: Saved, tmp_path: Path, change: dict[str, Any], mentions: list[str]
) -> None:
    """A savepoint does not start a program that its state does not belong to."""
    fork = saved.job.but(base=tmp_path, **change)
    with refused(ckpt.errors.CkptError, *mentions, unchanged=saved.savepoint) as caught:
        fork.run(restore=saved.savepoint)
    assert caught.type in (
        ckpt.errors.RestoreError,
        ckpt.errors.IncompatibleStateError,
        ckpt.errors.PlanError,
    )
    assert fork.result() == []
    if fork.location_path.exists():
        with refused(ckpt.errors.CkptError, unchanged=fork.location_path):
            fork.run()


def with_more_key_groups(job: Job) -> DataFrame:
    return job.process(ckpt.key_by(job.stream(), *job.keys, max_parallelism=256))


@pytest.mark.soak_variants
@pytest.mark.parametrize(
    "change",
    [
        {"plan": with_more_key_groups},
        {"uid": "another"},
        {"processor": CountAsInt},
        {"keys": ("v",), "output": "k long, n long"},
    ],
    ids=["max_parallelism", "uid", "state schema", "key schema"],
)
def test_another_program_at_the_same_location(job: Job, change: dict[str, Any]) -> None:
    """A location does not continue with a changed program; with the right one it does.

    It is refused at the start, and not by a task of the first epoch.
    """
    job = job.but(processor=Count, output="k string, n long", uid="count")
    job.feed.add(events_of(0))
    job.run()
    job.feed.add(events_of(1))
    changed = job.but(**change)
    with refused(ckpt.errors.IncompatibleStateError, "count", unchanged=job.base):
        changed.run()
    job.run()
    assert sequences(job.result()) == counted(job.feed.rows)


def by_number(job: Job) -> DataFrame:
    numbers = job.stream().selectExpr("CAST(substring(k, 2) AS LONG) AS k", "v")
    return job.process(ckpt.key_by(numbers, "k"))


def test_other_keys_come_as_the_error_says(job: Job, tmp_path: Path) -> None:
    """Other keys refuse each restart and restore, but not a restore from a rekeyed savepoint."""
    job = job.but(processor=Count, output="k string, n long", uid="count")
    job.feed.add(events_of(0))
    checkpoint = newest_checkpoint(job.run())
    changed = job.but(plan=by_number, output="k long, n long")
    advice = "make a savepoint with other keys with ckpt.edit_state(path).rekey('count', ...)"
    at = "restore that at a new checkpointLocation"
    with refused(ckpt.errors.IncompatibleStateError, advice, at, unchanged=job.base):
        changed.run()
    fork = changed.but(location="fork", out="fork-out")
    with refused(ckpt.errors.RestoreError, advice, unchanged=job.location_path):
        fork.run(checkpoint)

    def number(keys: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"k": keys.k.str[1:].astype(int)})

    edit = ckpt.edit_state(checkpoint).rekey("count", number, "k long", as_pandas=True)
    savepoint = edit.save(str(tmp_path / "rekeyed")).path
    job.feed.add(events_of(1))
    fork.run(savepoint)
    with_names = [(f"k{k}", n) for k, n in fork.result()]
    assert sequences(with_names) == counted_after(job.feed.rows, len(events_of(0)))


def test_other_parallelism(job: Job) -> None:
    """Another spark.sql.shuffle.partitions than the location's is refused."""
    job.feed.add(events_of(0))
    job.run()
    job.feed.add(events_of(1))
    before = job.spark.conf.get(PARTITIONS)
    job.spark.conf.set(PARTITIONS, 3)
    try:
        with refused(ckpt.errors.PlanError, "2", "3", PARTITIONS, unchanged=job.base):
            job.run()
    finally:
        job.spark.conf.set(PARTITIONS, before)
    job.run()
    assert job.result() == expected(job.feed.rows)


class Picky(Count):
    """Count that fails on one key, until it is repaired."""

    def __init__(self, mended: Path) -> None:
        self.mended = mended

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield from super().handleInputRows(key, rows, timerValues)
        if key[0] == "poison" and not self.mended.exists():
            raise ZeroDivisionError("what the user did wrong")


@pytest.mark.soak
def test_processor_that_raises(job: Job) -> None:
    """The query's error names uid, key and cause; repaired and restarted, the result is exact."""
    mended = job.base / "mended"
    job = job.but(processor=lambda: Picky(mended), output="k string, n long", uid="picky-op")
    job.feed.add(events_of(0), [*events_of(1), ("poison", 1)], events_of(2))
    for _ in range(2):
        with refused(StreamingQueryException, unchanged=job.base / "in") as caught:
            job.run()
        for text in ("picky-op", "poison", "ZeroDivisionError", "what the user did wrong"):
            assert text in str(caught.value)
    mended.touch()
    job.run()
    assert sequences(job.result()) == counted(job.feed.rows)


def test_two_operators_with_one_uid(job: Job) -> None:
    """Two operators that would share one state are refused."""
    job.feed.add(events_of(0))
    writer = ckpt.write_stream(job.df().union(job.df())).format("noop")
    writer = writer.option("checkpointLocation", str(job.location_path))
    with refused(ckpt.errors.PlanError, "'op'", "uid", unchanged=job.base):
        writer.start()


@pytest.mark.parametrize("uid", ["", " ", 7])
def test_an_impossible_uid(job: Job, uid: Any) -> None:
    """A uid that is not a name is refused when the query is built."""
    with refused(ckpt.errors.PlanError, "uid", unchanged=job.base):
        job.but(uid=uid).df()


@pytest.mark.slow
def test_null_key(job: Job) -> None:
    """Null is a key with its own state, also after a restart, and differs from ''."""
    job.feed.add([(None, 1), ("", 2), (None, 3)], [(None, 4), ("null", 5)])
    job.run()
    job.feed.add([(None, 6), ("", 7), ("null", 8)])
    job.run()
    assert job.result() == expected(job.feed.rows)
    assert sequences(job.result())[None] == [1, 2, 3, 4]


@pytest.mark.parametrize("columns", [(), ("nothing",), ("k", "k")])
def test_impossible_key_columns(job: Job, columns: tuple[str, ...]) -> None:
    """No key column, an unknown one, or one twice is refused by key_by."""
    with refused(ckpt.errors.PlanError, *columns, "column", unchanged=job.base):
        ckpt.key_by(job.feed.stream(job.spark), *columns)


@pytest.mark.slow
def test_started_without_write_stream(job: Job) -> None:
    """df.writeStream takes no checkpoints: the query fails and says what to use."""
    job.feed.add(events_of(0))
    writer = job.df().writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(job.location_path)).start()
    with refused(StreamingQueryException, "'op'", "write_stream", unchanged=job.base / "in"):
        query.awaitTermination()


def test_nothing_to_checkpoint(job: Job) -> None:
    """write_stream of a query without a keyed operator is refused."""
    writer = ckpt.write_stream(job.feed.stream(job.spark)).format("noop")
    with refused(ckpt.errors.PlanError, "key_by", unchanged=job.base):
        writer.option("checkpointLocation", str(job.location_path)).start()


def test_no_checkpoint_location(job: Job) -> None:
    """A query without a checkpointLocation is refused."""
    writer = ckpt.write_stream(job.df()).format("parquet").option("path", str(job.base / "out"))
    with refused(ckpt.errors.ConfigurationError, "checkpointLocation", unchanged=job.base):
        writer.start()


@pytest.mark.slow
def test_restore_into_a_used_location(saved: Saved, tmp_path: Path) -> None:
    """A restore does not mix with files that are there, and deletes none of them."""
    fork = saved.job.but(base=tmp_path)
    fork.location_path.mkdir()
    (fork.location_path / "notes.txt").write_text("precious")
    with refused(
        ckpt.errors.RestoreError, fork.location_path, "checkpointLocation", unchanged=tmp_path
    ):
        fork.run(restore=saved.savepoint)


@pytest.mark.parametrize("restored", [False, True])
def test_location_of_a_query_of_another_kind(saved: Saved, job: Job, restored: bool) -> None:
    """Epochs that a query without this library committed have no state to continue with."""
    job = saved.job.but(base=job.base, feed=job.feed)
    job.feed.add(events_of(0))
    plain = job.feed.stream(job.spark).writeStream.format("noop").trigger(availableNow=True)
    plain.option("checkpointLocation", str(job.location_path)).start().awaitTermination()
    job.feed.add(events_of(1))
    with refused(
        (ckpt.errors.CkptError, StreamingQueryException), unchanged=job.base / "in"
    ) as caught:
        job.run(restore=saved.savepoint if restored else None)
    assert str(job.location_path) in str(caught.value)
    assert job.result() == []


def test_interrupted_restore(saved: Saved, tmp_path: Path) -> None:
    """A location with an interrupted restore starts only with restoreFrom, which begins again."""
    saved.job.feed.add(events_of(saved.job.feed.files))
    fork = saved.job.but(base=tmp_path)
    fork.location_path.mkdir()
    begin_seeding(LocalStorage(fork.location_path))
    # Spark had committed the seeding, and its offsets were about to be replaced.
    for name in ("commits/0", "pyspark_ckpt/taskowned/segment-0-0-00.chg", "metadata.tmp"):
        (fork.location_path / name).parent.mkdir(parents=True, exist_ok=True)
        (fork.location_path / name).write_text("half of some")
    with refused(ckpt.errors.RestoreError, fork.location_path, "restoreFrom", unchanged=tmp_path):
        fork.run()
    fork.run(restore=saved.savepoint)
    assert sequences(fork.result()) == counted_after(saved.job.feed.rows, 40)
    fork.run()
    assert sequences(fork.result()) == counted_after(saved.job.feed.rows, 40)


@pytest.mark.slow
def test_a_restore_that_was_killed_while_it_wrote_a_note(saved: Saved, tmp_path: Path) -> None:
    """A temporary file is all that is there (simulated seed 10137). Other files are refused."""
    fork = saved.job.but(base=tmp_path)
    fork.location_path.mkdir()
    (fork.location_path / "._identity.json.0123abcd.tmp").write_text("half of s")
    (fork.location_path / "notes.txt").write_text("of somebody")
    with refused(ckpt.errors.RestoreError, fork.location_path, "not empty", unchanged=tmp_path):
        fork.run(restore=saved.savepoint)
    (fork.location_path / "notes.txt").unlink()
    fork.run(restore=saved.savepoint)
    assert sequences(fork.result()) == counted_after(saved.job.feed.rows, 40)
    assert not list(fork.location_path.glob(".*.tmp"))
