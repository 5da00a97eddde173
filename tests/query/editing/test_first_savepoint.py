"""A query that never ran starts from tables: its later output is that of one that saw it all."""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pyspark_ckpt as ckpt
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.storage.open import LocalStorage
from tests.query.harness import BACKEND, BACKENDS, Feed, Job, await_rows, files_below
from tests.query.model import OUTPUT, Count, Event, Reveal, events_of, expected_after


class Tables:
    """What Reveal's states hold after some events, computed in plain Python."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.count: dict[Any, tuple[int, int]] = {}
        self.recent: dict[Any, list[int]] = defaultdict(list)
        self.tally: dict[Any, dict[int, tuple[int, int]]] = defaultdict(dict)
        for k, v in events:
            self._add(k, v)

    def _add(self, k: Any, v: int) -> None:
        n, total = self.count.get(k, (0, 0))
        self.count[k] = (n + 1, total + v)
        items, tally, bucket = self.recent[k], self.tally[k], v % 6
        if v % 11 == 0:
            items.clear()
        elif v % 7 == 0:
            items[:] = [v, v + 1]
        else:
            items.extend([v, -v] if v % 5 == 0 else [v])
        if v % 13 == 0:
            tally.clear()
        elif v % 4 == 0 and bucket in tally:
            del tally[bucket]
        else:
            tally[bucket] = (tally.get(bucket, (0, 0))[0] + 1, v)

    def put(self, edit: ckpt.StateEdit, spark: SparkSession) -> ckpt.StateEdit:
        """Put the tables into an edit, in an order that is not the stored one."""
        return (
            edit.put(
                "op", "count", spark.createDataFrame(self.counts(), "total long, n long, k string")
            )
            .put(
                "op", "recent", spark.createDataFrame(self.items(), "k string, position int, v int")
            )
            .put(
                "op",
                "tally",
                spark.createDataFrame(
                    self.entries(), "k string, bucket long, times long, last long"
                ),
            )
        )

    def counts(self) -> list[Any]:
        return [(total, n, k) for k, (n, total) in self.count.items()]

    def items(self) -> list[Any]:
        rows = [(k, n, v) for k, items in self.recent.items() for n, v in enumerate(items)]
        return rows[::-1]

    def entries(self) -> list[Any]:
        return [(k, b, *t) for k, tally in self.tally.items() for b, t in tally.items()]


@pytest.mark.soak_variants
@pytest.mark.parametrize("backend", BACKENDS)
def test_continues_as_if_it_had_seen_the_history(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    history = [*itertools.chain.from_iterable(map(events_of, range(3)))]
    job = Job(spark, tmp_path, Feed(tmp_path / "in"), options={BACKEND: backend})
    edit = Tables(history).put(ckpt.edit_state(query=job.df()), spark)
    first = edit.save(str(tmp_path / "first"))
    job.feed.add(events_of(3), events_of(4))

    assert ckpt.location(first.path).plan(job.df()).errors == ()
    job.run(first.path)

    everything = [*history, *events_of(3), *events_of(4)]
    assert job.result() == expected_after(everything, len(history))


def test_sources_continue_at_given_offsets(spark: SparkSession, tmp_path: Path) -> None:
    def plan(_: Job) -> DataFrame:
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        keyed = ckpt.key_by(rows.selectExpr("cast(value % 2 as string) k", "value v"), "k")
        return keyed.transformWithState(Reveal(), OUTPUT, "Append", "None", uid="op")

    job = Job(spark, tmp_path, Feed(tmp_path / "in"), plan=plan)
    offset = {"offset": 30, "timestamp": 3000}
    edit = ckpt.edit_state(query=job.df()).position([offset], watermark_ms=7, epoch=4)
    first = edit.save(str(tmp_path / "first"))
    with job.running(first.path) as query:
        rows = await_rows(query, job, 10)

    seen = [abs(v) for _, _, state in rows for v in json.loads(state)[1]]
    assert min(seen) >= 30
    assert query.lastProgress is not None
    assert query.lastProgress["batchId"] > 4


@pytest.mark.slow
def test_operator_is_added_without_its_query(spark: SparkSession, tmp_path: Path) -> None:
    history = [*events_of(0)]
    job = Job(spark, tmp_path, Feed(tmp_path / "in"))
    edit = ckpt.edit_state(spark=spark).add_operator("op", Reveal(), "k string", max_parallelism=64)
    first = Tables(history).put(edit, spark).save(str(tmp_path / "first"))
    job.feed.add(events_of(1))
    job.run(first.path)

    assert job.result() == expected_after([*history, *events_of(1)], len(history))


def test_each_operator_has_an_id_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    events = spark.readStream.schema("k string, v int").parquet(str(tmp_path))
    rows = spark.createDataFrame([("a", 1, 1)], "k string, n long, total long")

    first = ckpt.edit_state(query=counted(events, "first")).put("first", "count", rows)
    one = first.save(str(tmp_path / "savepoints")).path
    both = counted(counted(events, "first").select("k", F.lit(1).alias("v")), "new")
    edit = ckpt.edit_state(one, query=both).put("new", "count", rows)
    found = ckpt.location(edit.save(str(tmp_path / "savepoints")).path).state()
    assert [found.state(uid, "count").to_pandas()["n"].tolist() for uid in ("first", "new")] == [
        [1],
        [1],
    ]


@pytest.fixture(scope="module")
def beside_spark(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Feed, str]:
    """The input and a savepoint of a query that has one of Spark's own operators, too."""
    base = tmp_path_factory.mktemp("beside")
    feed = Feed(base / "in").add(events_of(0))
    writer = ckpt.write_stream(counted(deduplicated(feed.stream(spark)), "old"))
    query = writer.format("noop").option("checkpointLocation", str(base / "location")).start()
    try:
        query.processAllAvailable()
        return feed, query.triggerSavepoint(str(base / "savepoints")).path
    finally:
        query.stop()


