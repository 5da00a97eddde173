"""Processors get frames with the dtypes and values of PySpark's worker, and may yield them."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T
from pyspark.sql.conversion import ArrowArrayToPandasConversion
from pyspark.sql.pandas.types import to_arrow_type

from pyspark_ckpt.operator.modes.output import PandasOutput
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.values.arrow import arrow_type
from pyspark_ckpt.values.codec import TupleCodec
from pyspark_ckpt.values.shown import ValueNotHeldError
from tests.unit.operator.rows.sent import sent_batch
from tests.unit.operator.rows.test_input import schema_of
from tests.unit.operator.spark_values import TYPES, struct

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
    ours = InputColumns(schema, ["f0"]).pandas_frame(sent_batch(schema, rows))
    array = pa.array(values, to_arrow_type(kind))
    series = ArrowArrayToPandasConversion.convert(array, kind).rename("f1")
    # PySpark's worker takes the rows of a batch apart and makes frames of those of a key.
    theirs = pd.DataFrame(list(pd.DataFrame(series).itertuples(index=False)))
    pd.testing.assert_series_equal(ours["f1"], theirs["f1"])
    assert ours["f0"].dtype == "int64"


NOON = datetime.datetime(2024, 7, 1, 12, 0, 0, 1, tzinfo=datetime.timezone.utc)
SHOWN_TWICE = [  # 01:30 in New York, before and after the clock is set back
    datetime.datetime(2023, 11, 5, hour, 30, tzinfo=datetime.timezone.utc) for hour in (5, 6)
]
LONG_AGO = datetime.datetime.fromisoformat("0001-01-01")
TIMES = T.ArrayType(T.TimestampType())
NTZ = T.ArrayType(T.TimestampNTZType())


def shown(kind: T.DataType, zone: str, *values: Any) -> pd.Series[Any]:
    """Return a nested column as a processor sees it."""
    schema = schema_of(T.LongType(), kind)
    columns = InputColumns(schema, ["f0"], zone)
    return columns.pandas_frame(sent_batch(schema, list(enumerate(values))))["f1"]


@pytest.mark.usefixtures("local_time_zone")
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York", "+02:00"])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (TIMES, [[NOON, *SHOWN_TWICE], [], None]),
        (NTZ, [[NOON.replace(tzinfo=None)], [], [LONG_AGO]]),
        (T.MapType(T.TimestampType(), T.TimestampType()), [[(NOON, NOON)], [(NOON, None)], []]),
        (
            struct(T.TimestampType(), TIMES, T.TimestampNTZType()),
            [{"f0": NOON, "f1": [NOON], "f2": None}, {"f0": None, "f1": None, "f2": LONG_AGO}],
        ),
    ],
    ids=str,
)
def test_nested_times_are_those_of_pyspark(kind: T.DataType, values: list[Any], zone: str) -> None:
    """They have no zone, and are in that of the session."""
    array = pa.array(values, arrow_type(kind))
    theirs = ArrowArrayToPandasConversion.convert(array, kind, timezone=zone)
    assert list(map(repr, shown(kind, zone, *values))) == list(map(repr, theirs))


def test_a_map_whose_times_a_frame_shows_as_one_is_refused() -> None:
    with pytest.raises(ValueNotHeldError, match=r"'f1': a map has two keys .* set spark\."):
        shown(
            T.MapType(T.TimestampType(), T.LongType()),
            "America/New_York",
            dict.fromkeys(SHOWN_TWICE, 1),
        )


@st.composite
def nested_values(draw: st.DrawFn) -> tuple[T.DataType, list[Any]]:
    kind, values = draw(TYPES)
    if not isinstance(kind, T.ArrayType | T.MapType | T.StructType):
        kind, values = T.ArrayType(kind), st.lists(st.none() | values, max_size=3)
    return kind, draw(st.lists(values, min_size=1, max_size=3))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nested_values())
@example((T.ArrayType(T.DoubleType()), [[0.5], [float("nan"), None], []]))
@example((T.ArrayType(T.FloatType()), [[0.5]]))
@example((T.ArrayType(T.DecimalType(38, 6)), [[Decimal("0.500000")]]))
@example((TIMES, [SHOWN_TWICE]))
@example((T.MapType(T.TimestampType(), TIMES), [{NOON: [NOON, None]}]))
def test_what_came_in_goes_out_and_into_state(
    local_time_zone: str, typed: tuple[T.DataType, list[Any]]
) -> None:
    """The session's zone is the worker's, because times in a state are in the latter."""
    kind, values = typed
    column = shown(kind, local_time_zone, *values)
    schema = T.StructType([T.StructField("a", kind)])
    rows = OutputRows(schema, "an_operator", time_zone=local_time_zone)
    output = PandasOutput(rows)
    output.extend([column.to_frame("a")])
    taken, given = output.take().column(0), rows.column(schema.fields[0], values)
    assert taken.type == given.type
    assert repr(taken.to_pylist()) == repr(given.to_pylist())  # NaN is equal to no NaN
    codec = TupleCodec(schema, "state 's'")
    assert [codec.encode((value,)) for value in column] == [codec.encode((v,)) for v in values]


def test_integers_beside_nulls_are_exact_or_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """A frame has PySpark's floats, with one warning for a column; an exact frame has integers."""
    kinds = {"k": T.LongType(), "lossy": T.LongType(), "small": T.ShortType()}
    schema = T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])
    rows = [(1, 2**53 + 1, None), (None, -(2**63), 5), (3, None, 6)]
    columns = InputColumns(schema, ["k"])
    for _ in range(2):
        assert (
            columns.pandas_frame(sent_batch(schema, rows)).dtypes.map(str).tolist()
            == ["float64"] * 3
        )
    (warning,) = [each.getMessage() for each in caplog.records]
    assert "input column 'lossy'" in warning
    exact = columns.with_exact_frames()
    shown = exact.pandas_frame(sent_batch(schema, rows))
    assert shown.dtypes.map(str).tolist() == ["Int64"] * 3
    assert [[None if v is pd.NA else v for v in row] for row in shown.values.tolist()] == [
        list(row) for row in rows
    ]
    assert exact.pandas_keys(sent_batch(schema, rows))["k"].tolist() == [1, pd.NA, 3]
    assert exact.pandas_frame(sent_batch(schema, rows[:1]))["lossy"].dtype == "int64"
    assert len(caplog.records) == 1
