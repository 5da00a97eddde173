"""A savepoint that is edited differs from its source in what was changed, and in nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.cli.main import main
from tests.query.harness import (
    OFTEN,
    Feed,
    Job,
    await_checkpoint,
    digests,
    files_below,
    flip_bit,
    gist,
)
from tests.query.model import events_of, expected, expected_after, in_order

Entries = dict[bytes, bytes]


def stored(savepoint: str | Path) -> Entries:
    """Return all entries of a canonical savepoint, by their stored keys."""
    found: Entries = {}
    for path in Path(savepoint).glob("shared/canonical-*.parquet"):
        table = pq.read_table(path)
        found.update(
            zip(table["stored_key"].to_pylist(), table["stored_value"].to_pylist(), strict=True)
        )
    return found


@dataclass(frozen=True)
class Saved:
    """A query of two epochs with a savepoint of each format and a checkpoint."""

    job: Job
    canonical: str
    sources: dict[str, str]


@pytest.fixture(scope="module")
def saved(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    base = tmp_path_factory.mktemp("saved")
    job = Job(spark, base, Feed(base / "in"), options=OFTEN)
    with job.running() as query:
        job.feed.add(events_of(0), events_of(1))
        query.processAllAvailable()
        canonical = query.triggerSavepoint(str(base / "sp")).path
        native = query.triggerSavepoint(str(base / "sp"), format="NATIVE").path
        checkpoint = await_checkpoint(query, 1).path
    job.feed.add(events_of(2))
    return Saved(job, canonical, {"CANONICAL": canonical, "NATIVE": native, "chk": checkpoint})


def later(job: Job, savepoint: str, base: Path) -> list[Any]:
    """Return what a query emits that is restored from a savepoint."""
    fork = job.but(base=base, location="fork", out="fork-out")
    fork.run(savepoint)
    return fork.result()


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize("kind", ["CANONICAL", "NATIVE", "chk"])
def test_an_edit_without_changes_changes_nothing(
    saved: Saved, tmp_path: Path, spark: SparkSession, kind: str
) -> None:
    source = saved.sources[kind]
    before = digests(Path(source))
    edited = ckpt.edit_state(source).save(str(tmp_path / "edited"))

    assert digests(Path(source)) == before
    assert stored(edited.path) == stored(saved.canonical)
    assert ckpt.location(edited.path).verify().epoch == 1
    assert later(saved.job, edited.path, tmp_path) == expected_after(
        [event for epoch in range(3) for event in events_of(epoch)], 40
    )


def test_what_is_edited_is_pinned(saved: Saved, tmp_path: Path) -> None:
    """Retention and disposal leave the source alone while its entries are changed."""
    source = Path(saved.sources["chk"])
    directory = str(source.parent)

    def changed(rows: Any) -> Any:
        assert list(Path(directory).glob("_reader-*.json"))
        return rows

    ckpt.edit_state(str(source)).change("op", "count", changed).save(str(tmp_path / "edited"))
    assert not list(source.parent.glob("_reader-*.json"))


@pytest.mark.slow
def test_one_changed_entry_changes_its_key_only(
    saved: Saved, tmp_path: Path, spark: SparkSession
) -> None:
    counts = {k: (n, total) for k, n, total in counts_of(events_of(0) + events_of(1))}
    counts["k0"] = (100, 1000)
    rows = spark.createDataFrame(
        [(k, *v) for k, v in counts.items()], "k string, n long, total long"
    )
    before = digests(Path(saved.canonical))
    edited = (
        ckpt.edit_state(saved.canonical).put("op", "count", rows).save(str(tmp_path / "edited"))
    )

    assert digests(Path(saved.canonical)) == before
    now, was = stored(edited.path), stored(saved.canonical)
    assert now.keys() == was.keys()
    assert [key[4:] for key in now if now[key] != was[key]] == [b"\xa2k0"]
    rows_of_fork = later(saved.job, edited.path, tmp_path)
    others = expected_after([e for epoch in range(3) for e in events_of(epoch)], 40)
    assert [row for row in rows_of_fork if row[0] != "k0"] == [r for r in others if r[0] != "k0"]
    assert min(row[1] for row in rows_of_fork if row[0] == "k0") == 101


def counts_of(events: list[Any]) -> list[tuple[str, int, int]]:
    keys = sorted({k for k, _ in events})
    of = {k: [v for each, v in events if each == k] for k in keys}
    return [(k, len(values), sum(values)) for k, values in of.items()]


def test_erased_keys_are_in_no_byte(saved: Saved, tmp_path: Path, spark: SparkSession) -> None:
    keys = spark.createDataFrame([("k0",), ("k4",), ("never",)], "k string")
    edited = ckpt.edit_state(saved.canonical).erase("op", keys).save(str(tmp_path / "edited"))

    left, was = stored(edited.path), stored(saved.canonical)
    assert any(b"k0" in key for key in was)
    assert left == {key: v for key, v in was.items() if b"k0" not in key and b"k4" not in key}
    rows = later(saved.job, edited.path, tmp_path)
    assert min(n for k, n, _ in rows if k == "k0") == 1
    others = expected_after([e for epoch in range(3) for e in events_of(epoch)], 40)
    assert [r for r in rows if r[0] not in ("k0", "k4")] == [
        r for r in others if r[0] not in ("k0", "k4")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["erased", "put", "first"])
def test_a_state_without_entries_is_an_empty_table(
    saved: Saved, tmp_path: Path, spark: SparkSession, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing else says which states there are, and what their columns are."""
    names = ["count", "recent", "tally"]
    edit = (
        ckpt.edit_state(saved.canonical)
        if way != "first"
        else ckpt.edit_state(query=saved.job.df())
    )
    if way == "erased":
        edit.erase("op", edit.table("op", "count").select("k"))
    else:
        for name in names:
            edit.put("op", name, edit.table("op", name).limit(0))
    empty = edit.save(str(tmp_path / "edited")).path

    with ckpt.location(empty).state() as snapshot, ckpt.location(saved.canonical).state() as before:
        states = snapshot.states().drop(columns="subtasks")
        assert states.equals(before.states().drop(columns="subtasks"))
        for name in names:
            table = snapshot.state("op", name).to_arrow().read_all()
            assert table.equals(before.state("op", name).schema.empty_table())
    spark.dataSource.register(ckpt.StateDataSource)
    reader = spark.read.format("pyspark_ckpt.state").option("operator", "op")
    frame = reader.option("state", "tally").load(empty)
    assert frame.columns == ["k", "bucket", "times", "last"]
    assert frame.count() == 0
    assert main(["state", empty, "--state", "count", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == []
    first = 0 if way == "first" else 2  # where the source continues
    events = [event for epoch in range(first, 3) for event in events_of(epoch)]
    assert later(saved.job, empty, tmp_path) == in_order(expected(events))


def test_rows_that_are_put_after_an_erasure_stay(
    saved: Saved, tmp_path: Path, spark: SparkSession
) -> None:
    """Changes apply in the order of the calls."""
    both = spark.createDataFrame([("k0", 7, 70), ("k1", 8, 80)], "k string, n long, total long")
    k0, k1 = both.where("k = 'k0'").select("k"), both.where("k = 'k1'").select("k")
    edit = ckpt.edit_state(saved.canonical).erase("op", k0).put("op", "count", both)
    edit = edit.erase("op", k1)
    found = [tuple(row) for row in edit.table("op", "count").select("k", "n", "total").collect()]
    assert found == [("k0", 7, 70)]
    edited = edit.save(str(tmp_path / "edited"))
    with ckpt.location(edited.path).state() as snapshot:
        [row] = snapshot.state("op", "count").to_arrow().read_all().to_pylist()
    assert (row["k"], row["n"], row["total"]) == ("k0", 7, 70)


def test_a_dropped_state_starts_empty(saved: Saved, tmp_path: Path) -> None:
    edited = ckpt.edit_state(saved.canonical).drop_state("op", "recent").save(str(tmp_path / "e"))
    was = stored(saved.canonical)
    assert stored(edited.path) == {key: value for key, value in was.items() if key[2] != 1}
    plan = ckpt.location(edited.path).plan(saved.job.df())
    assert {row.state: row.outcome for row in plan.states}["recent"] == "new"
    rows = later(saved.job, edited.path, tmp_path)
    assert {row[1] for row in rows} == {
        row[1] for row in expected_after([e for n in range(3) for e in events_of(n)], 40)
    }


def test_a_dropped_operator_is_gone(saved: Saved, tmp_path: Path) -> None:
    edit = ckpt.edit_state(saved.canonical).drop_operator("op")
    with pytest.raises(ckpt.errors.PlanError, match="no operator"):
        edit.save(str(tmp_path / "edited"))


def test_lineage_shows_the_source(saved: Saved, tmp_path: Path) -> None:
    edited = ckpt.edit_state(saved.canonical).save(str(saved.job.base / "lineage"))
    rows = ckpt.location(str(saved.job.base)).lineage().drop_duplicates("path").set_index("path")
    assert rows.loc[edited.path, "parent"] == saved.canonical
    assert rows.loc[edited.path, "generation"] == rows.loc[saved.canonical, "generation"] + 1


def test_damaged_and_hostile_sources_are_refused(saved: Saved, tmp_path: Path) -> None:
    with pytest.raises(ckpt.errors.CheckpointNotFoundError):
        ckpt.edit_state(str(tmp_path))
    for name in ("_metadata", "state"):
        copy = tmp_path / name
        edited = ckpt.edit_state(saved.canonical).save(str(copy))
        victim = Path(edited.path) / "_metadata"
        if name == "state":
            victim = files_below(Path(edited.path) / "shared")[0]
        flip_bit(victim)
        with pytest.raises(ckpt.errors.CorruptFileError) as caught:
            ckpt.edit_state(edited.path).save(str(tmp_path / "out"))
        print(gist(caught.value))
        assert not files_below(tmp_path / "out")


@pytest.mark.parametrize("is_touched", [False, True])
def test_a_checkpoint_that_retention_removes_meanwhile_is_named(
    saved: Saved, tmp_path: Path, spark: SparkSession, is_touched: bool
) -> None:
    source = Path(saved.sources["chk"])
    shutil.copytree(source.parent, tmp_path / "all")
    edit = ckpt.edit_state(str(tmp_path / "all" / source.name))
    if is_touched:
        edit.drop_state("op", "recent")
    for name in (source.name, "shared", "taskowned"):
        shutil.rmtree(tmp_path / "all" / name, ignore_errors=True)
    with pytest.raises(ckpt.errors.CheckpointNotFoundError, match=source.name):
        edit.save(str(tmp_path / "out"))
    assert not files_below(tmp_path / "out")


class Alarm(StatefulProcessor):
    """Fires timers, and has a time to live in processing time."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.getValueState("seen", "v long", ttlDurationMs=10**12)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.seen.update((row.v,))
        yield Row(k=key[0], n=-1, state=str(self.seen.get()))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        seen = self.seen.get()
        yield Row(k=key[0], n=expiredTimerInfo.getExpiryTimeInMs(), state=str(seen))

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_timers_fire_and_entries_expire(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, Feed(tmp_path / "in"), processor=Alarm, time_mode="ProcessingTime")
    timers = spark.sql("select 'a' k, timestamp_millis(1500) fires_at")
    timers = timers.union(spark.sql("select 'b' k, timestamp_millis(-7) fires_at"))
    seen = spark.sql(
        "select 'a' k, 5L v, timestamp '2200-01-01' expires_at "
        "union all select 'b', 6L, timestamp '2001-01-01' union all select 'c', 7L, null"
    )
    edit = ckpt.edit_state(query=job.df()).put("op", "seen", seen)
    first = edit.set_timers("op", timers.union(timers)).save(str(tmp_path / "first"))
    job.feed.add([("c", 8)])
    job.run(first.path)
    shown = {(k, n): state for k, n, state in job.result()}
    assert shown[("a", 1500)] == "(5,)"
    assert shown[("b", -7)] == "None"


KEYS_OF_ALL_TYPES = (
    "v % 3 = 0 as b",
    "cast(v as tinyint) - 10 as i",
    "if(v % 4 = 0, null, v * 10000000000) as l",
    "case v % 5 when 0 then double('NaN') when 1 then -0.0D when 2 then null else v / 3 end as d",
    "cast(v / 7 as float) as f",
    "concat(k, repeat('\u00e9', cast(v as int) * 9)) as s",
    "cast(k as binary) as y",
    "cast(v / 8 as decimal(30, 18)) as m",
    "date_add(date'1960-01-01', cast(v as int) * 999) as t",
    "timestamp_micros(v * 1234567891) as u",
    "timestamp_ntz'2020-01-01 00:00:00' + make_dt_interval(0, 0, 0, v / 10) as n",
    "make_dt_interval(0, cast(v as int)) as w",
    "make_ym_interval(cast(v as int), 1 - cast(v as int)) as j",
    "array(make_ym_interval(0, cast(v as int)), null) as ja",
    "array(v, null, v + 1) as a",
    "if(v % 2 = 0, null, struct(v as x, array(struct(k as z, -0.0D as w)) as c)) as r",
)


@pytest.mark.slow
def test_keys_of_every_type_are_found_as_the_query_stores_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    def plan(job: Job) -> DataFrame:
        rows = job.feed.stream(job.spark).selectExpr("v", *KEYS_OF_ALL_TYPES)
        keyed = ckpt.key_by(rows, *NAMES)
        return keyed.transformWithState(Last(), "v long", "Append", "None", uid="op")

    job = Job(spark, tmp_path, Feed(tmp_path / "in"), plan=plan)
    job.feed.add(events_of(0))
    with job.running() as query:
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(tmp_path / "sp")).path
    events = spark.createDataFrame(events_of(0), "k string, v long")
    rows = events.selectExpr("v", *KEYS_OF_ALL_TYPES)

    put = ckpt.edit_state(savepoint).put("op", "last", rows.select(*NAMES, "v"))
    assert stored(put.save(str(tmp_path / "put")).path) == stored(savepoint)
    erased = ckpt.edit_state(savepoint).erase("op", rows.select(*NAMES)).save(str(tmp_path / "e"))
    assert stored(erased.path) == {}
    assert len(stored(savepoint)) == 20


NAMES = tuple(each.rpartition(" ")[2] for each in KEYS_OF_ALL_TYPES)


class Last(StatefulProcessor):
    """Keeps the last value of a key."""

    def init(self, handle: Any) -> None:
        self.last = handle.getValueState("last", "v long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.last.update((row.v,))
            yield Row(v=row.v)

    def close(self) -> None:
        pass
