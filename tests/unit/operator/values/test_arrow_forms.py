"""Columns are cast to a type of their kind, whatever the width of its offsets."""

import pyarrow as pa
import pytest

from pyspark_ckpt.operator.values.arrow_forms import cast


@pytest.mark.parametrize("wanted", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_a_column_of_the_type_is_taken_as_it_is(wanted: pa.DataType) -> None:
    column = pa.chunked_array([pa.array(["a", None], wanted)])
    assert cast(column, wanted).equals(column)


def test_another_kind_is_refused() -> None:
    with pytest.raises(pa.ArrowInvalid, match="int64 is no string"):
        cast(pa.chunked_array([[1]]), pa.string())
