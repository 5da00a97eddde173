"""What cannot be imported is refused by name, and the location stays as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import pyspark_ckpt as ckpt
from tests.by_value import pickled_by_value
from tests.parity import importing, operations
from tests.parity.engines import PROVIDER, ROCKSDB, configured
from tests.parity.importing import Continued, run
from tests.parity.operations import Operations, look, script
from tests.query.harness import Feed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def helpers_by_value() -> Iterator[None]:
    with pickled_by_value(importing, operations):
        yield


@pytest.fixture(scope="module")
def stopped(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Continued:
    """A query of Spark that was stopped after an epoch."""
    base = tmp_path_factory.mktemp("stopped")
    program = Continued(spark, base, operations.INPUT, Operations, operations.OUTPUT)
    program.feed.add(script("a", ("value.update", 1, "v"), ("items.put", 2, "w")))
    assert program.run_native()
    return program


class Noting(Operations):
    """Notes the calls of ``init`` and ``close``."""

    def __init__(self, calls: Path) -> None:
        self.calls = calls

    def init(self, handle: Any) -> None:
        self._note("init")
        super().init(handle)

    def close(self) -> None:
        self._note("close")

    def _note(self, call: str) -> None:
        with self.calls.open("a") as file:
            file.write(f"{call}\n")


@pytest.mark.slow
def test_the_location_is_only_read(stopped: Continued, tmp_path: Path) -> None:
    before = digests(stopped.native)
    savepoint = stopped.imported(processor=Noting(tmp_path / "calls"))
    assert (tmp_path / "calls").read_text().split() == ["init", "close"]
    assert digests(stopped.native) == before
    lineage = ckpt.location(savepoint.path).lineage()
    assert lineage["path"].tolist()[-1].endswith(str(stopped.native))
    assert ckpt.location(savepoint.path).verify()


class OtherName(Operations):
    def init(self, handle: Any) -> None:
        super().init(handle)
        handle.getValueState("more", "n long")


class OtherSchema(Operations):
    def init(self, handle: Any) -> None:
        handle.getValueState("value", "a long, b int")
        handle.getListState("items", "a long, b string")
        handle.getMapState("map", "a long", "b string, n int")


class OtherKind(Operations):
    def init(self, handle: Any) -> None:
        handle.getListState("value", "a long, b string")
        handle.getListState("items", "a long, b string")
        handle.getMapState("map", "a long", "b string, n int")


class OtherTtl(Operations):
    def ttl_ms(self, state: str) -> int | None:
        return 1000 if state == "map" else None


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (OtherName, r"the processor declares 'items', 'map', 'more', 'value'"),
        (OtherSchema, r"state 'value' has values of struct<a:bigint,b:string> in Spark, and of"),
        (OtherKind, r"state 'value' is value state in Spark, and list state here"),
        (OtherTtl, r"state 'map' has no time to live in Spark, and has a time to live here"),
    ],
)
def test_other_states(stopped: Continued, processor: type[Operations], message: str) -> None:
    with pytest.raises(ckpt.errors.IncompatibleStateError, match=message):
        stopped.imported(processor=processor())
    assert not list((stopped.base / "imported").glob("*/_metadata*/x"))


@pytest.mark.slow
def test_arguments(stopped: Continued, tmp_path: Path, spark: SparkSession) -> None:
    given: dict[str, Any] = {"processor": Operations(), "uid": "op", "spark": spark}
    with pytest.raises(ckpt.errors.PlanError, match="leave mapper and time_mode out"):
        stopped.imported(time_mode="EventTime")
    with pytest.raises(ckpt.errors.PlanError, match="no directory for the savepoint"):
        ckpt.location(str(stopped.native)).import_checkpoint(**given)
    with pytest.raises(
        ckpt.errors.ConfigurationError, match="memory://out is in the memory of one"
    ):
        ckpt.location(str(stopped.native)).import_checkpoint("memory://out", **given)
    with pytest.raises(ckpt.errors.CheckpointNotFoundError, match="no committed epoch"):
        ckpt.location(str(tmp_path)).import_checkpoint(str(tmp_path / "out"), **given)
    with configured(spark, {DIRECTORY: str(tmp_path / "configured")}):
        savepoint = ckpt.location(str(stopped.native)).import_checkpoint(**given)
    assert str(tmp_path / "configured") in savepoint.path


DIRECTORY = "spark.ckpt.execution.checkpointing.savepoint-dir"


@pytest.mark.soak
def test_an_unfinished_epoch(spark: SparkSession, tmp_path: Path) -> None:
    """It is refused, unless it may be left out; then its rows are read again, in new epochs."""
    program = Continued(spark, tmp_path, operations.INPUT, Operations, operations.OUTPUT)
    program.feed.add(script("a", ("items.put", 1, "p")), script("a", ("items.appendValue", 2, "q")))
    program.run_native()
    (program.native / "commits" / "1").unlink()  # as a kill before the commit leaves it
    with pytest.raises(ckpt.errors.RestoreError, match="epoch 1 began and was not committed"):
        program.imported()
    savepoint = program.imported(discard_uncommitted=True)
    assert savepoint.epoch == 0
    program.feed.add(look("a"))
    rows = {(row.epoch, row.op): row.result for row in program.run_ours(savepoint)}
    assert rows[1, "items.appendValue"] == "null"
    assert rows[2, "items.get"] == '[[1, "p"], [0, "put"], [2, "q"]]'


def test_running_query(spark: SparkSession, tmp_path: Path) -> None:
    program = Continued(spark, tmp_path, operations.INPUT, Operations, operations.OUTPUT)
    program.feed.add(script("a", "value.get"))
    with configured(spark, {PROVIDER: ROCKSDB}):
        made = program.made(program.stream().groupBy("k"))
        writer = made.writeStream.format("noop").outputMode("update")
        query = writer.option("checkpointLocation", str(program.native)).start()
    query.processAllAvailable()
    with pytest.raises(ckpt.errors.RestoreError, match=r"runs in this application: stop it"):
        program.imported()
    query.stop()


@pytest.mark.slow
def test_other_operators(spark: SparkSession, tmp_path: Path) -> None:
    """Of Spark, of this library, several, or none."""
    feed = Feed(tmp_path / "in").add([("a", 1)])
    stream = feed.stream(spark)

    def refused(name: str, df: DataFrame) -> pytest.ExceptionInfo[ckpt.errors.CkptError]:
        run(df.writeStream, tmp_path / name)
        with pytest.raises(ckpt.errors.CkptError) as caught:
            ckpt.location(str(tmp_path / name)).import_checkpoint(
                str(tmp_path / "out"),
                processor=Operations(),
                uid="op",
                spark=spark,
            )
        return caught

    found = refused("count", stream.groupBy("k").count())
    assert found.errisinstance(ckpt.errors.NotBuiltYetError)
    assert "the state of stateStoreSave cannot be imported" in str(found.value)
    found = refused("both", stream.dropDuplicates(["v"]).groupBy("k").count())
    assert found.errisinstance(ckpt.errors.NotBuiltYetError)
    assert "the state of dedupe, stateStoreSave cannot be imported" in str(found.value)
    assert "no stateful operator" in str(refused("none", stream).value)


def test_a_location_of_this_library(spark: SparkSession, tmp_path: Path) -> None:
    program = Continued(spark, tmp_path, operations.INPUT, Operations, operations.OUTPUT)
    program.feed.add(script("a", "value.get"))
    run(ckpt.write_stream(program.plan()), program.native)
    with pytest.raises(ckpt.errors.RestoreError, match="location of a query of this library"):
        program.imported()


def digests(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
