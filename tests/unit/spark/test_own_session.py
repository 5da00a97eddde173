"""A start that raises ends the query that Spark has begun by then."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_ckpt.spark import own_session
from pyspark_ckpt.spark.own_session import start_with_conf
from pyspark_ckpt.storage.local import LocalStorage


class Spark:
    """As much of a session and its one query as a start uses; `raises` is what ends the start."""

    version = "4.3.0"

    def __init__(self, location: Path) -> None:
        self.given: dict[str, str] = {}
        self.is_active = False
        self.listeners: list[Any] = []
        own = SimpleNamespace(conf=lambda: SimpleNamespace(set=self.given.__setitem__))
        execution = SimpleNamespace(
            resolvedCheckpointRoot=lambda: str(location), sparkSessionForStream=lambda: own
        )
        self.query = SimpleNamespace(
            id="id",
            runId="run",
            stop=self.stop,
            _jsq=SimpleNamespace(streamingQuery=lambda: execution),
        )
        self.conf = SimpleNamespace(get=lambda _key: None)
        self.sparkContext = SimpleNamespace(_gateway=None)  # no thread of Py4J's to end
        self.streams = SimpleNamespace(
            addListener=self.listeners.append,
            removeListener=self.listeners.remove,
            get=lambda _id: self.query,
        )

    def stop(self) -> None:
        self.is_active = False

    def start(self, raises: BaseException | None) -> Any:
        self.is_active = True
        for listener in list(self.listeners):
            listener.onQueryStarted(SimpleNamespace(id="id"))
        if raises is not None:
            raise raises
        return self.query


@pytest.mark.parametrize("raises", [KeyboardInterrupt(), SystemExit(), OSError("no answer")])
def test_a_query_that_began_is_stopped(tmp_path: Path, raises: BaseException) -> None:
    spark: Any = Spark(tmp_path)
    with pytest.raises(type(raises)):
        start_with_conf(spark, LocalStorage(tmp_path), {"key": "v"}, lambda: spark.start(raises))
    assert (spark.is_active, spark.listeners) == (False, [])


def test_a_query_that_starts_has_its_conf(tmp_path: Path) -> None:
    spark: Any = Spark(tmp_path)
    found = start_with_conf(spark, LocalStorage(tmp_path), {"key": "v"}, lambda: spark.start(None))
    assert found is spark.query
    assert (spark.is_active, spark.given, spark.listeners) == (True, {"key": "v"}, [])


def test_a_query_that_cannot_be_stopped_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may run on without checkpoints, and the start raises its own error."""
    spark: Any = Spark(tmp_path)

    def stop() -> None:
        raise TimeoutError("it does not end")

    spark.query.stop = stop
    failed = OSError("no answer")
    with pytest.raises(OSError, match="no answer"):
        start_with_conf(spark, LocalStorage(tmp_path), {"key": "v"}, lambda: spark.start(failed))
    assert spark.listeners == []
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert str(tmp_path) in record.getMessage()
    assert "without checkpoints" in record.getMessage()
    assert isinstance(record.exc_info and record.exc_info[1], TimeoutError)


def test_a_start_that_spark_refuses_leaves_no_listener(tmp_path: Path) -> None:
    spark: Any = Spark(tmp_path)

    def refuses() -> Any:
        raise LookupError

    with pytest.raises(LookupError):
        start_with_conf(spark, LocalStorage(tmp_path), {"key": "v"}, refuses)
    assert spark.listeners == []


def test_a_query_that_comes_late_is_ended_and_the_next_start_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark: Any = Spark(tmp_path)
    ended: list[Any] = []
    monkeypatch.setattr(own_session, "end_after_epoch", lambda _, query: ended.append(query))
    location = LocalStorage(tmp_path)

    def interrupted() -> Any:
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            start_with_conf(spark, location, {"key": "v"}, interrupted)
        assert len(spark.listeners) == 1
    spark.start(None)
    assert (ended, spark.listeners) == ([spark.query], [])
    with pytest.raises(KeyboardInterrupt):
        start_with_conf(spark, location, {"key": "v"}, interrupted)
    found = start_with_conf(spark, location, {"key": "v"}, lambda: spark.start(None))
    assert (found, ended, spark.listeners) == (spark.query, [spark.query], [])
