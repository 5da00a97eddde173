"""A person's keys are erased from every savepoint of a directory, in bytes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row, SparkSession

import pyspark_ckpt as ckpt
from tests.query.harness import BACKEND, BACKENDS, OFTEN, Feed, Job, digests
from tests.query.model import Count, expected_after

EVENTS = [(name, v) for v in range(3) for name in ("ada.lovelace", "bob", "cleo")]


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


@pytest.mark.wide_variants
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

    erased = ckpt.erase_keys(str(savepoints), {"op": person, "other": nobody})

    assert sorted(each.replaced for each in erased) == sorted(old)
    assert not any(Path(path).exists() for path in old)
    assert {each.mentions for each in erased} == {0}
    assert b"ada.lovelace" not in bytes_of(savepoints)
    assert b"cleo" in bytes_of(savepoints)
    assert digests(Path(untouched)) == before
    assert ckpt.erase_keys(str(savepoints), {"op": person}) == []
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


@pytest.mark.further
def test_what_others_hold_of_a_key_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([("ada.lovelace", 1), ("bob", 2)], "k string, n long")
    edit = ckpt.edit_state(spark=spark)
    for uid in ("op", "copy"):
        edit.add_operator(uid, Count(), "k string").put(uid, "count", rows)
    edit.save(str(tmp_path / "sp"))
    person = spark.createDataFrame([("ada.lovelace",)], "k string")
    [erased] = ckpt.erase_keys(str(tmp_path / "sp"), {"op": person})
    assert erased.mentions == 1
    [erased] = ckpt.erase_keys(str(tmp_path / "sp"), {"op": person, "copy": person})
    assert erased.mentions == 0
    assert b"ada.lovelace" not in bytes_of(tmp_path / "sp")


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
    with pytest.raises(ckpt.CheckpointNotFoundError, match=cut_off.name):
        ckpt.erase_keys(str(tmp_path / "sp"), {"op": rows.select("k")})
    (tmp_path / "sp" / "chk-3").mkdir()
    with pytest.raises(ckpt.PlanError, match="checkpoints of a query"):
        ckpt.erase_keys(str(tmp_path / "sp"), {"op": rows.select("k")})
    assert digests(tmp_path) == before


@pytest.mark.further
def test_an_interrupted_call_is_finished_by_the_next(spark: SparkSession, tmp_path: Path) -> None:
    """Killed before the first disposal, and in the middle of it."""
    savepoints = tmp_path / "sp"
    rows = spark.createDataFrame([("ada.lovelace", 1), ("bob", 2)], "k string, n long")
    person = rows.select("k").where("n = 1")
    edit = ckpt.edit_state(spark=spark).add_operator("op", Count(), "k string")
    old = edit.put("op", "count", rows).save(str(savepoints))
    new = ckpt.edit_state(old.path).erase("op", person).save(str(savepoints))
    killed = shutil.copytree(savepoints, tmp_path / "killed")
    [erasure] = ckpt.erase_keys(str(savepoints), {"op": person})
    assert erasure.replaced == old.path
    assert b"ada.lovelace" not in bytes_of(savepoints)
    assert ckpt.erase_keys(str(savepoints), {"op": person}) == []

    half = killed / Path(old.path).name
    for file in half.rglob("*.parquet"):
        file.unlink()
    with pytest.raises(ckpt.CorruptFileError, match=half.name):
        ckpt.erase_keys(str(killed), {"op": person})
    ckpt.dispose_savepoint(str(half))
    assert ckpt.erase_keys(str(killed), {"op": person}) == []
    assert [path.name for path in killed.iterdir()] == [Path(new.path).name]
    assert b"bob" in bytes_of(killed)
    assert b"ada.lovelace" not in bytes_of(killed)


def test_what_would_erase_nothing_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([("ada", 1)], "k string, n long")
    edit = ckpt.edit_state(spark=spark).add_operator("op", Count(), "k string")
    whole = edit.put("op", "count", rows).save(str(tmp_path / "sp"))
    person = {"op": rows.select("k")}
    for place in (whole.path, str(tmp_path / "no-such")):
        with pytest.raises(ckpt.CheckpointNotFoundError, match="has no savepoint: give"):
            ckpt.erase_keys(place, person)
    with pytest.raises(ckpt.PlanError, match=r"no savepoint in .* has an operator 'po'.* 'op'"):
        ckpt.erase_keys(str(tmp_path / "sp"), {"po": rows.select("k"), **person})
    location = tmp_path / "location" / "pyspark_ckpt"
    (location / "chk-4").mkdir(parents=True)
    with pytest.raises(ckpt.PlanError, match="checkpoints of a query"):
        ckpt.erase_keys(str(tmp_path / "location"), person)
    assert b"ada" in bytes_of(tmp_path / "sp")


@pytest.mark.further
def test_savepoints_in_directories_below_are_erased_where_they_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.createDataFrame([("ada.lovelace", 1)], "k string, n long")
    edit = ckpt.edit_state(spark=spark).add_operator("op", Count(), "k string")
    edit = edit.put("op", "count", rows)
    for place in ("sp", "sp/before-upgrade"):
        edit.save(str(tmp_path / place))
    erased = ckpt.erase_keys(str(tmp_path / "sp"), {"op": rows.select("k")})
    parents = sorted(str(Path(each.savepoint.path).parent) for each in erased)
    assert parents == [str(tmp_path / "sp"), str(tmp_path / "sp" / "before-upgrade")]
    assert b"ada.lovelace" not in bytes_of(tmp_path / "sp")


@pytest.mark.further
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
    erased = ckpt.erase_keys(str(sp), {"op": rows.select("k")})
    assert len(erased) == 5
    assert b"ada.lovelace" not in bytes_of(sp)
    edit.save(str(sp.joinpath(*"abcdefghijkl")))
    with pytest.raises(ckpt.PlanError, match="more than 10 levels"):
        ckpt.erase_keys(str(sp), {"op": rows.select("k")})


class Forgetting(Count):
    """Forgets a key whose value is negative."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        rows = list(rows)
        yield from super().handleInputRows(key, iter(rows), timerValues)
        if any(row.v < 0 for row in rows):
            for state in vars(self).values():
                state.clear()


@pytest.mark.further
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
    [erased] = ckpt.erase_keys(str(savepoints), {"op": person})
    assert b"ada.lovelace" not in bytes_of(savepoints)
    assert b"bob" in bytes_of(savepoints)
    assert erased.mentions == 0
    assert ckpt.erase_keys(str(savepoints), {"op": person}) == []
