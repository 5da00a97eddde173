"""Frames of many kinds that a processor yields, put together into the output's columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.modes.pandas import FrameIndexes, PandasOutput
from pyspark_ckpt.operator.rows.output import OutputRows

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
    assert lists.to_pylist() == ['{"c0":[1]}', '{"c0":[1,2]}']
    assert structs.to_pylist() == ['{"c0":{"c0":[1]}}', '{"c0":{"c0":[1,2]}}']


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
    assert taken(output, naive, naive.assign(a=pd.NaT)) == [[*instants, None, None]]
    assert taken(output, shown.to_frame("a")) == [instants]
