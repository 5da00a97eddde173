"""A person's keys are erased from every savepoint of a directory, in bytes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.operator.state.operator_states import RAW_CHUNK_BYTES
from tests.query.harness import BACKEND, BACKENDS, OFTEN, Feed, Job, digests
from tests.query.model import Count, expected_after

EVENTS = [(name, v) for v in range(3) for name in ("ada.lovelace", "bob", "cleo")]


def erase(directory: Path, keys: dict[str, Any]) -> list[ckpt.results.Erasure]:
    """Erase keys; return what became of the savepoints that had one."""
    erasures = ckpt.location(str(directory)).erase_keys(keys)
    left = {str(path.parent) for path in directory.rglob("_metadata")}
    assert {each.savepoint.path for each in erasures} == left  # no savepoint is passed over
    return [each for each in erasures if each.replaced is not None]


def bytes_of(directory: Path) -> bytes:
    """Return all stored keys and values below a directory, and all other files."""
    found = []
    for path in sorted(directory.rglob("*")):
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            columns = table["stored_key"], table["stored_value"]
            found += [part for column in columns for part in column.to_pylist()]
        elif path.is_file():
            found.append(path.read_bytes())
    return b"\n".join(found)


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path, Feed(tmp_path / "in"), options=OFTEN)


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_savepoint_has_a_byte_of_the_key(
    job: Job, tmp_path: Path, spark: SparkSession, backend: str
) -> None:
    job = job.using({BACKEND: backend})
    savepoints = tmp_path / "sp"
    with job.running() as query:
        job.feed.add(EVENTS)
        query.processAllAvailable()
        old = [query.triggerSavepoint(str(savepoints), format=each).path for each in FORMATS]
    friends = spark.createDataFrame([("dora", 1)], "k string, n long")
    other = ckpt.edit_state(spark=spark).add_operator("other", Count(), "k string")
    untouched = other.put("other", "count", friends).save(str(savepoints)).path
    before = digests(Path(untouched))
    assert b"ada.lovelace" in bytes_of(savepoints)
    person = spark.createDataFrame([("ada.lovelace",), ("nobody",)], "k string")
    nobody = person.where("k = 'nobody'")

    erased = erase(savepoints, {"op": person, "other": nobody})

    assert sorted(each.replaced for each in erased) == sorted(old)
    assert not any(Path(path).exists() for path in old)
    assert {each.mentions for each in erased} == {0}
    assert b"ada.lovelace" not in bytes_of(savepoints)
    assert b"cleo" in bytes_of(savepoints)
    assert digests(Path(untouched)) == before
    assert erase(savepoints, {"op": person}) == []
    again = [("ada.lovelace", 7), ("bob", 8)]
    job.feed.add(again)
    for number, each in enumerate(erased):
        fork = job.but(base=tmp_path, location=f"fork{number}", out=f"out{number}")
        fork.run(each.savepoint.path)
        rows = {row[0]: row for row in fork.result()}
        assert rows["ada.lovelace"][1] == 1
        wanted = expected_after([*EVENTS, *again], len(EVENTS))
        assert rows["bob"] in wanted


FORMATS = ("CANONICAL", "NATIVE")


class Others(StatefulProcessor):
    """Keeps what mentions the keys of another operator."""

    def init(self, handle: Any) -> None:
        handle.getListState("friends", "name string")
        handle.getValueState("text", "t string")
        handle.getValueState("nested", "s struct<names: array<string>, ages: map<string, int>>")
        handle.getMapState("seen", "name string", "n long")
        handle.getValueState("data", "b binary")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield from ()

    def close(self) -> None:
        pass


def others(spark: SparkSession, name: str) -> ckpt.StateEdit:
    """Return an edit whose operator ``others`` has 8 entries that mention a name, and some not."""
    edit = ckpt.edit_state(spark=spark).add_operator("others", Others(), "team string, k string")

    def put(state: str, columns: str, *rows: Any) -> None:
        edit.put(
            "others", state, spark.createDataFrame(list(rows), f"team string, k string, {columns}")
        )

    put("friends", "name string", ("red", "dora", "emil"), ("red", "emil", name))
    put("text", "t string", ("red", "dora", f"met {name} twice"), ("blue", name, "met emil"))
    nested = "s struct<names: array<string>, ages: map<string, int>>"
    put("nested", nested, ("red", "dora", (["emil", name], {})), ("red", "emil", ([], {name: 36})))
    put("seen", "name string, n long", ("red", "dora", name, 1), ("red", "dora", "emil", 1))
    put("data", "b binary", ("red", "dora", f"\0{name}\1".encode()))
    divided = b" " * (RAW_CHUNK_BYTES - 3) + name.encode()
    raw = [(0, 0, divided), (0, 1, b"emil")]
    return edit.set_raw(
        "others", spark.createDataFrame(raw, "subtask int, stream int, data binary")
    )


@pytest.mark.slow
def test_what_others_hold_of_a_key_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    name, savepoints = "ada.lovelace", tmp_path / "sp"
    rows = spark.createDataFrame([(name, 1), ("dora", 2)], "k string, n long")
    edit = others(spark, name).add_operator("op", Count(), "k string")
    old = edit.put("op", "count", rows).save(str(savepoints)).path
    beside = others(spark, name).save(str(savepoints / "of-another-query")).path
    person = {"op": rows.select("k").where("n = 1")}

    erased = {each.replaced: each for each in ckpt.location(str(savepoints)).erase_keys(person)}
    assert erased.keys() == {None, old}
    assert erased[None].savepoint.path == beside
    assert {each.mentions for each in erased.values()} == {8}
    assert {each.too_short for each in erased.values()} == {0}

    again = ckpt.location(str(savepoints)).erase_keys(person)  # what is left is said again
    assert [(each.replaced, each.mentions) for each in again] == [(None, 8)] * 2
    of_others = spark.createDataFrame([("blue", name)], "team string, k string")
    erased = {
        each.replaced: each
        for each in ckpt.location(str(savepoints)).erase_keys({"others": of_others, **person})
    }
    assert {each.mentions for each in erased.values()} == {7}


@pytest.mark.slow
def test_what_is_too_short_to_be_searched_for_is_said(spark: SparkSession, tmp_path: Path) -> None:
    savepoints = tmp_path / "sp"
    rows = spark.createDataFrame([("bob", 7), ("dora", 70_000)], "k string, id long")
    edit = others(spark, "bob").add_operator("op", Count(), "k string, id long")
    edit.put("op", "count", rows.selectExpr("*", "1L n")).save(str(savepoints))
    [erased] = ckpt.location(str(savepoints)).erase_keys({"op": rows.where("k = 'bob'")})
    assert erased.too_short == 1
    assert erased.mentions == 5  # not those in a longer text, a binary or raw state
    [erased] = ckpt.location(str(savepoints)).erase_keys({"op": rows.where("k = 'dora'")})
    assert erased.too_short == 0


def test_nothing_is_deleted_beside_incomplete_savepoints_and_checkpoints(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.createDataFrame([("ada", 1)], "k string, n long")
    edit = ckpt.edit_state(spark=spark).add_operator("op", Count(), "k string")
    whole = edit.put("op", "count", rows).save(str(tmp_path / "sp"))
    cut_off = Path(f"{whole.path[:-1]}x")
    shutil.copytree(whole.path, cut_off)
    (cut_off / "_metadata").unlink()
    before = digests(tmp_path)
    with pytest.raises(ckpt.errors.CheckpointNotFoundError, match=cut_off.name):
        ckpt.location(str(tmp_path / "sp")).erase_keys({"op": rows.select("k")})
    (tmp_path / "sp" / "chk-3").mkdir()
    with pytest.raises(ckpt.errors.PlanError, match="checkpoints of a query"):
        ckpt.location(str(tmp_path / "sp")).erase_keys({"op": rows.select("k")})
    assert digests(tmp_path) == before


@pytest.mark.slow
def test_an_interrupted_call_is_finished_by_the_next(spark: SparkSession, tmp_path: Path) -> None:
    """Killed before the first disposal, and in the middle of it."""
    savepoints = tmp_path / "sp"
    rows = spark.createDataFrame([("ada.lovelace", 1), ("bob", 2)], "k string, n long")
    person = rows.select("k").where("n = 1")
    edit = ckpt.edit_state(spark=spark).add_operator("op", Count(), "k string")
    old = edit.put("op", "count", rows).save(str(savepoints))
    new = ckpt.edit_state(old.path).erase("op", person).save(str(savepoints))
    killed = shutil.copytree(savepoints, tmp_path / "killed")
    [erasure] = erase(savepoints, {"op": person})
    assert erasure.replaced == old.path
    assert b"ada.lovelace" not in bytes_of(savepoints)
    assert erase(savepoints, {"op": person}) == []

    half = killed / Path(old.path).name
    for file in half.rglob("*.parquet"):
        file.unlink()
    with pytest.raises(ckpt.errors.CorruptFileError, match=half.name):
        erase(killed, {"op": person})
    ckpt.location(str(half)).dispose()
    assert erase(killed, {"op": person}) == []
    assert [path.name for path in killed.iterdir()] == [Path(new.path).name]
    assert b"bob" in bytes_of(killed)
    assert b"ada.lovelace" not in bytes_of(killed)


def test_what_would_erase_nothing_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([("ada", 1)], "k string, n long")
    edit = ckpt.edit_state(spark=spark).add_operator("op", Count(), "k string")
    whole = edit.put("op", "count", rows).save(str(tmp_path / "sp"))
    person = {"op": rows.select("k")}
    for place in (whole.path, str(tmp_path / "no-such")):
        with pytest.raises(ckpt.errors.CheckpointNotFoundError, match="has no savepoint: give"):
            ckpt.location(place).erase_keys(person)
    with pytest.raises(
        ckpt.errors.PlanError, match=r"no savepoint in .* has an operator 'po'.* 'op'"
    ):
        ckpt.location(str(tmp_path / "sp")).erase_keys({"po": rows.select("k"), **person})
    location = tmp_path / "location" / "pyspark_ckpt"
    (location / "chk-4").mkdir(parents=True)
    with pytest.raises(ckpt.errors.PlanError, match="checkpoints of a query"):
        ckpt.location(str(tmp_path / "location")).erase_keys(person)
    assert b"ada" in bytes_of(tmp_path / "sp")


@pytest.mark.slow
def test_savepoints_in_directories_below_are_erased_where_they_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.createDataFrame([("ada.lovelace", 1)], "k string, n long")
    edit = ckpt.edit_state(spark=spark).add_operator("op", Count(), "k string")
    edit = edit.put("op", "count", rows)
    for place in ("sp", "sp/before-upgrade"):
        edit.save(str(tmp_path / place))
    erased = erase(tmp_path / "sp", {"op": rows.select("k")})
    parents = sorted(str(Path(each.savepoint.path).parent) for each in erased)
    assert parents == [str(tmp_path / "sp"), str(tmp_path / "sp" / "before-upgrade")]
    assert b"ada.lovelace" not in bytes_of(tmp_path / "sp")


@pytest.mark.slow
def test_savepoints_are_found_whatever_their_names_and_places(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One that is not found keeps the key, and the others would pass for a proof."""
    rows = spark.createDataFrame([("ada.lovelace", 1)], "k string, n long")
    edit = ckpt.edit_state(spark=spark).add_operator("op", Count(), "k string")
    edit = edit.put("op", "count", rows)
    sp = tmp_path / "sp"
    for place in ("", "a/b/c/d/e", ".hidden", "_old"):
        edit.save(str(sp / place))
    Path(edit.save(str(sp)).path).rename(sp / "before-upgrade")
    (sp / "a" / "notes.txt").write_text("no savepoint")
    erased = erase(sp, {"op": rows.select("k")})
    assert len(erased) == 5
    assert b"ada.lovelace" not in bytes_of(sp)
    edit.save(str(sp.joinpath(*"abcdefghijkl")))
    with pytest.raises(ckpt.errors.PlanError, match="more than 10 levels"):
        ckpt.location(str(sp)).erase_keys({"op": rows.select("k")})


