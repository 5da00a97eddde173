"""Operator list, broadcast and raw state are changed, and a restored query sees the changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.editing.test_edit import stored
from tests.query.harness import BACKEND, BACKENDS, OFTEN, Feed, Job, digests, files_below
from tests.query.session_conf import session_conf

pytestmark = pytest.mark.slow

OUTPUT = "k string, n long, rules string, seen string, raw string, every string"
PARALLELISM = 2


class Ruled(StatefulProcessor):
    """Shows all of a subtask's state for each row; each subtask stores its number as raw state."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")
        self.seen = handle.getOperatorListState("seen", "v long")
        self.every = handle.getOperatorListState("every", "subtask string", "union")
        self.rules = handle.getBroadcastState("rules", "name string", "factor long, k string")
        self.raw: list[str] = []

    def restoreState(self, context: Any) -> None:
        self.raw = [stream.read().decode() for stream in context.getRawOperatorStateInputs()]

    def snapshotState(self, context: Any) -> None:
        with context.getRawOperatorStateOutput() as stream:
            stream.write(self.number().encode())

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            n = (self.count.get() or (0,))[0] + 1
            self.count.update((n,))
            self.seen.appendValue((row.v,))
            if not self.every.exists():
                self.every.appendValue((self.number(),))
            shown = {
                "rules": sorted([*name, *rule] for name, rule in self.rules.iterator()),
                "seen": [v for (v,) in self.seen.get()],
                "raw": self.raw,
                "every": [v for (v,) in self.every.get()],
            }
            yield Row(k=key[0], n=n, **{name: json.dumps(each) for name, each in shown.items()})

    def number(self) -> str:
        context = TaskContext.get()
        assert context is not None
        return f"subtask {context.partitionId()}"

    def close(self) -> None:
        pass


KEYS = [(f"k{n}", n) for n in range(8)]


@pytest.fixture(scope="module", params=BACKENDS)
def saved(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Job, str]:
    """A canonical savepoint after one epoch, and input for another."""
    base = tmp_path_factory.mktemp("ruled")
    options = {**OFTEN, BACKEND: request.param}
    job = Job(spark, base, Feed(base / "in"), processor=Ruled, output=OUTPUT, options=options)
    with session_conf(spark, {"spark.sql.shuffle.partitions": str(PARALLELISM)}):
        job.feed.add(KEYS)
        with job.running() as query:
            query.processAllAvailable()
            path = query.triggerSavepoint(str(base / "sp")).path
    job.feed.add(KEYS)
    return job, path


def later(saved: tuple[Job, str], savepoint: str, base: Path) -> list[Row]:
    """Return what the first row of each subtask of a restored query shows."""
    fork = saved[0].but(base=base, location="fork", out="fork-out")
    with session_conf(fork.spark, {"spark.sql.shuffle.partitions": str(PARALLELISM)}):
        fork.run(savepoint)
    rows = [Row(*[each.split()[0] for each in OUTPUT.split(", ")])(*row) for row in fork.result()]
    assert {row.n for row in rows} == {2}
    return rows


@pytest.mark.soak
def test_each_is_replaced_and_nothing_else(saved: tuple[Job, str], tmp_path: Path) -> None:
    job, path = saved
    spark = job.spark
    before = digests(Path(path))
    edit = ckpt.edit_state(path)
    rules = [("a", 3, "x"), ("b", None, None)]
    edit.put("op", "rules", spark.createDataFrame(rules, "name string, factor long, k string"))
    seen = [(1, 2, 12), (1, 0, 10), (1, 1, 11), (0, 0, 7)]
    edit.put("op", "seen", spark.createDataFrame(seen, "subtask int, position int, v int"))
    every = [(subtask, f"edited {subtask}") for subtask in range(PARALLELISM)]
    edit.put("op", "every", spark.createDataFrame(every, "_subtask int, subtask string"))
    large = b"r" * 2_500_000
    raw = [(0, 0, b"zero"), (1, 3, b"one"), (1, 7, large)]
    edit.set_raw("op", spark.createDataFrame(raw, "subtask int, stream int, data binary"))
    assert [tuple(row) for row in edit.raw("op").orderBy("stream").collect()] == raw
    edited = edit.save(str(tmp_path / "edited")).path

    assert digests(Path(path)) == before
    with ckpt.location(edited).state() as snapshot:
        assert sorted(map(tuple, snapshot.state("op", "rules").to_pandas().values))[0] == rules[0]
        found = snapshot.state("op", "seen").to_pandas().sort_values(["subtask", "position"])
        assert found.v.tolist() == [7, 10, 11, 12]
        assert [len(data) for data in snapshot.raw("op").to_pandas().data] == [4, 3, 2_500_000]
    was = {key: value for key, value in stored(path).items() if key < b"\x80\x00"}
    assert {key: value for key, value in stored(edited).items() if key < b"\x80\x00"} == was

    rows = later(saved, edited, tmp_path)
    assert all(json.loads(row.rules) == [list(rule) for rule in rules] for row in rows)
    for subtask, old in enumerate([[7], [10, 11, 12]]):
        of_subtask = [row for row in rows if json.loads(row.every) == [f"edited {subtask}"]]
        assert of_subtask
        for row in of_subtask:
            assert json.loads(row.seen)[: len(old)] == old
            assert json.loads(row.raw) == [["zero"], ["one", large.decode()]][subtask]


