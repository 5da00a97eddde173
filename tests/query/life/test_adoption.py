"""``enable``: programs that are written for PySpark's operator run on this library."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F

import pyspark_ckpt as ckpt
from pyspark_ckpt.query.query import CheckpointedQuery
from tests.query.harness import Feed
from tests.query.model import Count
from tests.query.session_conf import session_conf

OUTPUT = "k string, n long"


@pytest.fixture
def enabled(spark: SparkSession) -> Iterator[SparkSession]:
    ckpt.enable(spark)
    yield spark
    ckpt.disable(spark)


def started(events: DataFrame, base: Path, name: str = "location") -> Any:
    """Start a query as a program for PySpark does; nothing here knows of this library."""
    counts = events.groupBy("k").transformWithState(Count(), OUTPUT, "Append", "None")
    writer = counts.writeStream.option("checkpointLocation", str(base / name))
    query = writer.outputMode("append").start(str(base / f"{name}-out"))
    query.processAllAvailable()
    return query


def counted(spark: SparkSession, base: Path, name: str = "location") -> list[tuple[str, int]]:
    rows = spark.read.schema(OUTPUT).parquet(str(base / f"{name}-out"))
    return sorted(map(tuple, rows.collect()))


def attributes() -> list[Any]:
    """Return what a program may call, as PySpark's classes have it themselves or inherit it."""
    owners = [type(SparkSession.active().range(0)), GroupedData]
    names = ("groupBy", "groupby", "writeStream", "transformWithState")
    return [
        (name, name in vars(owner), getattr(owner, name, None))
        for owner in owners
        for name in names
    ]


