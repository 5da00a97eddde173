"""Keys that are encoded as columns have the bytes that are stored since the first version."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.values.codec import holds
from tests.unit.operator.rows.test_spilled_frames import shuffled
from tests.unit.operator.spark_values import LEAVES, TYPES, Typed, struct

LEAVES_OF_KEYS = [typed for typed in LEAVES if not holds(typed[0], T.VariantType)]


@given(st.lists(st.sampled_from(LEAVES_OF_KEYS) | TYPES, min_size=1, max_size=3), st.data())
def test_bytes_of_keys(typed: list[Typed], data: st.DataObject) -> None:
    typed = [one for one in typed if not holds(one[0], (T.VariantType, T.MapType))]
    schema = struct(T.LongType(), *(kind for kind, _ in typed))
    columns = InputColumns(schema, schema.names)
    values = st.tuples(st.integers(-(2**63), 2**63 - 1), *(st.none() | v for _, v in typed))
    rows = data.draw(st.lists(values, max_size=4))
    sent = shuffled(schema, rows, *[0] * len(rows))
    expected = [msgspec.msgpack.encode(key) for key in columns.sent_keys(sent)]
    assert columns.encoded_keys(sent).to_pylist() == expected


def test_floats_that_are_one_key() -> None:
    schema = struct(T.DoubleType(), T.FloatType())
    columns = InputColumns(schema, schema.names)
    rows: list[Any] = [(0.0, math.nan), (-0.0, -math.nan), (None, None), (math.inf, 0.1)]
    encoded = columns.encoded_keys(shuffled(schema, rows, 0, 0, 0, 0)).to_pylist()
    assert encoded[0] == encoded[1]
    assert encoded == [
        msgspec.msgpack.encode(key) for key in columns.sent_keys(shuffled(schema, rows, 0, 0, 0, 0))
    ]
