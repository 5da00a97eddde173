"""Each time zone that Spark takes is that zone here, or is refused with its setting."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as T
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.values.time_zones import zone_of
from tests.query.session_conf import session_conf
from tests.unit.snapshot.made_savepoint import MadeSavepoint

ZONE = "spark.sql.session.timeZone"
SHORT = (
    "ACT AET AGT ART AST BET BST CAT CNT CST CTT EAT ECT EST HST IET IST JST MIT MST NET NST PLT "
    "PNT PRT PST SST VST"
)
OFFSETS = (
    "GMT+08:00 GMT+8 GMT-3 UTC+8 UTC-05:30 UT+1 UT+0130 +8 +08 -08:00 +8:30 +08:5 +0530 +18:00 -18 "
    "+05:30:00"
)
REGIONS = (
    "Z UT UTC GMT GMT0 Etc/GMT+5 Etc/UTC Zulu Greenwich EST5EDT PST8PDT WET US/Pacific "
    "Europe/Berlin America/Argentina/Ushuaia"
)
NAMES = [*OFFSETS.split(), *REGIONS.split(), *SHORT.split()]
SEEN = T.StructType().add("at", "timestamp").add("ats", T.ArrayType(T.TimestampType()))
INSTANTS = [1_700_000_000, 1_720_000_000]
"""One in winter, one in summer."""


class Shows(StatefulProcessor):
    """Yield the time of each row as text, and the time itself."""

    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            yield Row(text=f"{row.at:%Y-%m-%d %H:%M:%S}", at=row.at, n=row.n)

    def close(self) -> None: ...


class ShowsFrames(Shows):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for frame in rows:
            text = [f"{at:%Y-%m-%d %H:%M:%S}" for at in frame["at"]]
            yield pd.DataFrame({"text": text, "at": frame["at"], "n": frame["n"]})


def shown(spark: SparkSession, processor: StatefulProcessor, method: str) -> list[Any]:
    rows = spark.sql("select 1 as k, timestamp_seconds(1720000000) as at, map(1, at) as n")
    keyed = getattr(ckpt.key_by(rows, "k"), method)
    out = keyed(processor, "text string, at timestamp, n map<int, timestamp>", "Append", "None")
    return list(out.selectExpr("text", "string(at)", "string(n[1])").collect())


def of_spark(spark: SparkSession) -> list[str]:
    times = ", ".join(f"string(timestamp_seconds({instant}))" for instant in INSTANTS)
    return list(spark.sql(f"select {times}").first())


@pytest.mark.slow
def test_each_name_is_the_zone_that_it_is_in_spark(spark: SparkSession) -> None:
    for name in NAMES:
        with session_conf(spark, {ZONE: name}):
            wanted = of_spark(spark)
        times = [dt.datetime.fromtimestamp(each, zone_of(name)) for each in INSTANTS]
        assert [f"{time:%Y-%m-%d %H:%M:%S}" for time in times] == wanted, name


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("GMT+08:00", "transformWithState"),
        pytest.param("GMT+08:00", "transformWithStateInPandas", marks=pytest.mark.slow),
        pytest.param("PST", "transformWithStateInPandas", marks=pytest.mark.slow),
    ],
)
def test_rows_and_frames_show_times_in_it(spark: SparkSession, name: str, method: str) -> None:
    processor = ShowsFrames() if method.endswith("Pandas") else Shows()
    with session_conf(spark, {ZONE: name}):
        wanted = of_spark(spark)[1]
        assert shown(spark, processor, method) == [(wanted, wanted, wanted)]


@pytest.mark.slow
def test_an_edit_shows_times_in_it(spark: SparkSession, tmp_path: Path) -> None:
    """Spark sends a function the rows with the zone's own name, which pandas does not know."""
    keys = T.StructType().add("k", "string")
    made = MadeSavepoint(tmp_path / "made", keys, [("a",)], parallelism=1)
    at = dt.datetime(2024, 7, 1, 1, 2, 3, tzinfo=dt.timezone.utc)

    def fill(states: dict[str, Any], key: tuple[Any, ...]) -> None:
        states["seen"].update((at, [at]))

    made.epoch(lambda handle: {"seen": handle.getValueState("seen", SEEN)}, fill)
    savepoint = made.save("savepoint", canonical=True)
    made.close()

    def later(rows: pd.DataFrame) -> pd.DataFrame:
        assert rows["at"].dt.hour.tolist() == [9]
        return rows.assign(at=rows["at"] + pd.Timedelta("1s"))

    with session_conf(spark, {ZONE: "GMT+08:00"}):
        edit = ckpt.edit_state(savepoint).change("op", "seen", later, as_pandas=True)
        edited = edit.save(str(tmp_path / "edited"))
    (row,) = (
        ckpt.location(edited.path).state().state("op", "seen").to_arrow().read_all().to_pylist()
    )
    assert row == {"k": "a", "at": at + dt.timedelta(seconds=1), "ats": [at]}


@pytest.mark.parametrize("name", ["SystemV/AST4", "+08:00:30"])
def test_a_zone_that_python_does_not_have_is_refused(spark: SparkSession, name: str) -> None:
    """It is refused where an instant is shown in it, in the input or in frames of output."""
    refused = pytest.raises(
        ckpt.errors.PlanError, match=rf"{ZONE} is '.*', .*offset such as \+08:00"
    )

    def frames(rows: DataFrame, output: str) -> DataFrame:
        keyed = ckpt.key_by(rows, "k")
        return keyed.transformWithStateInPandas(ShowsFrames(), output, "Append", "None")

    with session_conf(spark, {ZONE: name}):
        numbers = spark.sql("select 1 as k, 2 as v")
        with refused:
            ckpt.key_by(numbers.selectExpr("k", "array(timestamp_seconds(v)) as at"), "k")
        with refused:
            frames(numbers, "at timestamp")
        frames(numbers, "n long")
