"""Frames of many kinds that a processor yields, put together into the output's columns."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.pandas.types import _create_converter_from_pandas

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.modes.output import PandasOutput
from pyspark_ckpt.operator.modes.views import FrameIndexes
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.values.arrow import arrow_type
from tests.unit.operator.spark_values import struct

BEYOND_FLOATS = 2**53 + 1


def output_of(*types: T.DataType) -> PandasOutput:
    fields = [T.StructField(name, kind) for name, kind in zip("abc", types, strict=False)]
    return PandasOutput(OutputRows(T.StructType(fields), "an_operator"))


def taken(output: PandasOutput, *frames: pd.DataFrame) -> list[list[object]]:
    output.extend(frames)
    assert output.rows == sum(map(len, frames))
    whole = output.take()
    assert output.rows == 0
    return [column.to_pylist() for column in whole.columns]


def test_whole_numbers() -> None:
    output = output_of(T.LongType(), T.IntegerType())
    first = pd.DataFrame({"b": [2], "a": [BEYOND_FLOATS]})
    second = pd.DataFrame({"a": [3, 5], "b": [4, 6]})
    assert taken(output, first, second) == [[BEYOND_FLOATS, 3, 5], [2, 4, 6]]


def test_fractions() -> None:
    output = output_of(T.DoubleType(), T.DoubleType())
    frames = [pd.DataFrame({"a": [0.5], "b": [None]}), pd.DataFrame({"a": [1], "b": [0.25]})]
    assert taken(output, *frames) == [[0.5, 1.0], [None, 0.25]]


def test_whole_numbers_beside_fractions_keep_every_digit() -> None:
    output = output_of(T.LongType(), T.DoubleType())
    frames = [pd.DataFrame({"a": [BEYOND_FLOATS + number], "b": [0.5]}) for number in range(2)]
    assert taken(output, *frames) == [[BEYOND_FLOATS, BEYOND_FLOATS + 1], [0.5, 0.5]]


@pytest.mark.parametrize("null_at", [0, 1, 2])
def test_a_null_among_whole_numbers(null_at: int) -> None:
    output = output_of(T.LongType(), T.LongType())
    frames = [pd.DataFrame({"a": [number], "b": [10 * number]}) for number in range(3)]
    frames[null_at] = pd.DataFrame({"a": [null_at], "b": [None]})
    tens: list[object] = [0, 10, 20]
    tens[null_at] = None
    assert taken(output, *frames) == [[0, 1, 2], tens]


def test_a_fraction_is_no_whole_number() -> None:
    output = output_of(T.LongType(), T.LongType())
    output.extend([pd.DataFrame({"a": [1], "b": [2]}), pd.DataFrame({"a": [3], "b": [0.5]})])
    with pytest.raises(StateValueError, match="'b' is bigint"):
        output.take()


def test_a_number_too_large_for_its_column() -> None:
    output = output_of(T.ByteType())
    output.extend([pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [300]})])
    with pytest.raises(StateValueError, match="'a' is tinyint"):
        output.take()


def test_texts_beside_numbers() -> None:
    output = output_of(T.LongType(), T.StringType())
    frames = [pd.DataFrame({"a": [1], "b": ["x"]}), pd.DataFrame({"a": [2], "b": [None]})]
    assert taken(output, *frames) == [[1, 2], ["x", None]]


@pytest.mark.parametrize("dtype", ["int64", "Int64", "int32", "uint8"])
def test_integers_are_no_decimals_without_room_for_all_of_their_kind(dtype: str) -> None:
    """The oracle for each type is PyArrow's own rule, which PySpark's output follows."""
    frame = pd.DataFrame({"a": pd.Series([7], dtype=dtype)})
    whole = pa.array([7], pa.type_for_alias(dtype.lower()))
    for precision, scale in [(38, 0), (21, 2), (20, 2), (19, 0), (12, 2), (11, 2), (5, 2), (4, 2)]:
        output = output_of(T.DecimalType(precision, scale))
        try:
            whole.cast(pa.decimal128(precision, scale))
        except pa.ArrowInvalid:
            with pytest.raises(
                StateValueError, match=r"Failed to convert the value of the column .a.*, 7,"
            ):
                taken(output, frame)
        else:
            assert taken(output, frame) == [[7]]


def test_integers_are_coerced_to_decimals_if_the_session_says_so() -> None:
    schema = T.StructType([T.StructField("a", T.DecimalType(3, 2))])
    output = PandasOutput(OutputRows(schema, "an_operator", coerces_integers=True))
    assert taken(output, pd.DataFrame({"a": [7]})) == [[7]]


@pytest.mark.parametrize(
    ("kind", "needs"),
    [
        (T.LongType(), False),
        (T.TimestampNTZType(), False),
        (T.MapType(T.StringType(), T.StructType().add("at", "timestamp")), True),
    ],
)
def test_a_zone_that_arrow_does_not_know_counts_for_instants_only(
    kind: T.DataType, needs: bool
) -> None:
    schema = T.StructType([T.StructField("a", kind)])
    rows = OutputRows(schema, "an_operator", time_zone="GMT+8:00 of nowhere")
    if needs:
        with pytest.raises(Exception, match="nowhere"):
            PandasOutput(rows)
    else:
        PandasOutput(rows)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (T.LongType(), [1, 2, 3]),
        (T.DoubleType(), [0.5, None, 2.5]),
        (T.StringType(), ["x", None, "z"]),
    ],
)
@pytest.mark.parametrize("beside", [False, True])
def test_a_frame_that_is_changed_and_yielded_again(
    kind: T.DataType, values: list[object], beside: bool
) -> None:
    output = output_of(kind, T.StringType()) if beside else output_of(kind)

    def yielded() -> Iterator[pd.DataFrame]:
        frame = pd.DataFrame({"a": values[:1], **({"b": ["b"]} if beside else {})})
        for value in values:
            frame.loc[0, "a"] = value
            yield frame

    output.extend(yielded())
    assert output.take().column(0).to_pylist() == values


def test_a_frame_over_an_array_that_is_changed() -> None:
    output = output_of(T.LongType(), T.LongType())
    numbers = np.zeros((1, 2), np.int64)

    def yielded() -> Iterator[pd.DataFrame]:
        frame = pd.DataFrame(numbers, columns=["a", "b"], copy=False)
        for number in (1, 2):
            numbers[:] = number
            yield frame

    output.extend(yielded())
    assert output.take().column(0).to_pylist() == [1, 2]


def test_lists_and_dicts_in_a_frame_that_are_changed() -> None:
    fields = T.StructType([T.StructField("n", T.ArrayType(T.LongType()))])
    output = output_of(T.ArrayType(T.LongType()), fields)

    def yielded() -> Iterator[pd.DataFrame]:
        numbers: list[int] = []
        frame = pd.DataFrame({"a": [numbers], "b": [{"n": numbers}]})
        for number in (1, 2):
            numbers.append(number)
            yield frame

    output.extend(yielded())
    lists, structs = output.take().columns
    assert lists.to_pylist() == [[1], [1, 2]]
    assert structs.to_pylist() == [{"n": [1]}, {"n": [1, 2]}]


def test_fractions_beside_whole_numbers_change_no_digit_of_other_frames() -> None:
    output = output_of(T.LongType())
    frames = [pd.DataFrame({"a": [BEYOND_FLOATS]}), pd.DataFrame({"a": [np.nan]})]
    assert taken(output, *frames, frames[0]) == [[BEYOND_FLOATS, None, BEYOND_FLOATS]]


def test_an_error_counts_the_rows_of_frames_before() -> None:
    output = output_of(T.LongType())
    output.extend([pd.DataFrame({"a": [1, 2]}), pd.DataFrame({"a": [3.0, 0.5]})])
    with pytest.raises(StateValueError, match=r"value 0\.5 is not") as refused:
        output.take()
    assert refused.value.row == 3


def test_a_call_is_cut_whatever_its_frames_hold() -> None:
    output = output_of(T.LongType(), T.StringType())
    frames = [pd.DataFrame({"a": [n] * n, "b": ["x"] * n}) for n in (1, 2, 3)]
    output.extend(frames)
    output.cut(3)
    assert output.rows == 3
    assert output.take().column(0).to_pylist() == [1, 2, 2]


def test_the_name_of_an_index_stays_with_the_frame_that_got_it() -> None:
    indexes = FrameIndexes()
    first = pd.DataFrame({"a": [1, 2]})
    first.index = indexes.of(2)
    assert indexes.of(2) is first.index, "one is made for all frames of a length"
    first.index.name = "mine"
    assert indexes.of(2).name is None
    assert indexes.of(3).tolist() == [0, 1, 2]
    assert first.index.name == "mine"


@pytest.mark.usefixtures("local_time_zone")
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York", "+02:00"])
def test_times_are_in_the_sessions_zone_as_in_the_frames_that_came_in(zone: str) -> None:
    """The worker's own zone is another one."""
    instants = [1_719_835_200_000_001, 1_699_165_800_000_000]  # at the last one it is 01:30 again
    shown = pd.to_datetime(pd.Series(instants), unit="us", utc=True).dt.tz_convert(zone)
    schema = T.StructType([T.StructField("a", T.TimestampType())])
    output = PandasOutput(OutputRows(schema, "an_operator", time_zone=zone))
    naive = shown.dt.tz_localize(None).to_frame("a")
    output.extend([naive, naive.assign(a=pd.NaT), shown.to_frame("a")])
    times = output.take().column(0).cast(pa.int64())
    assert times.to_pylist() == [*instants, None, None, *instants]


