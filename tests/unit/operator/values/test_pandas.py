"""Processors get frames with the dtypes and values that PySpark's worker gives."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.conversion import ArrowArrayToPandasConversion
from pyspark.sql.pandas.types import to_arrow_type

from pyspark_ckpt.operator.rows.input import InputColumns
from tests.unit.operator.rows.test_input import frame, schema_of

VALUES: list[tuple[T.DataType, list[Any]]] = [
    (T.ByteType(), [-128, 127]),
    (T.ShortType(), [-32768, 32767]),
    (T.IntegerType(), [-(2**31), 2**31 - 1]),
    (T.LongType(), [2**53 + 1, -(2**63)]),
    (T.FloatType(), [0.5, float("nan")]),
    (T.DoubleType(), [0.1, float("-inf")]),
    (T.BooleanType(), [True, False]),
    (T.StringType(), ["", "ä"]),
    (T.BinaryType(), [b"", b"\xff"]),
    (T.DecimalType(38, 2), [Decimal("1.10"), Decimal("-9.99")]),
]


@pytest.mark.parametrize("with_null", [False, True])
@pytest.mark.parametrize(("kind", "values"), VALUES, ids=lambda p: str(p) if p is not list else "")
def test_a_column_is_what_pyspark_makes_of_it(
    kind: T.DataType, values: list[Any], with_null: bool
) -> None:
    values = [*values, None] if with_null else values
    schema = schema_of(T.LongType(), kind)
    rows = [(number, value) for number, value in enumerate(values)]
    ours = InputColumns(schema, ["f0"]).pandas_frame(frame(schema, rows))
    array = pa.array(values, to_arrow_type(kind))
    series = ArrowArrayToPandasConversion.convert(array, kind).rename("f1")
    # PySpark's worker takes the rows of a batch apart and makes frames of those of a key.
    theirs = pd.DataFrame(list(pd.DataFrame(series).itertuples(index=False)))
    pd.testing.assert_series_equal(ours["f1"], theirs["f1"])
    assert ours["f0"].dtype == "int64"