def test_what_others_have_put_into_a_savepoint_is_said(spark: SparkSession, tmp_path: Path) -> None:
    """It may have the key, and stays."""
    rows = spark.createDataFrame([("ada.lovelace", 1)], "k string, n long")
    edit = ckpt.edit_state(spark=spark).add_operator("op", Count(), "k string")
    old = Path(edit.put("op", "count", rows).save(str(tmp_path / "sp")).path)
    (old / "export.csv").write_text("ada.lovelace,1")
    (old / "shared" / "of-a-late-task").write_text("ada.lovelace")
    left = ("shared/of-a-late-task", "export.csv")
    nobody = rows.select("k").where("k = 'bob'")
    [kept] = ckpt.location(str(tmp_path / "sp")).erase_keys({"op": nobody})
    assert (kept.replaced, kept.left) == (None, left)
    [erased] = ckpt.location(str(tmp_path / "sp")).erase_keys({"op": rows.select("k")})
    assert (erased.replaced, erased.left) == (str(old), left)


def test_what_could_not_be_disposed_of_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.createDataFrame([("ada.lovelace", 1)], "k string, n long")
    edit = ckpt.edit_state(spark=spark).add_operator("op", Count(), "k string")
    sp = tmp_path / "sp"
    saved = Path(edit.put("op", "count", rows).save(str(sp / "savepoint-archive")).path)
    nested = Path(edit.save(str(saved)).path)
    link = sp / "latest"
    link.symlink_to(saved)
    person = {"op": rows.select("k")}
    before = digests(tmp_path)
    with pytest.raises(ckpt.errors.PlanError, match="latest is a link"):
        ckpt.location(str(sp)).erase_keys(person)
    link.unlink()
    with pytest.raises(ckpt.errors.PlanError, match=f"has {nested.name} inside: move"):
        ckpt.location(str(sp)).erase_keys(person)
    assert {path for path in digests(tmp_path) if "latest" not in path} == {
        path for path in before if "latest" not in path
    }
    shutil.rmtree(nested)
    [erased] = ckpt.location(str(sp)).erase_keys(person)
    assert erased.replaced == str(saved)
    assert b"ada.lovelace" not in bytes_of(sp)