@pytest.mark.soak_variants
def test_changed_by_functions_and_dropped(saved: tuple[Job, str], tmp_path: Path) -> None:
    job, path = saved

    def hundred_more(rows: pa.Table) -> pa.Table:
        values = pa.compute.add(rows["v"], 100)
        return rows.set_column(rows.schema.get_field_index("v"), "v", values)

    rule = job.spark.createDataFrame([("a", 3, "x")], "name string, factor long, k string")
    edit = ckpt.edit_state(path).put("op", "rules", rule)
    one = edit.save(str(tmp_path / "one")).path
    edit = ckpt.edit_state(one).change("op", "seen", hundred_more).drop_state("op", "every")
    edit.change("op", "rules", lambda rows: rows.assign(factor=rows.factor * 2), as_pandas=True)
    edit.set_raw("op", edit.raw("op").where("subtask = 0"))
    edited = edit.save(str(tmp_path / "two")).path

    with ckpt.location(edited).state() as now, ckpt.location(path).state() as before:
        tables = [each.state("op", "seen").to_pandas() for each in (before, now)]
        assert sorted(tables[0].v + 100) == sorted(tables[1].v)
        assert now.state("op", "rules").to_arrow().read_all().to_pylist() == [
            {"name": "a", "factor": 6, "k": "x"}
        ]
        assert now.raw("op").to_pandas().subtask.tolist() == [0]
    rows = later(saved, edited, tmp_path)
    assert {row.rules for row in rows} == {json.dumps([["a", 6, "x"]])}
    assert {row.raw for row in rows} == {'["subtask 0"]', "[]"}
    assert {row.every for row in rows} == {'["subtask 0"]', '["subtask 1"]'}


@pytest.mark.soak
def test_what_does_not_fit_is_refused(saved: tuple[Job, str], tmp_path: Path) -> None:
    job, path = saved
    frame = job.spark.createDataFrame
    raw = "subtask int, stream int, data binary"
    for state, rows, says in (
        ("seen", frame([(2, 0, 1)], "subtask int, position int, v int"), "subtask is 2, and the"),
        ("seen", frame([(None, 0, 1)], "subtask int, position int, v int"), "subtask is null"),
        ("rules", frame([("a", 1, "")] * 2, "name string, factor long, k string"), "two values at"),
        (None, frame([(0, 1, b"a")] * 2, raw), "raw state would get stream 1 twice"),
        (None, frame([(0, 1 << 16, b"a")], raw), "stream is 65536"),
        (None, frame([(0, 1, None)], raw), "data is null"),
    ):
        edit = ckpt.edit_state(path)
        edit = edit.set_raw("op", rows) if state is None else edit.put("op", state, rows)
        with pytest.raises(ckpt.errors.StateValueError, match=says):
            edit.save(str(tmp_path / "edited"))
    with pytest.raises(
        ckpt.errors.PlanError, match="its table has subtask int, position bigint, v bigi"
    ):
        ckpt.edit_state(path).put("op", "seen", frame([(1,)], "v int"))
    assert not files_below(tmp_path / "edited")


class Leases(StatefulProcessor):
    """Keeps intervals of years and months."""

    def init(self, handle: Any) -> None:
        self.lease = handle.getValueState(
            "lease", "term interval year to month, all array<interval month>"
        )

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for _ in rows:
            yield Row(k=key[0], lease=str(self.lease.get()))

    def close(self) -> None:
        pass


@pytest.mark.soak
def test_intervals_of_years_and_months(spark: SparkSession, tmp_path: Path) -> None:
    """A DataFrame has intervals, and functions get and return their months."""
    job = Job(
        spark, tmp_path, Feed(tmp_path / "in"), processor=Leases, output="k string, lease string"
    )
    leases = spark.sql(
        "select 'a' k, interval '2-3' year to month term, array(interval '5' month, null) all "
        "union all select 'b', null, null union all select 'c', interval '-1' year, array()"
    )
    first = ckpt.edit_state(query=job.df()).put("op", "lease", leases).save(str(tmp_path / "e"))
    edit = ckpt.edit_state(first.path)
    assert edit.table("op", "lease").where("k = 'a'").first() == Row(k="a", term=27, all=[5, None])
    edit.change("op", "lease", lambda rows: rows.assign(term=rows.term + 1), as_pandas=True)
    edited = edit.save(str(tmp_path / "e"))
    job.feed.add([("a", 1), ("b", 1), ("c", 1)])
    job.run(edited.path)
    assert job.result() == [
        ("a", "(28, [5, None])"),
        ("b", "(None, None)"),
        ("c", "(-11, [])"),
    ]


