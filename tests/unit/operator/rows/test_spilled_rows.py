"""Rows of every type are the same in all forms in which they come, and after a spill."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.parts import InputParts
from pyspark_ckpt.operator.rows.sent_rows import bytes_as_objects, joined
from tests.unit.operator.rows.sent import as_sent, in_new_york, large, sent_batch
from tests.unit.operator.spark_values import LEAVES, TYPES, Typed, struct, variants

GROUPS = range(4)
ALL_TYPES: list[Typed] = [
    *LEAVES,
    *((T.ArrayType(kind), st.lists(st.none() | values, max_size=2)) for kind, values in LEAVES),
]


def check_spill(directory: Path, typed: Sequence[Typed], data: st.DataObject) -> None:
    schema = struct(T.LongType(), *(kind for kind, _ in typed))
    columns = InputColumns(schema, ["f0"], "America/Los_Angeles")
    values = st.tuples(*(st.none() | values for _, values in typed))
    rows = [(n, *row) for n, row in enumerate(data.draw(st.lists(values, min_size=1, max_size=5)))]
    change = data.draw(st.sampled_from([as_sent, in_new_york, large]))
    batches = [
        columns.arriving(
            sent_batch(schema, some, *[n % len(GROUPS) for n, *_ in some], change=change)
        )
        for some in (rows[start : start + 2] for start in range(0, len(rows), 2))
    ]
    schema_of_all = batches[0].schema
    assert change is large or schema_of_all == columns.arrow_schema
    assert all(one.schema == schema_of_all for one in batches)
    expected = sorted(map(repr, columns.rows(sent_batch(schema, rows))))
    assert sorted(repr(row) for one in batches for row in columns.rows(one)) == expected
    assert sorted(map(repr, columns.rows(joined(batches)))) == expected
    parts = InputParts(GROUPS, 1, directory)
    found = [one for part in parts.split(iter(batches)) for one in part]
    assert parts.spilled_bytes > 0
    assert sorted(repr(row) for one in found for row in columns.rows(one)) == expected
    assert all(one.schema == schema_of_all for one in found)
    assert list(directory.iterdir()) == []


@pytest.mark.slow
@settings(max_examples=20)
@given(st.data())
def test_rows_of_all_types_are_the_same_after_a_spill(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    check_spill(tmp_path_factory.mktemp("all"), ALL_TYPES, data)


@pytest.mark.slow
@given(st.lists(TYPES, max_size=3), st.data())
def test_nested_values_are_the_same_after_a_spill(
    tmp_path_factory: pytest.TempPathFactory, typed: list[Typed], data: st.DataObject
) -> None:
    check_spill(tmp_path_factory.mktemp("any"), typed, data)


def test_long_variants_count() -> None:
    schema = struct(T.VariantType())
    short, long = (sent_batch(schema, [(variants(b"x" * length),)] * 100) for length in (1, 1000))
    grown = bytes_as_objects(long) - bytes_as_objects(short)
    assert 190_000 < grown < 210_000
