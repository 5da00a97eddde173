"""Rows of every type come back from bytes, and from the state of quarantined keys."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import types as T

from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.packed import RowPacking
from pyspark_ckpt.operator.rows.quarantined import QuarantinedRows
from pyspark_ckpt.values.arrow import viewed
from pyspark_ckpt.values.codec import TupleCodec
from tests.unit.operator.rows.sent import as_sent, changed, in_new_york, large, sent_batch
from tests.unit.operator.spark_values import LEAVES, Typed, integers, nested, struct

LONG, TEXT = T.LongType(), T.StringType()
ANY_BYTES = st.binary(max_size=5) | st.sampled_from([b"\xff", b"\0bytes ff", b"\0bytes \xff"])
RARE: list[Typed] = [
    (TEXT, ANY_BYTES),
    (T.DateType(), integers(32)),
    (T.TimestampType(), integers(64)),
    (T.TimestampNTZType(), integers(64)),
    (
        T.MapType(T.ArrayType(TEXT), T.MapType(struct(LONG, TEXT), LONG)),
        st.lists(
            st.tuples(
                st.lists(st.none() | ANY_BYTES, max_size=2),
                st.lists(st.tuples(st.tuples(st.integers(0, 9), ANY_BYTES), st.none()), max_size=2),
            ),
            max_size=2,
        ),
    ),
]
"""Values of Spark that Python does not have, or has not as keys."""
ALL = st.recursive(st.sampled_from([*LEAVES, *RARE]), nested, max_leaves=4)
CHANGES = st.sampled_from([as_sent, in_new_york, large])


@st.composite
def tables(draw: st.DrawFn) -> tuple[T.StructType, list[tuple[Any, ...]]]:
    typed = draw(st.lists(ALL, min_size=1, max_size=3))
    rows = st.lists(st.tuples(*(st.none() | values for _, values in typed)), min_size=1, max_size=4)
    return struct(*(kind for kind, _ in typed)), draw(rows)


EVERY = struct(*(kind for kind, _ in LEAVES)), [(None,) * len(LEAVES)]


def exact(batch: pa.RecordBatch) -> list[str]:
    """Return the values of each column as Python shows them, which knows NaN, -0.0 and null."""

    def held(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_string(kind):
            return pa.binary()
        if pa.types.is_temporal(kind):
            return pa.int32() if kind.bit_width == 32 else pa.int64()
        return kind

    return [repr(viewed(each, changed(each.type, held)).to_pylist()) for each in batch.columns]


@given(tables(), CHANGES)
@example(EVERY, as_sent)
def test_rows_come_back_from_bytes(
    table: tuple[T.StructType, list[tuple[Any, ...]]], change: Any
) -> None:
    schema, rows = table
    sent = sent_batch(schema, rows, change=change)
    named = T.StructType([T.StructField(f"c{n}", f.dataType) for n, f in enumerate(schema)])
    packing = pickle.loads(pickle.dumps(RowPacking(named)))  # as it is shipped
    small = sent_batch(schema, rows)
    wanted = InputColumns(schema, []).arriving(small).select(named.names)
    for start in range(min(2, len(rows))):
        found = packing.unpack(packing.pack(sent[start:]).to_pylist())
        assert found.schema == wanted.schema
        assert exact(found) == exact(wanted.take(list(range(start, len(rows)))))


@given(tables())
@example(EVERY)
def test_quarantined_rows_come_back_from_a_state(
    table: tuple[T.StructType, list[tuple[Any, ...]]],
) -> None:
    schema, rows = table
    columns = InputColumns(schema, [])
    sent = columns.arriving(sent_batch(schema, rows, *[3] * len(rows)))
    kept = QuarantinedRows(columns)
    codec = TupleCodec(kept.schema, "a state").plain
    stored = [codec.decode(codec.encode(values)) for values in kept.values(sent)]
    found = kept.sent(stored, 3)
    assert found.schema == sent.schema
    assert exact(found) == exact(sent)
