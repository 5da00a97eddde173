"""The ends of MessagePack values, compared with what msgspec writes."""

from __future__ import annotations

import datetime
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.values.message_pack import end_of_value

_encode = msgspec.msgpack.Encoder().encode

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=40)
    | st.binary(max_size=40)
    | st.datetimes(timezones=st.just(datetime.timezone.utc))
    | st.decimals(allow_nan=False)
    | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127).filter(lambda n: n != -1),
                st.binary(max_size=20))
)  # fmt: skip
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=20)
        | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=20)
    ),
)
_LONG: list[Any] = [
    *(kind * length for kind in ("x", b"x") for length in (31, 32, 255, 256, 65_535, 65_536)),
    *([0] * length for length in (15, 16, 65_535, 65_536)),
    *(dict.fromkeys(range(length), 0) for length in (15, 16, 65_536)),
    *(msgspec.msgpack.Ext(5, b"x" * length) for length in (1, 2, 4, 8, 16, 17, 256, 65_536)),
    *(sign * 2**bits for bits in (0, 7, 8, 15, 16, 31, 32, 63) for sign in (1, -1)),
]


def encoded(value: Any) -> bytes:
    try:
        return _encode(value)
    except OverflowError:  # integers beyond 64 bits, which dictionaries may have as keys
        return _encode(str(value))


@given(values=st.lists(_VALUES, min_size=1, max_size=5), before=st.binary(max_size=3))
def test_each_of_several_values_ends_where_the_next_begins(
    values: list[Any], before: bytes
) -> None:
    data, ends = before, []
    for value in values:
        data += encoded(value)
        ends.append(len(data))
    found, position = [], len(before)
    while position < len(data):
        position = end_of_value(data, position)
        found.append(position)
    assert found == ends


@pytest.mark.parametrize("value", _LONG, ids=lambda value: f"{type(value).__name__}")
def test_every_size_of_head(value: Any) -> None:
    data = _encode(value)
    assert end_of_value(data, 0) == len(data)
    assert end_of_value(b"\x01" + data + data, 1) == 1 + len(data)


def test_float_of_32_bits() -> None:
    assert end_of_value(b"\xca" + struct.pack(">f", 1.5) + b"\x00", 0) == 5


@given(value=_VALUES, data=st.data())
def test_a_cut_value_is_no_value(value: Any, data: st.DataObject) -> None:
    whole = encoded(value)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ValueError, match="no whole MessagePack value at 0"):
        end_of_value(whole[:cut], 0)


def test_the_byte_that_messagepack_never_uses_is_no_value() -> None:
    with pytest.raises(ValueError, match="no whole MessagePack value at 1"):
        end_of_value(b"\x91\xc1", 1)
