"""The output of a harness: what Spark gets, if the test gives its schema."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

import pyspark_ckpt as ckpt
from pyspark_ckpt.testing import ProcessorHarness
from tests.unit.testing.processors import (
    Count,
    PandasCount,
    Processor,
)


class TestOutput:
    def test_rows_are_checked_and_returned_as_spark_gets_them(self) -> None:
        harness = ProcessorHarness(Count(), outputStructType="n long, key string")
        (row,) = harness.test("ada", [Row(n=1)])
        assert row.asDict() == {"n": 1, "key": "ada"}
        assert list(row.__fields__) == ["n", "key"]
        (row,) = ProcessorHarness(Count()).test("ada", [Row(n=1)])
        assert row.__fields__ == ["key", "n"]
        other = ProcessorHarness(Count(), outputStructType="n string, key long")
        with pytest.raises(ckpt.errors.StateValueError, match="output column 'n' is string"):
            other.test("ada", [Row(n=1)])
        assert other.peek("count", "ada") is None

    @pytest.mark.parametrize("schema", [None, "n long, text string"])
    def test_one_row_that_is_returned_is_refused(self, schema: str | None) -> None:
        output: Any = Row(n=1, text="t")
        harness = ProcessorHarness(_Returns(output), outputStructType=schema)
        with pytest.raises(ckpt.errors.StateValueError, match="returned one Row: yield it"):
            harness.test("ada", [Row()])

    @pytest.mark.usefixtures("local_time_zone")
    def test_rows_have_the_values_that_spark_has(self) -> None:
        at = datetime.datetime(2024, 2, 29, 12, 0, 0, 5)  # noqa: DTZ001  # as Spark's rows have it
        inner = Row("b", "a")("x", [Row(at=at)])
        yielded = [
            Row(n=1, text="t", at=at, ntz=at, day=at.date(), d=Decimal("1.5")),
            Row(n=None, f=0.1, inner=inner, tags={"k": 1}),
            Row(f=math.nan),
        ]
        harness = ProcessorHarness(
            _Returns(yielded),
            outputStructType="text string, n long, f float, d decimal(5,2), day date, at timestamp,"
            " ntz timestamp_ntz, inner struct<b:string,a:array<struct<at:timestamp>>>,"
            " tags map<string,long>",
        )
        one, two, three = harness.test("ada", [Row()])
        empty = dict.fromkeys(one.__fields__)
        whole = {"text": "t", "n": 1, "d": Decimal("1.50"), "day": at.date(), "at": at, "ntz": at}
        assert one.asDict() == {**empty, **whole}
        assert two.asDict() == {
            **empty, "f": np.float32(0.1), "inner": inner, "tags": {"k": 1},
        }  # fmt: skip
        assert two.inner.a[0].at == at
        assert math.isnan(three.f)

    def test_frames_have_the_values_that_spark_has(self) -> None:
        frame = pd.DataFrame({"z": [1], "n": [math.nan], "text": [math.nan], "at": [pd.NaT]})
        first = frame.assign(n=[1.0], text="t")
        harness = ProcessorHarness(
            _Returns([first, frame]), outputStructType="text string, at timestamp, n long"
        )
        output = harness.testInPandas("ada", pd.DataFrame({"n": [1]}))
        assert list(output.columns) == ["text", "at", "n"]
        assert output["text"][0] == "t"
        assert output["text"].isna().tolist() == [False, True]
        assert output["n"].isna().tolist() == [False, True]
        assert output["at"].isna().all()

    def test_a_frame_with_a_fraction_for_a_whole_number_is_refused(self) -> None:
        harness = ProcessorHarness(
            _Returns([pd.DataFrame({"n": [1.5]})]), outputStructType="n long"
        )
        with pytest.raises(ckpt.errors.StateValueError, match="output column 'n' is bigint"):
            harness.testInPandas("ada", pd.DataFrame({"n": [1]}))

    def test_frames_are_checked_and_returned_as_spark_gets_them(self) -> None:
        schema = T.StructType([T.StructField("key", T.StringType())])
        harness = ProcessorHarness(PandasCount(), outputStructType=schema)
        output = harness.testInPandas("ada", pd.DataFrame({"n": [1]}))
        assert list(output.columns) == ["key"]
        other = ProcessorHarness(PandasCount(), outputStructType="key string, m long")
        with pytest.raises(ckpt.errors.StateValueError, match=r"lacks \['m'\]"):
            other.testInPandas("ada", pd.DataFrame({"n": [1]}))

    @pytest.mark.parametrize(
        "output", [pd.DataFrame({"n": [1]}), [1]], ids=["returned", "no frame"]
    )
    def test_what_is_no_list_of_frames_is_refused(self, output: Any) -> None:
        with pytest.raises(ckpt.errors.StateValueError, match="yield"):
            ProcessorHarness(_Returns(output)).testInPandas("ada", pd.DataFrame({"n": [1]}))

    def test_nothing_is_an_empty_list_or_frame(self) -> None:
        assert ProcessorHarness(_Returns(None)).test("ada", [Row()]) == []
        frame = ProcessorHarness(_Returns([])).testInPandas("ada", pd.DataFrame({"n": [1]}))
        assert frame.empty


class _Returns(Processor):
    def __init__(self, output: Any) -> None:
        self.output = output

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return self.output
