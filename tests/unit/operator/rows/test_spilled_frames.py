"""Rows of every type are the same in Arrow, in the frames of PySpark's worker, after a spill."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T
from pyspark.sql.conversion import ArrowArrayToPandasConversion
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark_ckpt.operator.handover.pandas_frames import batches_of
from pyspark_ckpt.operator.values.json import json_writer

from pyspark_ckpt.operator.rows.input import KEY_GROUP, TOKEN, InputColumns
from pyspark_ckpt.operator.rows.parts import InputParts
from pyspark_ckpt.operator.rows.sent_rows import bytes_as_objects, joined
from tests.unit.operator.rows.test_input import frame
from tests.unit.operator.spark_values import LEAVES, TYPES, Typed, struct, variants

GROUPS = range(4)
WITH_VARIANTS = T.StructType().add("json", "string")
WITH_VARIANTS.add("variants", T.ArrayType(T.VariantType()))
AS_THEY_ARE = (
    T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType, T.BooleanType,
    T.BinaryType, T.DecimalType,
)  # fmt: skip
ALL_TYPES: list[Typed] = [
    *LEAVES,
    *((T.ArrayType(kind), st.lists(st.none() | values, max_size=2)) for kind, values in LEAVES),
]


def sent_type(kind: T.DataType) -> T.DataType:
    """Return the type that the shuffle has for a column."""
    if isinstance(kind, T.DateType):
        return T.IntegerType()
    if isinstance(kind, T.TimestampType):
        return T.LongType()
    if type(kind) in AS_THEY_ARE:
        return kind
    return WITH_VARIANTS if "variant" in kind.simpleString() else T.StringType()


def sent(kind: T.DataType, value: Any) -> Any:
    """Return the form that the plan gives a value that is not a masked null."""
    if isinstance(kind, T.DateType):
        return (value - datetime.date(1970, 1, 1)).days
    if isinstance(kind, T.TimestampType):
        return kind.toInternal(value)
    if isinstance(kind, T.TimestampNTZType):
        return None if value is None else str(value)
    if type(kind) in AS_THEY_ARE or type(kind) is T.StringType:
        return value
    text = json_writer(kind)(value)
    if not isinstance(text, dict):
        return text
    in_arrow = [{"value": one.value, "metadata": one.metadata} for one in text["variants"]]
    return {**text, "variants": in_arrow}


def shuffled(schema: T.StructType, rows: Sequence[tuple[Any, ...]], *groups: int) -> pa.RecordBatch:
    """Return the Arrow batch in which Spark sends rows."""
    columns: dict[str, Any] = {}
    for index, field in enumerate(schema.fields):
        kind = sent_type(field.dataType)
        numeric = isinstance(kind, T.NumericType | T.BooleanType) and kind.typeName() != "decimal"
        filler = False if isinstance(kind, T.BooleanType) else 0
        values = [
            filler if row[index] is None and numeric else sent(field.dataType, row[index])
            for row in rows
        ]
        columns[f"c{index}"] = pa.array(values, to_arrow_type(kind))
    masked = [
        index
        for index, field in enumerate(schema.fields)
        if field.nullable
        and isinstance(sent_type(field.dataType), T.NumericType | T.BooleanType)
        and not isinstance(field.dataType, T.DecimalType)
    ]
    if masked:
        bits = [sum(1 << b for b, i in enumerate(masked) if row[i] is None) for row in rows]
        columns["__ckpt_nulls_0"] = pa.array(bits, pa.int64())
    columns[KEY_GROUP] = pa.array(groups, pa.int32())
    columns[TOKEN] = pa.array([12] * len(rows), pa.int32())
    return pa.RecordBatch.from_pydict(columns)


def framed(batch: pa.RecordBatch, schema: T.StructType) -> pd.DataFrame:
    """Return the frame that PySpark's worker makes of a batch of rows."""
    kinds = dict(zip(schema.names, (sent_type(field.dataType) for field in schema), strict=True))
    by_name = {f"c{n}": kinds[name] for n, name in enumerate(schema.names)}
    return pd.DataFrame(
        {
            name: ArrowArrayToPandasConversion.convert(
                batch[name], by_name.get(name) or from_arrow_type(batch[name].type),
                ser_name=name, timezone="UTC",
            )
            for name in batch.schema.names
        }
    )  # fmt: skip


def check_spill(
    directory: Path, typed: Sequence[Typed], data: st.DataObject, rows_per_frame: int = 2
) -> None:
    schema = struct(T.LongType(), *(kind for kind, _ in typed))
    columns = InputColumns(schema, ["f0"], "America/Los_Angeles")
    values = st.tuples(*(st.none() | values for _, values in typed))
    rows = [(n, *row) for n, row in enumerate(data.draw(st.lists(values, min_size=1, max_size=5)))]
    frames = [
        shuffled(
            schema,
            rows[start : start + rows_per_frame],
            *[n % len(GROUPS) for n, *_ in rows[start : start + rows_per_frame]],
        )
        for start in range(0, len(rows), rows_per_frame)
    ]
    for kind, field in zip(typed, list(columns.sent_schema)[2:], strict=False):
        assert field.type == to_arrow_type(sent_type(kind[0]))
    expected = sorted(repr(row) for one in frames for row in columns.rows(one))
    assert sorted(map(repr, columns.rows(joined(frames)))) == expected
    through_pandas = batches_of([framed(one, schema) for one in frames], frames[0].schema)
    assert sorted(repr(row) for one in through_pandas for row in columns.rows(one)) == expected
    parts = InputParts(GROUPS, 1, directory)
    found = [one for part in parts.split(iter(frames)) for one in part]
    assert parts.spilled_bytes > 0
    assert sorted(repr(row) for one in found for row in columns.rows(one)) == expected
    for one in found:
        assert one.schema == frames[0].schema
    assert list(directory.iterdir()) == []


@pytest.mark.further
@settings(max_examples=20)
@given(st.data())
def test_rows_of_all_types_are_the_same_after_a_spill(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    check_spill(tmp_path_factory.mktemp("all"), ALL_TYPES, data)


@pytest.mark.further
@given(st.lists(TYPES, max_size=3), st.data())
def test_nested_values_are_the_same_after_a_spill(
    tmp_path_factory: pytest.TempPathFactory, typed: list[Typed], data: st.DataObject
) -> None:
    check_spill(tmp_path_factory.mktemp("any"), typed, data)


def test_the_frames_are_those_of_the_other_tests() -> None:
    schema = struct(T.LongType(), T.StringType(), T.DateType(), T.TimestampNTZType())
    rows = [(1, "x", datetime.date(2024, 2, 29), None), (None, None, None, None)]
    assert shuffled(schema, rows, 0, 3) == frame(schema, rows, 0, 3)


def test_long_variants_count() -> None:
    schema = struct(T.VariantType())
    small, large = (
        shuffled(schema, [(variants(b"x" * length),)] * 100, *[0] * 100) for length in (1, 1000)
    )
    grown = bytes_as_objects(large) - bytes_as_objects(small)
    assert 190_000 < grown < 210_000