def deduplicated(stream: DataFrame) -> DataFrame:
    return stream.dropDuplicates(["k"])


def counted(stream: DataFrame, uid: str) -> DataFrame:
    return ckpt.key_by(stream, "k").transformWithState(Reveal(), OUTPUT, "Append", "None", uid=uid)


@pytest.mark.slow
def test_an_operator_that_is_added_beside_one_of_spark_has_an_id_of_its_own(
    spark: SparkSession, beside_spark: tuple[Feed, str], tmp_path: Path
) -> None:
    rows = spark.createDataFrame([("a", 1, 1)], "k string, n long, total long")
    edit = ckpt.edit_state(beside_spark[1]).add_operator("new", Reveal(), "k string")
    path = edit.put("new", "count", rows).save(str(tmp_path / "savepoints")).path
    with ckpt.location(path).state() as found:
        assert found.state("new", "count").to_pandas()["n"].tolist() == [1]


def test_operators_have_the_ids_of_the_query(
    spark: SparkSession, beside_spark: tuple[Feed, str], tmp_path: Path
) -> None:
    """A query of more operators numbers those that are stored otherwise, and continues them."""
    feed, saved = beside_spark
    again = counted(deduplicated(feed.stream(spark)), "old").select("k", F.lit(1).alias("v"))
    both = counted(again, "new")
    rows = spark.createDataFrame([("k0", 7, 70)], "k string, n long, total long")
    edit = ckpt.edit_state(saved, query=both).put("new", "count", rows)
    edited = edit.save(str(tmp_path / "savepoints")).path

    metadata = read_metadata(LocalStorage(Path(edited)))
    ids = {each.uid: each.operator_id for each in metadata.operators}
    (native,) = metadata.spark_operators
    assert (ids, native.operator_id) == ({"new": 0, "old": 1}, 2)

    feed.add([("k0", 1), ("fresh", 2)])  # only a key that was never seen passes dropDuplicates
    location = str(tmp_path / "location")
    writer = ckpt.write_stream(both).option("checkpointLocation", location).restoreFrom(edited)
    query = writer.format("noop").start()
    try:
        query.processAllAvailable()
        assert query.state("new", "count").get("k0")["n"] == 7
        assert query.state("new", "count").get("fresh")["n"] == 1
        keys = {k for k, _ in events_of(0)} | {"fresh"}
        assert {*query.state("old", "count").to_pandas()["k"]} == keys
    finally:
        query.stop()


