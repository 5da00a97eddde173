"""Keys that are encoded as columns have the bytes of format 1."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.keyed import keyed_rows
from pyspark_ckpt.operator.rows.keys import KeyPlaces
from pyspark_ckpt.values.nesting import holds
from tests.unit.operator.rows.sent import sent_batch
from tests.unit.operator.rows.test_key_columns import same_groups
from tests.unit.operator.spark_values import LEAVES, TYPES, Typed, struct

LEAVES_OF_KEYS = [typed for typed in LEAVES if not holds(typed[0], T.VariantType)]


@given(st.lists(st.sampled_from(LEAVES_OF_KEYS) | TYPES, min_size=1, max_size=3), st.data())
def test_bytes_of_keys(typed: list[Typed], data: st.DataObject) -> None:
    typed = [one for one in typed if not holds(one[0], (T.VariantType, T.MapType))]
    schema = struct(T.LongType(), *(kind for kind, _ in typed))
    columns = InputColumns(schema, schema.names)
    values = st.tuples(st.integers(-(2**63), 2**63 - 1), *(st.none() | v for _, v in typed))
    rows = data.draw(st.lists(values, max_size=4))
    expected = [KeyPlaces(schema, 128).place(row)[1] for row in rows]
    sent = sent_batch(schema, rows)
    assert columns.encoded_keys(sent).to_pylist() == expected
    assert same_groups(columns.key_codes(sent), expected)


def test_floats_that_are_one_key() -> None:
    schema = struct(T.DoubleType(), T.FloatType())
    columns = InputColumns(schema, schema.names)
    rows: list[Any] = [(0.0, math.nan), (-0.0, -math.nan), (None, None), (math.inf, 0.1)]
    encoded = columns.encoded_keys(sent_batch(schema, rows)).to_pylist()
    assert encoded[0] == encoded[1]
    assert encoded == [KeyPlaces(schema, 128).place(row)[1] for row in rows]


_MINUS_NAN = -np.float64(math.nan)
"""A NaN with other bits than Python's."""


@pytest.mark.parametrize(
    ("kind", "wrap"),
    [
        (T.DoubleType(), lambda value: value),
        (T.FloatType(), lambda value: value),
        (T.ArrayType(T.DoubleType()), lambda value: None if value is None else [value, None]),
        (
            T.StructType([T.StructField("x", T.FloatType()), T.StructField("d", T.DateType())]),
            lambda value: None if value is None else {"x": value, "d": datetime.date(2024, 7, 1)},
        ),
    ],
    ids=["double", "float", "array", "struct"],
)
@pytest.mark.parametrize("order", [1, -1])
def test_a_processor_gets_one_form_of_equal_keys_in_all_modes(
    kind: T.DataType, wrap: Callable[[Any], Any], order: int
) -> None:
    schema = T.StructType([T.StructField("k", kind), T.StructField("v", T.LongType())])
    columns = InputColumns(schema, ["k", "v"])
    values = [-0.0, 0.0, _MINUS_NAN, math.nan, 1.5, None][::order]
    sent = sent_batch(schema, [(wrap(value), 7) for value in values])
    keyed = keyed_rows(columns, [sent])
    in_rows = [key[0] for key in columns.keys_of(keyed.first)]
    assert len(in_rows) == 4
    in_arrow = columns.arrow_keys(keyed.first).column("k")
    assert repr(in_arrow.to_pylist()) == repr(in_rows)
    frame = columns.pandas_keys(keyed.first)
    assert str(frame["v"].dtype) == "int64"
    in_pandas = pa.array(frame["k"], in_arrow.type, from_pandas=False)
    if isinstance(kind, T.FloatType | T.DoubleType):  # pandas has NaN for null
        in_arrow = in_arrow.fill_null(math.nan)
        bits = in_arrow.to_numpy().view(f"i{in_arrow.type.byte_width}")
        assert len(set(bits.tolist())) == 3
    assert repr(in_pandas.to_pylist()) == repr(in_arrow.to_pylist())
    rows = columns.arrow_rows(keyed.sent).column("k")
    assert "-0.0" in repr(rows.to_pylist()), "rows stay as they are"
