"""This library's operator, writer and harness in place of PySpark's, for PySpark's own tests."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import GroupedData
from pyspark.sql import streaming as spark_streaming
from pyspark.sql.classic.dataframe import DataFrame

import pyspark_ckpt as ckpt
from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.spark.plan import operators_of
from pyspark_ckpt.testing import ProcessorHarness

UID = "conformance"
_METHODS = ("transformWithState", "transformWithStateInPandas")


def substitute(patch: pytest.MonkeyPatch) -> None:
    """Have ``df.groupBy(...)``, ``df.writeStream`` and ``TwsTester`` lead to this library."""
    for name in _METHODS:
        patch.setattr(GroupedData, name, _operator(name))
    patch.setattr(DataFrame, "writeStream", property(_writer(DataFrame.writeStream)))
    if hasattr(spark_streaming, "TwsTester"):
        patch.setattr(spark_streaming, "TwsTester", ProcessorHarness)


def _operator(name: str) -> Any:
    def method(grouped: GroupedData, *args: Any, **kwargs: Any) -> DataFrame:
        keys = grouped.count().columns[:-1]
        keyed = ckpt.key_by(grouped._df, *keys)
        return getattr(keyed, name)(*args, uid=UID, **kwargs)

    return method


def _writer(sparks: Any) -> Any:
    def write_stream(df: DataFrame) -> Any:
        try:
            operators_of(df)
        except PlanError:
            return sparks.fget(df)
        return ckpt.write_stream(df)

    return write_stream