def in_pyspark(kind: T.DataType, zone: str, values: list[Any]) -> list[Any]:
    """Return what PySpark's worker makes of a yielded column."""
    column = pd.Series([*values, None], dtype="object").iloc[:-1]
    converted = _create_converter_from_pandas(kind, timezone=zone)(column)
    array = pa.Array.from_pandas(converted, type=arrow_type(kind))
    made: list[Any] = array.to_pylist(maps_as_pydicts="strict")
    return made


def yielded(kind: T.DataType, zone: str, values: list[Any]) -> pa.Array:
    schema = T.StructType([T.StructField("a", kind)])
    output = PandasOutput(OutputRows(schema, "an_operator", time_zone=zone))
    output.extend([pd.DataFrame({"a": pd.Series([*values, None], dtype="object").iloc[:-1]})])
    return output.take().column(0)


def as_sent(kind: T.DataType, values: list[Any]) -> pa.Array:
    field = T.StructField("a", kind)
    return OutputRows(T.StructType([field]), "an_operator").column(field, values)


ONE_TIME = struct(T.TimestampType(), T.ArrayType(T.TimestampType()))
MAP = T.MapType(T.TimestampType(), T.TimestampType())
WALL = datetime.datetime(2024, 7, 1, 12, 0, 0, 1)  # noqa: DTZ001  # frames have no zones
IN_UTC = WALL.replace(tzinfo=datetime.timezone.utc)


