"""This library's operator, writer and harness in place of PySpark's, for PySpark's own tests."""

from __future__ import annotations

from importlib.util import find_spec
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
    _substitute_in(patch, GroupedData, DataFrame)
    if find_spec("grpc_status"):  # the Connect client can be imported
        from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
        from pyspark.sql.connect.group import GroupedData as ConnectGroups

        _substitute_in(patch, ConnectGroups, ConnectFrame)
    if hasattr(spark_streaming, "TwsTester"):
        patch.setattr(spark_streaming, "TwsTester", ProcessorHarness)


def _substitute_in(patch: pytest.MonkeyPatch, groups: Any, frame: Any) -> None:
    for name in _METHODS:
        if not hasattr(groups, name):  # PySpark 4.0 has no operator of rows
            continue
        patch.setattr(groups, name, _operator(name))
    patch.setattr(frame, "writeStream", property(_writer(frame.writeStream)))


def _operator(name: str) -> Any:
    def method(grouped: Any, *args: Any, **kwargs: Any) -> DataFrame:
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