def test_a_program_for_pyspark_has_savepoints_by_one_line(
    enabled: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    feed.add([("a", 1), ("a", 2), ("b", 3)])
    query = started(feed.stream(enabled), tmp_path)
    savepoint = query.stopWithSavepoint(str(tmp_path / "saved"))
    assert isinstance(query, CheckpointedQuery)
    assert counted(enabled, tmp_path) == [("a", 1), ("a", 2), ("b", 1)]
    feed.add([("a", 4)])
    started(feed.stream(enabled), tmp_path).stop()  # the unchanged program again
    assert ("a", 3) in counted(enabled, tmp_path)
    counts = feed.stream(enabled).groupBy("k").transformWithState(Count(), OUTPUT, "Append", "None")
    fork = counts.writeStream.restoreFrom(savepoint.path)
    fork = fork.option("checkpointLocation", str(tmp_path / "fork")).start(
        str(tmp_path / "fork-out")
    )
    fork.processAllAvailable()
    fork.stop()
    assert counted(enabled, tmp_path, "fork") == [("a", 3)]


KEYS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "name": lambda: ("k",),
    "list": lambda: (["k"],),
    "place": lambda: (1,),
    "column": lambda: (F.col("k"),),
    "expression": lambda: (F.upper("k").alias("k"),),
    "two": lambda: ("k", "v"),
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_keys_are_those_of_group_by(
    enabled: SparkSession, keys: Callable[[], tuple[Any, ...]]
) -> None:
    rows = enabled.createDataFrame([("A", 1), ("B", 2), ("A", 3)], "k string, v long")
    given = keys()
    groups = rows.groupBy(*given)
    if isinstance(given[0], list):
        given[0].append("v")  # PySpark has read the list by now
    found = groups.transformWithState(Count(), OUTPUT, "Append", "None")
    assert "TransformWithState" not in found._jdf.queryExecution().toString()
    expected = [("A", 1), ("A", 2), ("B", 1)] if len(given) == 1 else [("A", 1)] * 2 + [("B", 1)]
    assert sorted(map(tuple, found.collect())) == expected


def test_queries_of_pyspark_and_other_sessions_stay_pysparks(
    enabled: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    feed.add([("a", 1)])
    frames: list[Any] = []
    plain = feed.stream(enabled).writeStream.foreachBatch(lambda df, _: frames.append(df))
    assert not isinstance(plain, ckpt.CheckpointedStreamWriter)
    query = plain.option("checkpointLocation", str(tmp_path / "plain")).start()
    query.processAllAvailable()
    query.stop()
    assert len(frames) == 1
    other = feed.stream(enabled.newSession()).groupBy("k")
    counts = other.transformWithState(Count(), OUTPUT, "Append", "None")
    assert "TransformWithState" in counts._jdf.queryExecution().toString()
    assert not isinstance(counts.writeStream, ckpt.CheckpointedStreamWriter)
    sums = feed.stream(enabled).groupBy("k").agg(F.sum("v")).writeStream
    assert not isinstance(sums, ckpt.CheckpointedStreamWriter)


def test_nothing_is_left_once_no_session_is_enabled(spark: SparkSession) -> None:
    before = attributes()
    other = spark.newSession()
    ckpt.enable(spark)
    ckpt.enable(spark)
    ckpt.enable(other)
    assert attributes() != before
    ckpt.disable(spark)
    ckpt.disable(spark)
    assert attributes() != before
    ckpt.disable(other)
    assert attributes() == before


def test_a_second_operator_needs_a_uid(enabled: SparkSession, feed: Feed, tmp_path: Path) -> None:
    feed.add([("a", 1), ("a", 2)])
    with pytest.raises(ckpt.errors.PlanError, match="2 operators"):
        started(
            feed.stream(enabled).groupBy("k").transformWithState(Count(), OUTPUT, "Append", "None"),
            tmp_path,
        )
    first = feed.stream(enabled).groupBy("k")
    counts = first.transformWithState(Count(), OUTPUT, "Append", "None", uid="first")
    second = counts.groupBy("k").transformWithState(Count(), OUTPUT, "Append", "None", uid="second")
    query = second.writeStream.option("checkpointLocation", str(tmp_path / "two"))
    query = query.start(str(tmp_path / "two-out"))
    query.processAllAvailable()
    query.stop()
    assert counted(enabled, tmp_path, "two") == [("a", 1), ("a", 2)]


def test_a_location_of_pysparks_operator_is_refused_with_the_ways_out(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    feed.add([("a", 1)])
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    with session_conf(spark, {"spark.sql.streaming.stateStore.providerClass": provider}):
        started(feed.stream(spark), tmp_path).stop()
        ckpt.enable(spark)
        try:
            with pytest.raises(
                ckpt.errors.IncompatibleStateError, match=r"(?s)PySpark.*import_checkpoint"
            ):
                started(feed.stream(spark), tmp_path)
        finally:
            ckpt.disable(spark)
        feed.add([("a", 2)])
        started(feed.stream(spark), tmp_path).stop()
    assert counted(spark, tmp_path) == [("a", 1), ("a", 2)]


def test_another_object_of_an_enabled_session_is_the_same_session(enabled: SparkSession) -> None:
    same = SparkSession(enabled.sparkContext, enabled._jsparkSession)
    rows = same.createDataFrame([("a", 1)], "k string, v long")
    counts = rows.groupBy("k").transformWithState(Count(), OUTPUT, "Append", "None")
    assert "TransformWithState" not in counts._jdf.queryExecution().toString()
    ckpt.disable(same)
    counts = rows.groupBy("k").transformWithState(Count(), OUTPUT, "Append", "None")
    assert "TransformWithState" in counts._jdf.queryExecution().toString()


def test_what_stands_for_pysparks_methods_looks_and_travels_as_they_do(
    spark: SparkSession,
) -> None:
    groups = type(spark.range(0).groupBy())
    before = inspect.signature(groups.transformWithState)
    ckpt.enable(spark)
    try:
        assert inspect.signature(groups.transformWithState) == before
        for method in (groups.transformWithState, type(spark.range(0)).groupBy):
            assert pickle.loads(cloudpickle.dumps(method)) is method
    finally:
        ckpt.disable(spark)


def test_a_method_that_something_else_replaced_stays(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = type(spark.range(0))
    with monkeypatch.context() as patch:
        ckpt.enable(spark)
        ours = frame.groupBy
        patch.setattr(frame, "groupBy", lambda df, *columns: ours(df, *columns))
        theirs = frame.groupBy
        ckpt.disable(spark)
        assert frame.groupBy is theirs
        assert spark.range(3).groupBy("id").count().count() == 3
    frame.groupBy = frame.groupBy.__wrapped__  # type: ignore[attr-defined,method-assign]


def test_something_else_than_a_session_is_refused() -> None:
    with pytest.raises(ckpt.errors.ConfigurationError, match="enable got str"):
        ckpt.enable("spark")  # type: ignore[arg-type]
    with pytest.raises(ckpt.errors.ConfigurationError, match="enable got type"):
        ckpt.enable(SparkSession)  # type: ignore[arg-type]
    with pytest.raises(ckpt.errors.ConfigurationError, match="disable got NoneType"):
        ckpt.disable(None)  # type: ignore[arg-type]