@pytest.mark.usefixtures("local_time_zone")
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York", "+02:00"])
@pytest.mark.parametrize("time", [WALL, pd.Timestamp(WALL), IN_UTC, pd.Timestamp(IN_UTC)], ids=repr)
def test_nested_times_are_in_the_sessions_zone_as_in_pyspark(zone: str, time: Any) -> None:
    """The worker's own zone is another one, and times with a zone are what they are."""
    for kind, value in [
        (T.ArrayType(T.TimestampType()), [time, None]),
        (T.ArrayType(T.ArrayType(T.TimestampType())), [[time], None]),
        (MAP, {time: time}),
        (ONE_TIME, {"f0": time, "f1": [time]}),
        (ONE_TIME, (time, None)),
        (T.ArrayType(ONE_TIME), np.array([{"f0": time}, None], dtype=object)),
    ]:
        theirs = in_pyspark(kind, zone, [value])
        assert yielded(kind, zone, [value]).equals(as_sent(kind, theirs)), kind


def test_times_of_an_array_of_numpy_are_in_the_sessions_zone() -> None:
    kind, times = T.ArrayType(T.TimestampType()), np.array([WALL, "NaT"], "datetime64[ns]")
    theirs = in_pyspark(kind, "Asia/Tokyo", [times])
    assert yielded(kind, "Asia/Tokyo", [times]).equals(as_sent(kind, theirs))


