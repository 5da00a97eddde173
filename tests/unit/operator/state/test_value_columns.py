"""State values as pandas columns: exact numbers, nulls of every kind, clear refusals."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from pyspark.sql import types as T

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.table.time_to_live import StateTtlConfig
from pyspark_ckpt.values.arrow import arrow_type
from pyspark_ckpt.values.codec import TupleCodec
from pyspark_ckpt.values.state_columns import ValueColumns
from tests.unit.operator.subtask_epochs import BOTH, KEYS, NUMBER, SubtaskEpochs

LONG_AGO = datetime.datetime.fromisoformat("0001-01-01 00:00:00.000001")
VALUES: list[tuple[T.DataType, list[Any], str]] = [
    (T.ByteType(), [-128, None, 127], "Int8"),
    (T.ShortType(), [-32768, None, 32767], "Int16"),
    (T.IntegerType(), [-(2**31), None, 2**31 - 1], "Int32"),
    (T.LongType(), [2**53 + 1, None, -(2**63), 2**63 - 1], "Int64"),
    (T.FloatType(), [0.5, None, -math.inf, math.nan], "Float32"),
    (T.DoubleType(), [0.1, None, math.nan, -0.0], "Float64"),
    (T.BooleanType(), [True, None, False], "boolean"),
    (T.StringType(), ["", None, "ä"], "object"),
    (T.BinaryType(), [b"", None, b"\xff"], "object"),
    (T.DecimalType(38, 2), [Decimal("1.10"), None, Decimal("-99999999999999999999.99")], "object"),
    (T.DateType(), [datetime.date.min, None, datetime.date.max], "object"),
    (T.TimestampNTZType(), [LONG_AGO, None], "object"),
    (T.ArrayType(T.LongType()), [[1, None], None, []], "object"),
    (T.MapType(T.StringType(), T.LongType()), [{"a": 1}, None, {}], "object"),
]  # fmt: skip


def columns_of(kind: T.DataType) -> ValueColumns:
    return ValueColumns(T.StructType([T.StructField("v", kind)]), "state 's'")


@pytest.mark.parametrize(("kind", "values", "dtype"), VALUES, ids=lambda p: str(p)[:20])
def test_values_become_columns_and_values_again(
    kind: T.DataType, values: list[Any], dtype: str
) -> None:
    columns = columns_of(kind)
    rows = [(value,) for value in values]
    for tuples in (rows, [row for row in rows if row != (None,)], [(None,)] * 2, []):
        frame = columns.frame(tuples, pd.RangeIndex(len(tuples)))
        assert str(frame["v"].dtype) == dtype
        assert list(map(repr, columns.rows(frame, len(tuples)))) == list(map(repr, tuples))


def test_a_key_without_a_value_has_nulls_in_all_columns() -> None:
    columns = ValueColumns(BOTH, "state 's'")
    frame = columns.frame([(1, "x"), None, (None, "y")], pd.Index([4, 2, 9]))
    assert list(frame.columns) == ["n", "s"]
    assert frame.index.tolist() == [4, 2, 9]
    assert frame["n"].isna().tolist() == [False, True, True]
    assert frame["s"].tolist() == ["x", None, "y"]


@pytest.mark.parametrize(
    ("kind", "series", "expected"),
    [
        (T.LongType(), pd.Series([1.0, np.nan]), [1, None]),
        (T.LongType(), pd.Series([1, None], dtype="Int32"), [1, None]),
        (T.LongType(), pd.Series([1, None], dtype=object), [1, None]),
        (T.LongType(), pd.Series([2**63 - 1], dtype="int64"), [2**63 - 1]),
        (T.LongType(), pd.Series([1.5]), [1.5]),
        (T.DoubleType(), pd.Series([1.5, np.nan]), [1.5, math.nan]),
        (T.DoubleType(), pd.Series([1.5, None], dtype="Float64"), [1.5, None]),
        (T.DoubleType(), pd.Series([1.5, None, pd.NA], dtype=object), [1.5, None, None]),
        (T.BooleanType(), pd.Series([True, None], dtype="boolean"), [True, None]),
        (T.StringType(), pd.Series(["a", None, pd.NA], dtype=object), ["a", None, None]),
        (T.StringType(), pd.Series(["a", pd.NA], dtype="string"), ["a", None]),
        (T.StringType(), pd.Series(["a", np.nan], dtype=object), ["a", None]),
        (T.ArrayType(T.LongType()), pd.Series([[1, None], np.nan]), [[1, None], None]),
        (T.TimestampNTZType(), pd.Series([pd.Timestamp(7), pd.NaT]), [pd.Timestamp(7), None]),
        (T.StringType(), pd.Series(["a", None, "a"], dtype="category"), ["a", None, "a"]),
    ],
)
def test_every_kind_of_column_is_taken(
    kind: T.DataType, series: pd.Series[Any], expected: list[Any]
) -> None:
    frame = pd.DataFrame({"v": series})
    values = [value for (value,) in columns_of(kind).rows(frame, len(series))]
    assert list(map(repr, values)) == list(map(repr, expected))


@pytest.mark.parametrize(
    ("frame", "length"),
    [
        (pd.DataFrame({"n": [1]}), 1),
        (pd.DataFrame({"n": [1], "s": ["x"]}), 2),
        (pd.DataFrame(), 0),
    ],
)
def test_a_missing_column_or_row_is_refused(frame: pd.DataFrame, length: int) -> None:
    with pytest.raises(StateValueError, match=rf"state 's'.*{length} rows with \['n', 's'\]"):
        ValueColumns(BOTH, "state 's'").rows(frame, length)


@pytest.mark.parametrize(
    "ttl", [None, 100, StateTtlConfig(100, update="OnReadAndWrite")], ids=["no", "ttl", "renewing"]
)
def test_many_keys_are_read_and_written_as_one_by_one(
    subtask_epochs: SubtaskEpochs, ttl: int | StateTtlConfig | None
) -> None:
    subtask_epochs.set_time(1000)
    keys = pd.DataFrame({"k": range(len(KEYS))})
    state = subtask_epochs.begin().getValueState("v", NUMBER, ttl)
    subtask_epochs.leave_key()
    assert state.getMany(keys)["n"].isna().all()
    state.updateMany(keys, pd.DataFrame({"n": range(len(KEYS))}))
    chosen = keys.iloc[[3, 1]]
    state.updateMany(chosen, pd.DataFrame({"n": [30, None], "other": 1}))
    assert state.getMany(chosen)["n"].tolist() == [30, pd.NA]
    assert state.getMany(chosen).index.tolist() == [3, 1]
    state.clearMany(keys.iloc[[0]])
    subtask_epochs.end()
    for time_ms, alive in ((1060, True), (1120, ttl is None or not isinstance(ttl, int))):
        subtask_epochs.set_time(time_ms)
        state = subtask_epochs.begin().getValueState("v", NUMBER, ttl)
        subtask_epochs.leave_key()
        expected = [pd.NA, pd.NA, 2, 30, 4] if alive else [pd.NA] * 5
        assert state.getMany(keys)["n"].tolist() == expected
        subtask_epochs.to_key(1)
        assert state.exists() == alive
        subtask_epochs.end()


@pytest.mark.parametrize("kind", [T.TimestampType(), T.TimestampNTZType(), T.DateType()], ids=str)
def test_many_keys_keep_nested_times_that_python_does_not_have(
    subtask_epochs: SubtaskEpochs, kind: T.DataType
) -> None:
    integers = pa.int32() if isinstance(kind, T.DateType) else pa.int64()
    least = -(2 ** (integers.bit_width - 1))
    times = pa.array([least, None, -least - 1], integers).cast(arrow_type(kind))
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 1, 2, None, 3], pa.int32()), times)
    structs = pa.StructArray.from_arrays([lists], names=["of"])
    inner = T.StructType([T.StructField("of", T.ArrayType(kind))])
    schema = T.StructType([T.StructField("l", T.ArrayType(kind)), T.StructField("s", inner)])
    keys = pa.table({"key_position": range(len(KEYS))})
    given = pa.table({"l": lists, "s": structs})
    state = subtask_epochs.begin().getValueState("v", schema)
    subtask_epochs.leave_key()
    state.updateMany(keys, given)
    subtask_epochs.end()
    state = subtask_epochs.begin().getValueState("v", schema)
    subtask_epochs.leave_key()
    assert state.getMany(keys).equals(given)


ENCODED_AS_COLUMNS = [
    *(typed[0] for typed in VALUES[:4]), T.DoubleType(), T.BooleanType(), T.StringType(),
    T.BinaryType(),
]  # fmt: skip
PANDAS_TYPES = ["int8", "int16", "uint32", "int64", "Int64", "UInt16", "float64", "float32",
                "Float64", "bool", "boolean", "object", "string", "category"]  # fmt: skip
_plain = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(-2, 200), st.floats(), st.booleans(),
    st.text(max_size=3), st.binary(max_size=3), st.just(pd.NA), st.sampled_from(["x" * 40, "ä"]),
)  # fmt: skip


@given(st.lists(_plain, max_size=4), st.sampled_from(PANDAS_TYPES), st.binary(max_size=2))
def test_columns_are_encoded_as_the_codec_encodes_each_value(
    values: list[Any], dtype: str, prefix: bytes
) -> None:
    try:
        series = pd.Series(values, dtype=dtype)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        reject()
    frame = pd.DataFrame({"v": series})
    for kind, _, _ in VALUES:
        columns = columns_of(kind)
        found = columns.encoded(frame, len(values), prefix)
        codec = TupleCodec(T.StructType([T.StructField("v", kind)]), "state 's'")
        if found is not None:  # then every value fits
            rows = columns.rows(frame, len(values))
            assert found == [prefix + codec.encode(row) for row in rows]
            assert kind in ENCODED_AS_COLUMNS


@pytest.mark.parametrize("kind", ENCODED_AS_COLUMNS, ids=str)
def test_columns_of_most_types_need_no_codec(kind: T.DataType) -> None:
    values = next(values for other, values, _ in VALUES if other == kind)
    frame = columns_of(kind).frame([(value,) for value in values], pd.RangeIndex(len(values)))
    assert columns_of(kind).encoded(frame, len(values), b"") is not None


def test_columns_of_other_sizes_are_refused_before_they_are_encoded() -> None:
    with pytest.raises(StateValueError, match="wanted are 2 rows"):
        ValueColumns(BOTH, "state 's'").encoded(pd.DataFrame({"n": [1], "s": ["x"]}), 2, b"")


@pytest.mark.parametrize(("kind", "values", "_"), VALUES, ids=lambda p: str(p)[:20])
def test_many_values_are_decoded_as_each_is(kind: T.DataType, values: list[Any], _: str) -> None:
    codec = TupleCodec(T.StructType([T.StructField("v", kind)]), "state 's'")
    stored = [codec.encode((value,)) for value in values]
    assert repr(codec.decode_many(stored)) == repr([codec.decode(one) for one in stored])
    some = [None, stored[0], None, stored[-1]]
    found = codec.decode_many(some)
    assert repr(found) == repr([None, codec.decode(stored[0]), None, codec.decode(stored[-1])])
    assert codec.decode_many([]) == []
    assert codec.decode_many([None]) == [None]


@pytest.mark.parametrize("cut", [b"", b"\x91", b"\x92\x01\x02", b"\x91\xa1x", b"\xc1"])
def test_a_value_that_cannot_be_decoded_among_many_is_named(cut: bytes) -> None:
    codec = TupleCodec(NUMBER, "state 's'")
    with pytest.raises(StateValueError, match="state 's': stored bytes do not fit"):
        codec.decode_many([codec.encode((1,)), cut, codec.encode((2,))])


def test_bytes_that_only_fit_together_are_refused() -> None:
    """Two halves of a value make a whole one when they are put together."""
    codec = TupleCodec(BOTH, "state 's'")
    whole = codec.encode((1, "x"))
    with pytest.raises(StateValueError, match="state 's': stored bytes do not fit"):
        codec.decode_many([whole[:2], whole[2:]])


_REQUIRED = T.StructType([T.StructField("v", T.LongType(), nullable=False)])
_INSIDE = T.StructType([T.StructField("v", T.StructType([*_REQUIRED.fields]))])


@pytest.mark.parametrize(
    ("schema", "good", "bad"), [(_REQUIRED, 1, None), (_INSIDE, {"v": 1}, {"v": None})]
)
def test_many_values_have_no_null_where_the_schema_has_none(
    schema: T.StructType, good: Any, bad: Any
) -> None:
    columns = ValueColumns(schema, "state 's'")
    kind = arrow_type(schema.fields[0].dataType)
    good_table = pa.table({"v": pa.array([good, good], kind)})
    assert columns.encoded(good_table, 2, b"stamp") is not None
    with pytest.raises(StateValueError, match=r"state 's': row 1 has a null"):
        columns.encoded(pa.table({"v": pa.array([good, bad], kind)}), 2, b"stamp")


def test_a_null_in_a_frame_is_refused_where_the_schema_has_none() -> None:
    columns = ValueColumns(_REQUIRED, "state 's'")
    frame = pd.DataFrame({"v": pd.array([1, None], "Int64")})
    with pytest.raises(StateValueError, match=r"state 's': row 1 has a null"):
        columns.encoded(frame, 2, b"")


def test_a_misspelt_field_of_a_struct_in_arrow_is_refused() -> None:
    """A field that is missing is null, one that is unknown is left out; both are a mistake."""
    inner = T.StructType().add("lat", "double").add("lon", "double")
    columns = ValueColumns(T.StructType([T.StructField("g", inner)]), "state 's'")
    with pytest.raises(StateValueError, match=r"column 'g' is struct<lat: double, lo: double>"):
        columns.encoded(pa.table({"g": [{"lat": 1.0, "lo": 2.0}]}), 1, b"")
    assert columns.encoded(pa.table({"g": [{"lat": 1.0}]}), 1, b"")


def test_many_values_come_as_a_record_batch_too() -> None:
    columns = ValueColumns(_REQUIRED, "state 's'")
    batch = pa.RecordBatch.from_pydict({"v": [1, 2]})
    table = pa.Table.from_batches([batch])
    assert columns.encoded(batch, 2, b"x") == columns.encoded(table, 2, b"x")
    wrong: Any = {"v": [1, 2]}
    with pytest.raises(StateValueError, match="state 's': updateMany got dict: give a pandas"):
        columns.encoded(wrong, 2, b"")


def test_decimals_of_an_arrow_table_are_not_changed() -> None:
    columns = ValueColumns(T.StructType().add("v", T.DecimalType(10, 2)), "state 's'")
    assert columns.encoded(pa.table({"v": [Decimal("1.5")]}), 1, b"") == [b"\x91\xa41.50"]
    for value in (Decimal("1.509"), 1):
        with pytest.raises(StateValueError, match=r"its type in the schema is decimal\(10,2\)"):
            columns.encoded(pa.table({"v": [value]}), 1, b"")
