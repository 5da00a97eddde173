"""Functions over the tables of a savepoint change what they return, and its keys."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import types as T
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.harness import BACKEND, BACKENDS, OFTEN, Feed, Job, await_checkpoint, files_below
from tests.query.model import events_of, expected_after
from tests.query.timed import at, timed_feed
from tests.unit.operator.subtask_epochs import NUMBER
from tests.unit.snapshot.made_savepoint import UID, MadeSavepoint

STATES = ("count", "recent", "tally")
EVERYTHING = [event for epoch in range(4) for event in events_of(epoch)]


@pytest.fixture(scope="module", params=BACKENDS)
def checkpoint(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Job, str]:
    """A checkpoint of a stopped query after three epochs, and input for a fourth."""
    base = tmp_path_factory.mktemp("changed")
    job = Job(spark, base, Feed(base / "in"), options={**OFTEN, BACKEND: request.param})
    with job.running() as query:
        for epoch in range(3):
            job.feed.add(events_of(epoch))
            query.processAllAvailable()
        path = await_checkpoint(query, 2).path
    job.feed.add(events_of(3))
    return job, path


def later(job: Job, savepoint: str, base: Path) -> list[Any]:
    fork = job.but(base=base, location="fork", out="fork-out")
    fork.run(savepoint)
    return fork.result()


@pytest.mark.slow
@pytest.mark.soak_variants
def test_functions_that_return_what_they_get_change_nothing(
    checkpoint: tuple[Job, str], tmp_path: Path
) -> None:
    job, path = checkpoint
    edit = ckpt.edit_state(path)
    for number, state in enumerate(STATES):
        edit.change("op", state, lambda rows: rows, as_pandas=number == 0)
    assert later(job, edit.save(str(tmp_path / "e")).path, tmp_path) == expected_after(
        EVERYTHING, 60
    )


@pytest.mark.slow
@pytest.mark.soak_variants
def test_one_entry_is_changed_in_each_kind_of_state(
    checkpoint: tuple[Job, str], tmp_path: Path
) -> None:
    job, path = checkpoint

    def count(rows: pd.DataFrame) -> pd.DataFrame:
        rows.loc[rows.k == "k1", "n"] = 500
        return rows

    def recent(rows: pa.Table) -> pa.Table:
        return rows.filter(pc.invert(pc.equal(rows["k"], "k1")))

    edit = ckpt.edit_state(path).change("op", "count", count, as_pandas=True)
    edit.change("op", "recent", recent)
    tally = edit.table("op", "tally").where("k <> 'k1' or bucket = 1")
    edited = edit.put("op", "tally", tally).save(str(tmp_path / "e"))

    with ckpt.location(edited.path).state() as now, ckpt.location(path).state() as before:
        for state in STATES:
            tables = [each.state("op", state).to_pandas() for each in (now, before)]
            others = [each[each.k != "k1"].reset_index(drop=True) for each in tables]
            assert others[0].equals(others[1])
        assert now.state("op", "count").get("k1")["n"] == 500
    rows = later(job, edited.path, tmp_path)
    everything = expected_after(EVERYTHING, 60)
    assert [r for r in rows if r[0] != "k1"] == [r for r in everything if r[0] != "k1"]
    assert min(row[1] for row in rows if row[0] == "k1") == 501


@pytest.mark.slow
@pytest.mark.soak_variants
def test_all_state_of_a_key_gets_another_key(checkpoint: tuple[Job, str], tmp_path: Path) -> None:
    job, path = checkpoint

    def swap(keys: pa.Table) -> pa.Table:
        places = {"k0": "k1", "k1": "k0"}
        swapped = [places.get(key, key) for key in keys["k"].to_pylist()]
        return pa.table({"k": pa.array(swapped, pa.string())})

    edited = ckpt.edit_state(path, query=job.df()).rekey("op", swap).save(str(tmp_path / "e"))
    with ckpt.location(edited.path).state() as now, ckpt.location(path).state() as before:
        for state in STATES:
            tables = [each.state("op", state).to_pandas() for each in (now, before)]
            tables[0]["k"] = tables[0].k.replace({"k0": "k1", "k1": "k0"})
            columns = [name for name in tables[0] if name in ("k", "bucket", "position")]
            found = [each.sort_values(columns).reset_index(drop=True) for each in tables]
            assert found[0].equals(found[1])
    swapped = [({"k0": "k1", "k1": "k0"}.get(k, k), v) for k, v in EVERYTHING[:60]]
    assert later(job, edited.path, tmp_path) == expected_after([*swapped, *EVERYTHING[60:]], 60)


@pytest.mark.slow
@pytest.mark.soak_variants
def test_keys_get_another_type(checkpoint: tuple[Job, str], tmp_path: Path) -> None:
    _, path = checkpoint

    def numbered(keys: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"a": keys.k.str[1:].astype(int), "n": 1})

    edit = ckpt.edit_state(path).rekey("op", numbered, "a long, n int", as_pandas=True)
    person = edit.table("op", "count").where("a = 2").select("a", "n")
    edited = edit.erase("op", person).save(str(tmp_path / "e"))
    with ckpt.location(edited.path).state() as now, ckpt.location(path).state() as before:
        view = now.state("op", "count")
        assert view.schema.names == ["a", "n", "value_n", "total"]
        was = before.state("op", "count").get("k3")
        assert list(view.get(3, 1).values()) == list(was.values())
        assert view.get(2, 1) is None


@pytest.mark.soak
def test_mistakes_of_functions_are_named(checkpoint: tuple[Job, str], tmp_path: Path) -> None:
    _, path = checkpoint

    def fails(rows: pa.Table) -> pa.Table:
        raise KeyError("my mistake")

    for function, says in (
        (fails, "state 'count': the function raised KeyError"),
        (lambda rows: rows.select(["k"]), "not a table of k, n, total"),
        (lambda _: None, "NoneType, which is not a table"),
    ):
        with pytest.raises(ckpt.errors.ProcessorError, match=says):
            ckpt.edit_state(path).change("op", "count", function).save(str(tmp_path / "e"))
    same = pa.array(["k0"])
    with pytest.raises(ckpt.errors.ProcessorError, match="returned 1 keys for"):
        ckpt.edit_state(path).rekey("op", lambda _: pa.table({"k": same})).save(str(tmp_path / "e"))
    with pytest.raises(ckpt.errors.StateValueError, match="two values at one place"):
        ckpt.edit_state(path).rekey(
            "op", lambda keys: pa.table({"k": pa.array(["k0"] * len(keys))})
        ).save(str(tmp_path / "e"))
    assert not files_below(tmp_path / "e")


class Keeps(StatefulProcessor):
    """Keep the newest value that is not negative, and emit what is kept."""

    ttl: Any = None

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long", self.ttl)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row.v >= 0:
                self.n.update((row.v,))
        yield Row(k=key[0], n=(self.n.get() or (-1,))[0])

    def close(self) -> None:
        pass


class Forgets(Keeps):
    ttl = ckpt.StateTtlConfig(20_000, time="event")


@pytest.mark.soak
def test_entries_of_an_idle_subtask_expire_as_without_the_edit(job: Job, tmp_path: Path) -> None:
    """Its entries have no time yet: time to live was switched on while it had no row."""
    job = job.but(feed=timed_feed(tmp_path / "timed"), output="k string, n long", uid="op")
    job = job.but(time_mode="EventTime", watermark="ts", processor=Keeps)
    keys = [f"k{number}" for number in range(12)]
    job.feed.add([(key, 1, at(1)) for key in keys], [("k0", 2, at(10))])
    job.run()
    job = job.but(processor=Forgets)
    job.feed.add([("k0", 3, at(12))])
    with job.running() as query:
        query.processAllAvailable()
        saved = query.triggerSavepoint(str(tmp_path / "saved")).path
    edit = ckpt.edit_state(saved).change("op", "n", lambda table: table)
    edited = edit.save(str(tmp_path / "edited")).path
    for seconds in (15, 40, 80, 100, 101):
        job.feed.add([(key, -1, at(seconds)) for key in keys[1:]])
    found = []
    for name, path in (("one", saved), ("other", edited)):
        fork = job.but(location=name, out=f"out-{name}")
        fork.run(restore=path)
        found.append(fork.result())
    assert found[0] == found[1]
    assert {("k2", 1), ("k2", -1)} <= set(found[0])


class Ages(StatefulProcessor):
    """Declares a state of each kind of key with a time to live."""

    def init(self, handle: Any) -> None:
        handle.getValueState("one", "n long", 10**11)
        handle.getListState("many", "n long", 10**11)
        handle.getMapState("named", "name string", "n long", 10**11)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield from ()

    def close(self) -> None:
        pass


def test_rows_that_are_put_without_a_time_get_other_keys(
    spark: SparkSession, tmp_path: Path
) -> None:
    """They count as written by the edit, as without `rekey`."""
    edit = ckpt.edit_state(spark=spark).add_operator(
        "op", Ages(), "k string", time_mode="ProcessingTime", parallelism=1
    )
    puts = {
        "one": "select 'a' k, 1L n",
        "many": "select 'a' k, 1L n",
        "named": "select 'a' k, 'x' name, 1L n",
    }
    for state, rows in puts.items():
        edit.put("op", state, spark.sql(rows))
    edit.rekey("op", lambda keys: pa.table({"n": pa.array([7] * len(keys), pa.int64())}), "n long")
    begin = datetime.now(timezone.utc) + timedelta(milliseconds=10**11 - 1)
    edited = edit.save(str(tmp_path / "e"))
    with ckpt.location(edited.path).state() as now:
        for state in puts:
            (row,) = now.state("op", state).to_arrow().read_all().to_pylist()
            assert (row["n"], row["value_n"]) == (7, 1)
            assert begin <= row["expires_at"] < begin + timedelta(hours=1)


def test_states_keep_the_history_of_their_schemas(spark: SparkSession, tmp_path: Path) -> None:
    """So that an edit can be compared with its source, whose values have these schemas too."""
    users = [(f"u{number}",) for number in range(6)]
    made = MadeSavepoint(tmp_path, T.StructType().add("user", "string"), users)
    for schema, values in (("n int", (7,)), ("n long, s string", (8, "later"))):
        parsed = T._parse_datatype_string(schema)

        def init(handle: Any, schema: T.StructType = parsed) -> dict[str, Any]:
            return {
                "value": handle.getValueState("value", schema),
                "list": handle.getListState("list", schema),
                "map": handle.getMapState("map", NUMBER, schema),
                "offsets": handle.getOperatorListState("offsets", schema),
            }

        def work(states: dict[str, Any], key: Any, values: Any = values) -> None:
            if len(values) == 1 or key in users[:3]:
                states["value"].update(values)
                states["list"].appendValue(values)
                states["map"].updateValue((len(values),), values)

        def outside(states: dict[str, Any], _: int, values: Any = values) -> None:
            states["offsets"].appendValue(values)

        made.epoch(init, work, outside=outside)
    source = made.save("savepoint", canonical=True)

    def third(keys: pd.DataFrame) -> pd.DataFrame:
        return keys.replace("u2", "moved")

    edit = ckpt.edit_state(source, spark=spark).change(UID, "offsets", lambda rows: rows)
    edited = edit.rekey(UID, third, as_pandas=True).save(str(tmp_path / "edited"))
    difference = ckpt.location(source).diff(edited.path)
    assert difference.to_arrow(UID, "offsets").num_rows == 0
    for name, rows in (("value", 1), ("list", 2), ("map", 2)):
        table = difference.to_arrow(UID, name).to_pylist()
        assert sorted((row["change"], row["user"]) for row in table) == (
            [("added", "moved")] * rows + [("removed", "u2")] * rows
        )
    [value] = [row for row in difference.to_arrow(UID, "value").to_pylist() if row["new_n"]]
    assert (value["new_n"], value["new_s"]) == (8, "later")