@pytest.mark.usefixtures("local_time_zone")
def test_a_time_among_other_objects_is_in_the_sessions_zone() -> None:
    """A column of objects is what a frame has if some are nulls of another kind."""
    values = [WALL, None, pd.NaT, float("nan"), IN_UTC]
    times = yielded(T.TimestampType(), "Asia/Tokyo", values).cast(pa.int64())
    assert times.to_pylist() == [
        1_719_802_800_000_001, None, None, None, 1_719_835_200_000_001,
    ]  # fmt: skip


LEAVES: list[tuple[T.DataType, Any]] = [
    (T.LongType(), 7), (T.ByteType(), 7), (T.StringType(), "x"), (T.BooleanType(), True),
    (T.BinaryType(), b"x"), (T.DecimalType(5, 2), Decimal("1.25")), (T.TimestampType(), WALL),
    (T.DateType(), WALL.date()), (T.TimestampNTZType(), WALL),
    (T.DayTimeIntervalType(), datetime.timedelta(1)),
]  # fmt: skip
NULLS = [None, float("nan"), np.float64("nan"), pd.NaT, pd.NA]


@pytest.mark.parametrize(("leaf", "value"), LEAVES, ids=str)
def test_every_null_of_pandas_inside_a_value_is_null_as_in_pyspark(
    leaf: T.DataType, value: Any
) -> None:
    for null in NULLS:
        for kind, nested in [
            (T.ArrayType(leaf), [value, null]),
            (T.MapType(T.StringType(), leaf), {"v": value, "n": null}),
            (struct(leaf, leaf), {"f0": value, "f1": null}),
            (struct(leaf, leaf), (value, null)),
        ]:
            theirs = in_pyspark(kind, "UTC", [nested])
            assert yielded(kind, "UTC", [nested]).equals(as_sent(kind, theirs)), (kind, null)


@pytest.mark.parametrize("kind", [T.FloatType(), T.DoubleType()], ids=str)
def test_nan_inside_a_value_is_a_number(kind: T.DataType) -> None:
    """PySpark makes null of it, so that it loses a NaN that came in next to a null."""
    numbers = [0.5, math.nan, None]
    of_pandas: list[list[Any]] = [[0.5, math.nan, null] for null in (None, pd.NA, pd.NaT)]
    for values in of_pandas:
        assert repr(yielded(T.ArrayType(kind), "UTC", [values]).to_pylist()) == repr([numbers])
    array = yielded(T.ArrayType(kind), "UTC", [np.array(numbers[:2])])
    assert repr(array.to_pylist()) == repr([numbers[:2]])


def test_integers_that_numpy_made_floats_beside_nan() -> None:
    kind = T.ArrayType(T.LongType())
    assert yielded(kind, "UTC", [np.array([1, np.nan])]).to_pylist() == [[1, None]]
    with pytest.raises(StateValueError, match="'a' is array<bigint>"):
        yielded(kind, "UTC", [[0.5]])


@pytest.mark.parametrize("value", ["text", {1: 2}, np.array(1)], ids=repr)
def test_what_is_no_list_is_refused(value: Any) -> None:
    for leaf in (T.StringType(), T.DateType()):
        with pytest.raises(StateValueError, match="'a' is array<"):
            yielded(T.ArrayType(leaf), "UTC", [value])