class Rules(StatefulProcessor):
    """Shows the rules of its subtask."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")
        self.rules = handle.getBroadcastState("rules", "name string", "factor long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self.count.update((len(list(rows)),))
        yield Row(k=key[0], rules=str(list(self.rules.iterator())))

    def close(self) -> None:
        pass


class NoRules(StatefulProcessor):
    """Deletes the rules of a subtask that has rows."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")
        handle.deleteIfExists("rules")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self.count.update((len(list(rows)),))
        yield Row(k=key[0], rules="none")

    def close(self) -> None:
        pass


def rules_of(savepoint: str) -> dict[str, list[Any]]:
    """Return the stored entries of the rules by subtask."""
    tables = {
        path.name.split("-")[1]: pq.read_table(path)
        for path in files_below(Path(savepoint))
        if path.suffix == ".parquet"
    }
    return {
        subtask: [
            (row["stored_key"][3:], row["stored_value"])
            for row in table.to_pylist()
            if row["state"] == "rules"
        ]
        for subtask, table in tables.items()
    }


def test_broadcast_state_of_some_subtasks_stays_theirs(spark: SparkSession, tmp_path: Path) -> None:
    """A subtask without rows keeps what the processor has deleted, or cleared, in others since."""
    job = Job(spark, tmp_path, Feed(tmp_path / "in"), Rules, "k string, rules string")
    savepoints = str(tmp_path / "sp")
    with session_conf(spark, {"spark.sql.shuffle.partitions": str(PARALLELISM)}):
        edit = ckpt.edit_state(query=job.df())
        counts = spark.createDataFrame([(k, 1) for k, _ in KEYS], "k string, n long")
        edit.put("op", "count", counts)
        edit.put("op", "rules", spark.createDataFrame([("a", 3)], "name string, factor long"))
        first = edit.save(savepoints).path
        with ckpt.location(first).state() as snapshot:
            view = snapshot.state("op", "count")
            of_subtask = [view.to_arrow(subtask=n).read_all()["k"].to_pylist() for n in range(2)]
        job.feed.add([(of_subtask[1][0], 1)])
        with job.but(processor=NoRules).running(first) as query:
            query.processAllAvailable()
            deleted = query.triggerSavepoint(savepoints).path
        job.feed.add([(of_subtask[1][0], 2)])
        with job.running() as query:
            query.processAllAvailable()
            empty = query.triggerSavepoint(savepoints).path
    job.feed.add([(of_subtask[0][0], 3)])

    for place, path in enumerate((deleted, empty)):
        edit = ckpt.edit_state(path).change("op", "count", lambda rows: rows)
        edited = edit.save(str(tmp_path / "edited")).path
        assert rules_of(path) == rules_of(edited)
        assert [len(rules) for rules in rules_of(path).values()] == [1, 0]
        shown = []
        for number, each in enumerate((path, edited)):
            with ckpt.location(each).state() as snapshot:
                states = snapshot.states().set_index("state")
                rows = snapshot.state("op", "rules").to_arrow().read_all().to_pylist()
            with session_conf(spark, {"spark.sql.shuffle.partitions": "1"}):
                fork = job.but(location=f"fork{place}{number}", out=f"fork{place}{number}-out")
                fork.run(each)
            shown.append((states.loc["rules", "subtasks"], rows, fork.result()))
        assert shown[0] == shown[1]


class RulesOfInit(Rules):
    """Writes the rules of its subtask itself."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.rules.updateValue(("a",), (3,))


def test_broadcast_state_of_the_only_subtask_that_had_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The other subtasks get no empty copy, which would then count for all."""
    job = Job(spark, tmp_path, Feed(tmp_path / "in"), RulesOfInit, "k string, rules string")
    savepoints = str(tmp_path / "sp")
    with session_conf(spark, {"spark.sql.shuffle.partitions": str(PARALLELISM)}):
        counts = spark.createDataFrame([(k, 1) for k, _ in KEYS], "k string, n long")
        edit = ckpt.edit_state(query=job.df()).put("op", "count", counts)
        with ckpt.location(edit.save(savepoints).path).state() as snapshot:
            view = snapshot.state("op", "count").to_arrow(subtask=PARALLELISM - 1)
            key = view.read_all()["k"].to_pylist()[0]
        job.feed.add([(key, 1)])
        with job.running() as query:
            query.processAllAvailable()
            saved = query.triggerSavepoint(savepoints).path
    assert [len(rules) for rules in rules_of(saved).values()] == [1]
    edited = ckpt.edit_state(saved).change("op", "count", lambda rows: rows).save(savepoints).path
    for path in (saved, edited):
        with ckpt.location(path).state() as snapshot:
            rules = snapshot.state("op", "rules").to_arrow().read_all().to_pylist()
        assert rules == [{"name": "a", "factor": 3}]
    assert ckpt.edit_state(edited).table("op", "rules").count() == 1
