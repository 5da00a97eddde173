"""Columns of bytes are cut as Python cuts each value, whether or not they have one length."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.stored.binary_column import BinaryColumn

LONG = st.lists(st.binary(min_size=4, max_size=9), min_size=1, max_size=8)
EVEN = st.lists(st.binary(min_size=6, max_size=6), min_size=1, max_size=8)
FEW = st.integers(0, 2)


@given(
    values=LONG | EVEN, skipped=st.integers(0, 2), front=st.integers(0, 2), back=st.integers(0, 2)
)
def test_cut(values: list[bytes], skipped: int, front: int, back: int) -> None:
    skipped = min(skipped, len(values))
    column = BinaryColumn.of(pa.array(values, pa.binary())).between(skipped, len(values))
    wanted = [value[front : len(value) - back] for value in values[skipped:]]
    assert column.cut(front, back).array().to_pylist() == wanted
    if front:
        marked = [b"\xdd" + value for value in wanted]
        assert column.cut(front, back, mark=0xDD).array().to_pylist() == marked


@pytest.mark.parametrize("values", [[b"abc"], [b"abcdef", b"ab"], [b"abc", b"abc"]])
def test_a_value_that_is_too_short(values: list[bytes]) -> None:
    with pytest.raises(ValueError, match="cut short"):
        BinaryColumn.of(pa.array(values, pa.binary())).cut(3, 1)
