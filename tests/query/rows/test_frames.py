"""Spark's settings for pandas frames apply to input frames and output frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.session_conf import session_conf

ARROW = "spark.sql.execution.arrow"
COERCION = "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"


class Sizes(StatefulProcessor):
    """Emit the number of rows of each frame, of the initial state and of the input."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getListState("seen", "rows int")

    def handleInitialState(self, key: Any, frame: pd.DataFrame, timerValues: Any) -> None:
        self.seen.appendValue((len(frame),))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        seen = [size for (size,) in self.seen.get()]
        yield pd.DataFrame({"initial": [seen], "sizes": [[len(frame) for frame in rows]]})

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("setting", "value", "initial", "sizes"),
    [
        ("maxRecordsPerBatch", "2", [2, 2], [2, 2, 1]),
        ("maxRecordsPerBatch", "-1", [4], [5]),
        ("maxBytesPerBatch", "1", [1, 1, 1, 1], [1, 1, 1, 1, 1]),
        ("maxBytesPerBatch", "100000", [4], [5]),
        ("transformWithStateInPandas.maxRecordsPerBatch", "2", [4], [5]),
    ],
)
def test_frames_of_a_key(
    spark: SparkSession, setting: str, value: str, initial: list[int], sizes: list[int]
) -> None:
    with session_conf(spark, {f"{ARROW}.{setting}": value}):
        before = spark.range(4).selectExpr("'a' AS k", "id").groupBy("k")
        keyed = ckpt.key_by(spark.range(5).selectExpr("'a' AS k", "id"), "k")
        output = keyed.transformWithStateInPandas(
            Sizes(), "initial array<int>, sizes array<int>", "Append", "None", before, uid="sizes"
        )
        (row,) = output.collect()
    assert row.asDict() == {"initial": initial, "sizes": sizes}


class Cents(StatefulProcessor):
    """Yield an integer for a decimal."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"cents": [len(next(rows))]})

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_integers_for_decimals(spark: SparkSession) -> None:
    keyed = ckpt.key_by(spark.range(3).selectExpr("'a' AS k"), "k")
    arguments = Cents(), "cents decimal(10,2)", "Append", "None"
    refused = keyed.transformWithStateInPandas(*arguments, uid="refused")
    with pytest.raises(
        Exception, match=f"Failed to convert the value of the column .*, 3, .*{COERCION}"
    ):
        refused.collect()
    with session_conf(spark, {COERCION: "true"}):
        coerced = keyed.transformWithStateInPandas(*arguments, uid="coerced")
    assert [int(row.cents) for row in coerced.collect()] == [3]
