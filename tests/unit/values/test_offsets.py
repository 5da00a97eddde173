"""Empty inner arrays without an offset, as PySpark 4.0 sends them, get one; others stay."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ckpt.values.arrow import with_offsets
from pyspark_ckpt.values.shown import retyped

NOTHING = pa.py_buffer(b"")


def empty(kind: pa.DataType) -> pa.Array:
    """Return an empty array whose buffers have no byte."""
    if pa.types.is_struct(kind):
        inner = [empty(kind.field(place).type) for place in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, 0, [None], children=inner)
    if pa.types.is_map(kind):
        entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return pa.Array.from_buffers(kind, 0, [None, NOTHING], children=[empty(entry)])
    if pa.types.is_list(kind):
        children = [empty(kind.value_type)]
        return pa.Array.from_buffers(kind, 0, [None, NOTHING], children=children)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.Array.from_buffers(kind, 0, [None, NOTHING, NOTHING])
    return pa.Array.from_buffers(kind, 0, [None, NOTHING])


def of_empty(kind: pa.DataType, rows: int) -> pa.Array:
    """Return rows without items, the first of which is null."""
    valid = pa.py_buffer(bytes([0b11111110]))
    offsets = pa.py_buffer(struct.pack(f"<{rows + 1}i", *[0] * (rows + 1)))
    if pa.types.is_map(kind):
        inner = empty(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))
    else:
        inner = empty(kind.value_type)
    return pa.Array.from_buffers(kind, rows, [valid, offsets], children=[inner])


def check_offsets(column: pa.Array) -> None:
    kind = column.type
    if pa.types.is_struct(kind):
        for place in range(kind.num_fields):
            check_offsets(column.field(place))
        return
    if pa.types.is_primitive(kind):
        return
    offsets = column.buffers()[1]
    assert offsets is not None
    assert offsets.size >= 4 * (len(column) + 1)
    if pa.types.is_map(kind):
        check_offsets(column.keys)
        check_offsets(column.items)
    elif pa.types.is_list(kind):
        check_offsets(column.values)


KINDS = [
    pa.list_(pa.string()),
    pa.list_(pa.binary()),
    pa.list_(pa.int32()),
    pa.list_(pa.list_(pa.int64())),
    pa.map_(pa.string(), pa.int32()),
    pa.map_(pa.int32(), pa.list_(pa.string())),
    pa.list_(pa.struct([("m", pa.map_(pa.int32(), pa.string())), ("x", pa.string())])),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_each_inner_array_has_its_offset(kind: pa.DataType) -> None:
    column = of_empty(kind, 3)
    nothing: Any = [None, [], []]
    for found in (with_offsets(column), retyped(column, kind)):
        check_offsets(found)
        assert found.type == kind
        assert found.to_pylist() == nothing
    sliced = with_offsets(column.slice(1))
    check_offsets(sliced)
    assert sliced.to_pylist() == nothing[1:]
    within = pa.StructArray.from_arrays([column, pa.array([1, 2, 3])], names=["a", "b"])
    found = with_offsets(within.slice(1))
    check_offsets(found)
    assert found.to_pylist() == [{"a": [], "b": 2}, {"a": [], "b": 3}]


@pytest.mark.parametrize("kind", [*KINDS, pa.string(), pa.int64()], ids=str)
def test_what_is_whole_stays(kind: pa.DataType) -> None:
    column = pa.array([None, None], kind)
    if not pa.types.is_list(kind) and not pa.types.is_map(kind):
        assert with_offsets(column) is column
    numbers = pa.array([[1], [2, None]], pa.list_(pa.int64()))
    assert with_offsets(numbers) is numbers
    texts = pa.array([["a"], None, ["b", ""]])
    assert with_offsets(texts) is texts
