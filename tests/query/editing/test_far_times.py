"""Timers and times to live beyond Spark's timestamps pass an edit as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import pyspark_ckpt as ckpt
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from tests.query.editing.test_edit import stored
from tests.unit.snapshot.made_savepoint import MadeSavepoint

FOR_EVER = (1 << 63) - 1
IN_NANOSECONDS = 1_800_000_000_000_000_000
FIRST = -FOR_EVER - 1
TIMERS = [FIRST, FOR_EVER, IN_NANOSECONDS, 4_000_000_000_000]


def states_of(handle: ProcessorHandle) -> dict[str, Any]:
    schema = T.StructType().add("v", "long")
    return {
        "handle": handle,
        "seen": handle.getValueState("seen", schema, FOR_EVER),
        "many": handle.getListState("many", schema, FOR_EVER),
    }


def fill(states: dict[str, Any], key: tuple[Any, ...]) -> None:
    states["seen"].update((1,))
    states["many"].put([(1,), (2,)])
    for time_ms in TIMERS:
        states["handle"].registerTimer(time_ms)


@pytest.fixture(scope="module")
def savepoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    keys = T.StructType().add("k", "string")
    made = MadeSavepoint(tmp_path_factory.mktemp("far"), keys, [("a",), ("b",)], parallelism=1)
    made.epoch(states_of, fill)
    yield made.save("savepoint", canonical=True)
    made.close()


def test_far_times_keep_their_bytes_under_other_keys(savepoint: str, tmp_path: Path) -> None:
    edited = ckpt.edit_state(savepoint).rekey("op", lambda keys: keys).save(str(tmp_path / "e"))
    assert stored(edited.path) == stored(savepoint)


@pytest.mark.slow
def test_far_times_are_shown_as_the_first_or_last_one_and_stay_far(
    spark: SparkSession, savepoint: str, tmp_path: Path
) -> None:
    edit = ckpt.edit_state(savepoint)
    shown = edit.timers("op").select(F.unix_micros("fires_at")).collect()
    assert sorted({row[0] for row in shown}) == [FIRST, 4_000_000_000_000_000, FOR_EVER]
    edit.set_timers("op", edit.timers("op").where("k = 'a'"))
    edit.put("op", "seen", edit.table("op", "seen")).change("op", "many", lambda rows: rows)
    edited = edit.save(str(tmp_path / "e")).path
    for state in ("seen", "many"):
        with ckpt.location(edited).state() as now, ckpt.location(savepoint).state() as before:
            tables = [each.state("op", state).to_arrow().read_all() for each in (now, before)]
        assert tables[0].drop_columns(["expires_at"]) == tables[1].drop_columns(["expires_at"])
        beyond = [each.cast("int64").to_pylist() for each in tables[0]["expires_at"].chunks]
        assert all(time_ms > FOR_EVER // 1000 for chunk in beyond for time_ms in chunk)
    with ckpt.location(edited).state() as now:
        fires = now.timers("op").to_arrow().read_all()["fires_at"].cast("int64").to_pylist()
    assert fires == [FIRST, 4_000_000_000_000, FOR_EVER]


@pytest.mark.slow
def test_the_data_source_has_far_times(spark: SparkSession, savepoint: str) -> None:
    spark.dataSource.register(ckpt.StateDataSource)
    source = spark.read.format("pyspark_ckpt.state").option("operator", "op")
    seen = source.option("state", "seen").load(savepoint)
    assert {row[0] for row in seen.select(F.unix_micros("expires_at")).collect()} == {FOR_EVER}
    timers = source.option("table", "timers").load(savepoint)
    fires = sorted(row[0] for row in timers.select(F.unix_micros("fires_at")).collect())
    assert fires == [FIRST] * 2 + [4_000_000_000_000_000] * 2 + [FOR_EVER] * 4
