"""The class of a processor says its mode, whichever method of a keyed stream it is given to."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from pyspark_ckpt.operator.modes.mode import MODES, PANDAS
from tests.processor_of_each_mode import PROCESSORS, InArrow, InBatches

ROWS = [("a", 1), ("b", 2), ("a", 3), (None, 4), ("c", 5)]
WANTED = {("a", 1004), ("b", 502), (None, 504), ("c", 1005)}


def processed(spark: SparkSession, name: str, method: str, **options: Any) -> set[Any]:
    rows = spark.createDataFrame(ROWS, "k string, n long")
    offsets = spark.createDataFrame([(500,)], "n long")
    initial = spark.createDataFrame([("a", 500), ("c", 500)], "k string, n long")
    keyed = ckpt.key_by(rows, "k").connectBroadcast(offsets)
    output = getattr(keyed, method)(
        PROCESSORS[name](), "k string, n long", "Update", "None", initial.groupBy("k"), **options
    )
    return set(map(tuple, output.collect()))


@pytest.mark.parametrize("name", MODES)
def test_every_method_that_takes_a_class_does_the_same(spark: SparkSession, name: str) -> None:
    mode = MODES[name]
    # Only its method says that a StatefulProcessor gets frames.
    for method in {mode.adds} if mode is PANDAS else {mode.adds, "transformWithState"}:
        assert processed(spark, name, method) == WANTED


@pytest.mark.parametrize("name", MODES)
def test_a_method_refuses_other_classes(spark: SparkSession, name: str) -> None:
    keyed = ckpt.key_by(spark.createDataFrame(ROWS, "k string, n long"), "k")
    taken = [MODES[name].adds, "transformWithState"]
    if MODES[name].has_key_calls:  # the class is the same for Rows and frames
        taken.append("transformWithStateInPandas")
    for method in {mode.adds for mode in MODES.values()} - {*taken}:
        with pytest.raises(
            ckpt.errors.PlanError, match=f"operator 'op': {PROCESSORS[name].__name__} "
        ):
            getattr(keyed, method)(
                PROCESSORS[name](), "k string, n long", "Update", "None", uid="op"
            )


def test_a_class_of_two_modes_needs_a_method_of_one(spark: SparkSession) -> None:
    class Both(InBatches, InArrow):  # type: ignore[misc]
        pass

    keyed = ckpt.key_by(spark.createDataFrame(ROWS, "k string, n long"), "k")
    wanted = "BatchProcessor and ArrowProcessor.*InBatches or transformWithStateInArrow"
    for method in (keyed.transformWithState, keyed.transformWithStateInPandas):
        with pytest.raises(ckpt.errors.PlanError, match=wanted):
            method(Both(), "k string, n long", "Update", "None")
    for name in ("batches", "arrow"):
        output = getattr(keyed, MODES[name].adds)(Both(), "k string, n long", "Update", "None")
        assert output.columns == ["k", "n"]


@pytest.mark.parametrize("name", ["batches", "arrow"])
def test_all_keys_at_once_have_no_quarantine(spark: SparkSession, name: str) -> None:
    with pytest.raises(
        ckpt.errors.PlanError, match=f"{MODES[name].method} gets all keys in one call"
    ):
        processed(spark, name, "transformWithState", onError="quarantine")
