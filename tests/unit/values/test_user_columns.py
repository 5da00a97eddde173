"""Columns are cast to a type of their kind, whatever the width of its offsets."""

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from pyspark_ckpt.values.arrow import arrow_type, viewed
from pyspark_ckpt.values.given import cast
from pyspark_ckpt.values.shown import retyped, shown_column


@pytest.mark.parametrize("wanted", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_a_column_of_the_type_is_taken_as_it_is(wanted: pa.DataType) -> None:
    column = pa.chunked_array([pa.array(["a", None], wanted)])
    assert cast(column, wanted).equals(column)


def test_another_kind_is_refused() -> None:
    with pytest.raises(pa.ArrowInvalid, match="int64 is not string"):
        cast(pa.chunked_array([[1]]), pa.string())


@pytest.mark.soak
@pytest.mark.parametrize("place", [0, 2])
def test_more_text_than_one_array_can_have(place: int) -> None:
    """It comes in pieces; a part from after the first 2 GB has the bytes of its place."""
    offsets = np.array([0, 3, 1_100_000_000, 2_200_000_000, 2_200_000_005])
    text = np.zeros(offsets[-1], np.uint8)
    text[:3], text[-5:] = list(b"abc"), list(b"vwxyz")
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    column = pa.Array.from_buffers(pa.large_string(), 4, buffers).slice(place)
    shown = shown_column(T.StringType(), column)
    assert shown.type == pa.string()
    assert shown[-1].as_py() == "vwxyz"
    assert place or shown[0].as_py() == "abc"
    assert [len(each.as_buffer()) for each in shown] == np.diff(offsets).tolist()[place:]


def test_large_texts_of_fields_with_one_name_stay_where_they_are() -> None:
    """Arrow's cast takes fields by name, and a struct may have two of one name."""
    twice = T.StructType([T.StructField("a", T.StringType()), T.StructField("a", T.StringType())])
    large = [pa.array([text, None], pa.large_string()) for text in ("x", "y")]
    sent = pa.StructArray.from_arrays(large, names=["c0", "c1"])
    column = retyped(sent, arrow_type(twice))
    assert [text.to_pylist() for text in column.flatten()] == [["x", None], ["y", None]]
    shown = shown_column(twice, column)
    assert shown.type == arrow_type(twice)
    assert [text.to_pylist() for text in shown.flatten()] == [["x", None], ["y", None]]


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_large_columns_come_back_in_their_own_types(cut: int) -> None:
    kind = T.ArrayType(T.StructType([T.StructField("s", T.StringType())]))
    rows = [[{"s": "x"}, None], None, [], [{"s": None}], [{"s": "yz"}] * 3]
    large = pa.large_list(pa.struct([("s", pa.large_string())]))
    column = viewed(pa.array(rows, large).slice(cut), arrow_type(kind))
    column.validate(full=True)
    assert column.type == arrow_type(kind)
    assert column.to_pylist() == rows[cut:]