def test_another_query_than_the_stored_one_is_refused(
    spark: SparkSession, beside_spark: tuple[Feed, str], tmp_path: Path
) -> None:
    """Its sources and Spark's own operators are checked before anything is written."""
    feed, saved = beside_spark
    stream = feed.stream(spark)
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    other = deduplicated(rate.selectExpr("'k' k", "cast(value as int) v"))
    for plan, source, says in (
        (counted(stream, "old"), saved, "operators dedupe"),
        (counted(deduplicated(stream.union(feed.stream(spark))), "old"), saved, "of 1 sources"),
        (counted(other, "old"), saved, "its offset is of"),
        (counted(deduplicated(stream), "first"), None, "operators dedupe"),
    ):
        with pytest.raises(ckpt.errors.RestoreError, match=says):
            ckpt.edit_state(source, query=plan).save(str(tmp_path / "savepoints"))
    assert not files_below(tmp_path / "savepoints")


def test_two_rows_of_one_key_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([("a", 1, 1), ("a", 2, 2)], "k string, n long, total long")
    edit = ckpt.edit_state(spark=spark).add_operator("op", Reveal(), "k string")
    with pytest.raises(
        ckpt.errors.StateValueError, match="'count' would get two values at one place"
    ):
        edit.put("op", "count", rows).save(str(tmp_path / "first"))
    assert not files_below(tmp_path / "first")


class Needed(Count):
    """Declares that its count is never null."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long not null")


@pytest.mark.slow
def test_a_null_is_refused_where_the_schema_has_none(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([("a", 1), ("b", None)], "k string, n long")
    edit = ckpt.edit_state(spark=spark).add_operator("op", Needed(), "k string")
    with pytest.raises(
        ckpt.errors.StateValueError, match="'count': a row has a null in column 'n'"
    ):
        edit.put("op", "count", rows).save(str(tmp_path / "first"))
    assert not files_below(tmp_path / "first")


def test_what_does_not_fit_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    edit = ckpt.edit_state(spark=spark).add_operator("op", Reveal(), "k string")
    some = spark.createDataFrame([("a", 1)], "k string, n long")
    for call, says in (
        (lambda: edit.put("other", "count", some), "no operator 'other'"),
        (lambda: edit.put("op", "counts", some), "no state 'counts'; its states are 'count'"),
        (lambda: edit.put("op", "count", some), "its table has k string, n bigint, total bigint"),
        (lambda: edit.set_timers("op", some), "timeMode='None'"),
        (lambda: edit.position(["no offset"]), "the offset of source 0 is 'no offset'"),
        (lambda: edit.position([{"logOffset": 3}]), "file source"),
        (lambda: edit.position(epoch=-1), "epoch is -1"),
        (lambda: edit.add_operator("op", Reveal(), "k string"), "there already"),
        (lambda: edit.add_operator("map", Reveal(), "k map<int,int>"), "cannot be"),
    ):
        with pytest.raises(ckpt.errors.PlanError, match=re.escape(says)):
            call()


def test_is_checked_against_the_query(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, Feed(tmp_path / "in"))
    edit = ckpt.edit_state(query=job.df()).add_operator("other", Count(), "k string")
    with pytest.raises(ckpt.errors.RestoreError, match="holds state of"):
        edit.save(str(tmp_path / "first"))
    assert not files_below(tmp_path / "first")
