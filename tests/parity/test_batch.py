"""The operator on a static DataFrame."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

import pyspark_ckpt as ckpt
from tests.parity import operations, timed
from tests.parity.engines import assert_same_rows
from tests.parity.operations import Operations, PandasOperations, look, random_scripts
from tests.parity.timed import PandasTimers, Timers, at

pytestmark = pytest.mark.slow


def same(df: DataFrame, processor: Any, output: str, time_mode: str, name: str) -> list[Row]:
    """Run both engines over the DataFrame and compare."""
    arguments = (processor(), output, "Append", time_mode)
    native = getattr(df.groupBy("k"), name)(*arguments)
    rows = sorted(native.collect(), key=str)
    assert rows
    ours = getattr(ckpt.key_by(df, "k"), name)(*arguments, uid="op")
    assert_same_rows(ours, native)
    return rows


@pytest.mark.soak
@pytest.mark.parametrize("processor", [Operations, PandasOperations])
def test_state_within_one_run(spark: SparkSession, processor: type[Operations]) -> None:
    """The processor runs once over all rows of a key, from empty state."""
    steps = [*random_scripts(7, ["a", "b", None], 30), *look("c")]
    pandas = processor is PandasOperations
    df = spark.createDataFrame(steps, operations.INPUT)
    name = "transformWithStateInPandas" if pandas else "transformWithState"
    assert len(same(df, processor, operations.OUTPUT, "None", name)) == len(steps)


class Clock(Timers):
    EVENT_TIME = False


class PandasClock(Clock, PandasTimers):
    pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processor", "time_mode", "fired"),
    [
        (Clock, "ProcessingTime", {"timer now", "timer past"}),
        (PandasClock, "ProcessingTime", {"timer now", "timer past"}),
        pytest.param(Timers, "EventTime", set(), marks=pytest.mark.soak),
    ],
)
def test_timers_of_one_run(
    spark: SparkSession, processor: type[Timers], time_mode: str, fired: set[str]
) -> None:
    """In processing time, due timers fire once; in event time, the watermark is -1."""
    commands = "register past -10; register now 0; register far 3600000"
    steps = [("a", 0, at(0), commands), ("b", 0, at(9), ""), ("b", 1, at(1), commands)]
    df = spark.createDataFrame(steps, timed.INPUT)
    pandas = issubclass(processor, PandasTimers)
    name = "transformWithStateInPandas" if pandas else "transformWithState"
    rows = same(df, processor, timed.OUTPUT, time_mode, name)
    assert {row.what for row in rows} == {"row 0", "row 1"} | fired