def test_a_renamed_checkpoint_is_refused(job: Job, tmp_path: Path, spark: SparkSession) -> None:
    job.feed.add(EVENTS)
    with job.running() as query:
        query.processAllAvailable()
        query.triggerSavepoint(str(tmp_path / "sp"))
        taken = Path(query.triggerCheckpoint().path)
        copied = shutil.copytree(taken.parent, tmp_path / "sp" / "copied")
    for each in copied.glob("chk-*"):
        if each.name == taken.name:
            each.rename(copied / "keep")
        else:
            shutil.rmtree(each)
    before = digests(tmp_path / "sp")
    person = spark.createDataFrame([("bob",)], "k string")
    with pytest.raises(
        ckpt.errors.CheckpointNotFoundError, match="keep holds a checkpoint, not a save"
    ):
        ckpt.location(str(tmp_path / "sp")).erase_keys({"op": person})
    assert digests(tmp_path / "sp") == before


class Forgetting(Count):
    """Forgets a key whose value is negative."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        rows = list(rows)
        yield from super().handleInputRows(key, iter(rows), timerValues)
        if any(row.v < 0 for row in rows):
            for state in vars(self).values():
                state.clear()


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_the_processor_has_deleted_is_erased_too(
    job: Job, tmp_path: Path, spark: SparkSession, backend: str
) -> None:
    """Files of a native savepoint keep it until they are merged."""
    job = job.but(processor=Forgetting, output="k string, n long").using({BACKEND: backend})
    savepoints = tmp_path / "sp"
    with job.running() as query:
        for event in (("ada.lovelace", 1), ("ada.lovelace", -1)):
            job.feed.add([event, ("bob", 1)])
            query.processAllAvailable()
        query.triggerSavepoint(str(savepoints), format="NATIVE")
    assert b"ada.lovelace" in bytes_of(savepoints)
    person = spark.createDataFrame([("ada.lovelace",)], "k string")
    [erased] = erase(savepoints, {"op": person})
    assert b"ada.lovelace" not in bytes_of(savepoints)
    assert b"bob" in bytes_of(savepoints)
    assert erased.mentions == 0
    assert erase(savepoints, {"op": person}) == []


def number_of(keys: pd.DataFrame) -> pd.DataFrame:
    return keys.k.str.extract(r"(\d+)").astype(int).set_axis(["id"], axis=1)


def same_name(keys: pd.DataFrame) -> pd.DataFrame:
    return number_of(keys).set_axis(["k"], axis=1)


@pytest.mark.slow
def test_savepoints_from_before_and_after_a_rekey(spark: SparkSession, tmp_path: Path) -> None:
    savepoints = tmp_path / "sp"
    rows = spark.createDataFrame([("user 70001", 1), ("user 70002", 2)], "k string, n long")
    edit = ckpt.edit_state(spark=spark).add_operator("op", Count(), "k string")
    old = edit.put("op", "count", rows).save(str(savepoints))
    for function, keys in ((number_of, "id long"), (same_name, "k long")):
        edit = ckpt.edit_state(old.path).rekey("op", function, keys, as_pandas=True)
        edit.save(str(savepoints))
    before = digests(savepoints)
    names = spark.createDataFrame([("user 70001",)], "k string")
    ids = spark.createDataFrame([(70001,)], "id int")
    numbers = spark.createDataFrame([(70001,)], "k long")

    for given, says in (
        (names, r"has keys of \((?:id|k) bigint\); .*has keys of .* no such keys are given"),
        ([names, ids], r"has keys of \(k bigint\); and no such keys are given"),
        ([names, ids, numbers, rows], r"the columns k, n, and .* keys of \(.*\) or \(.*\) or"),
    ):
        with pytest.raises(ckpt.errors.PlanError, match=says):
            ckpt.location(str(savepoints)).erase_keys({"op": given})
    assert digests(savepoints) == before

    erased = erase(savepoints, {"op": [names, ids, numbers]})
    assert len(erased) == 3
    assert {each.mentions for each in erased} == {0}
    left = {
        str(ckpt.location(each.savepoint.path).state().state("op", "count").to_pandas().iloc[0, 0])
        for each in erased
    }
    assert left == {"user 70002", "70002"}
    assert not any(erase(savepoints, {"op": [names.limit(0), ids, numbers]}))
