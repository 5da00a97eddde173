"""Partial values merged in any pieces are what a plain loop over the rows finds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from pyspark_ckpt.combine.aggregates import (
    Aggregate,
    CollectList,
    Count,
    First,
    Last,
    Max,
    Min,
    Sum,
)
from pyspark_ckpt.combine.combination import INPUT, Aggregates, FunctionOverTables
from pyspark_ckpt.combine.plan import CombinedBeforeShuffle
from pyspark_ckpt.errors import PlanError, StateValueError
from pyspark_ckpt.values.arrow import arrow_type

LONGS = st.integers(-(2**40), 2**40)
TYPES: dict[str, tuple[T.DataType, st.SearchStrategy[Any]]] = {
    "long": (T.LongType(), LONGS),
    "byte": (T.ByteType(), st.integers(-128, 127)),
    "double": (T.DoubleType(), st.floats()),
    "text": (T.StringType(), st.text(max_size=3)),
    "bytes": (T.BinaryType(), st.binary(max_size=3)),
    "decimal": (T.DecimalType(9, 2), st.decimals(-99999, 99999, places=2)),
    "bool": (T.BooleanType(), st.booleans()),
    "date": (T.DateType(), st.dates()),
    "list": (T.ArrayType(T.LongType()), st.lists(LONGS, max_size=2)),
}
SCHEMA = T.StructType([T.StructField(name, kind) for name, (kind, _) in TYPES.items()])
ORDERED = [name for name in TYPES if name != "list"]
AGGREGATES: dict[str, Aggregate] = {
    "n": Count(),
    **{f"count_{name}": Count(name) for name in TYPES},
    **{f"sum_{name}": Sum(name) for name in ("long", "byte", "decimal")},
    **{f"min_{name}": Min(name) for name in ORDERED},
    **{f"max_{name}": Max(name) for name in ORDERED},
    **{f"first_{name}": First(name) for name in TYPES},
    **{f"last_{name}": Last(name) for name in TYPES},
    **{f"all_{name}": CollectList(name) for name in TYPES},
}
KEYS = st.none() | st.sampled_from(["a", "b", "c"])
ROWS = st.lists(st.tuples(KEYS, *[st.none() | values for _, values in TYPES.values()]), max_size=12)


def table_of(combination: Aggregates, rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = [pa.array([row[0] for row in rows], pa.string())]
    names = ["k"]
    for place, (name, (kind, _)) in enumerate(TYPES.items(), 1):
        columns.append(pa.array([row[place] for row in rows], arrow_type(kind)))
        names.append(combination.inputs[name])
    return pa.Table.from_arrays(columns, names=names)


def in_spark_order(value: Any) -> Any:
    """A key to sort by as Spark does: NaN last, texts by their bytes."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value.encode() if isinstance(value, str) else value


MODEL: dict[type, Callable[[list[Any]], Any]] = {
    Count: lambda values: sum(1 for value in values if value is not None),
    Sum: lambda values: sum(known(values)) if known(values) else None,
    Min: lambda values: min(known(values), key=in_spark_order, default=None),
    Max: lambda values: max(known(values), key=in_spark_order, default=None),
    First: lambda values: values[0],
    Last: lambda values: values[-1],
    CollectList: lambda values: known(values),
}


def known(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def model(rows: list[tuple[Any, ...]]) -> dict[Any, dict[str, Any]]:
    by_key: dict[Any, list[tuple[Any, ...]]] = {}
    for row in rows:
        by_key.setdefault(row[0], []).append(row)
    places = {name: place for place, name in enumerate(TYPES, 1)}
    return {
        key: {
            name: MODEL[type(one)](
                [1 if one.column is None else row[places[one.column]] for row in of_key]
            )
            for name, one in AGGREGATES.items()
        }
        for key, of_key in by_key.items()
    }


def comparable(found: dict[Any, dict[str, Any]]) -> dict[Any, dict[str, str]]:
    def text(value: Any) -> str:
        if isinstance(value, list):
            return str([text(one) for one in value])
        if isinstance(value, float):
            return repr(value + 0.0)
        return str(Decimal(value)) if isinstance(value, Decimal) else repr(value)

    return {key: {name: text(value) for name, value in of.items()} for key, of in found.items()}


@given(ROWS, st.lists(st.integers(0, 12), max_size=4))
def test_in_any_pieces(rows: list[tuple[Any, ...]], cuts: list[int]) -> None:
    combination = Aggregates(AGGREGATES, SCHEMA, "here")
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    pieces = [
        combination.merge(
            combination.partials(table_of(combination, rows[start:stop]), ["k"]), ["k"]
        )
        for start, stop in pairwise(bounds)
    ]
    found = combination.merge(pa.concat_tables(pieces), ["k"])
    assert found.schema.names == ["k", *AGGREGATES]
    by_key = {row.pop("k"): row for row in found.to_pylist()}
    assert comparable(by_key) == comparable(model(rows))
    for field in combination.schema.fields:
        assert found.schema.field(field.name).type == arrow_type(field.dataType)


LARGE = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(st.sampled_from("ab"), LARGE), min_size=1, max_size=6))
def test_a_sum_is_exact_or_refused(rows: list[tuple[str, int]]) -> None:
    schema = T.StructType([T.StructField("v", T.LongType())])
    combination = Aggregates({"total": Sum("v")}, schema, "operator 'x'")
    table = pa.table({"k": [k for k, _ in rows], f"{INPUT}0": [v for _, v in rows]})
    totals = {key: sum(v for k, v in rows if k == key) for key, _ in rows}
    partials = combination.partials(table, ["k"])
    if all(-(2**63) <= total < 2**63 for total in totals.values()):
        found = combination.merge(partials, ["k"])
        assert {row["k"]: row["total"] for row in found.to_pylist()} == totals
        return
    with pytest.raises(StateValueError, match=r"operator 'x': the sum 'total' .* not fit bigint"):
        combination.merge(partials, ["k"])


def test_a_sum_of_decimals_is_exact_or_refused() -> None:
    schema = T.StructType([T.StructField("v", T.DecimalType(28, 0))])
    combination = Aggregates({"total": Sum("v")}, schema, "here")
    largest = Decimal("9" * 28)
    table = pa.table({"k": ["a"] * 3, f"{INPUT}0": pa.array([largest] * 3, pa.decimal128(28, 0))})
    found = combination.merge(combination.partials(table, ["k"]), ["k"])
    assert found.column("total").to_pylist() == [Decimal(3 * int(largest))]
    near = pa.array([Decimal("9" * 38)], pa.decimal128(38, 0))
    partials = pa.concat_tables([pa.table({"k": ["a"], "total": near})] * 2)
    with pytest.raises(StateValueError, match="not fit decimal"):
        combination.merge(partials, ["k"])


@pytest.mark.parametrize(
    ("aggregates", "error"),
    [
        ({}, "no aggregate"),
        ({"n": "count"}, "aggregate 'n' is str"),
        ({"n": Sum("none")}, "reads the column 'none'"),
        ({"n": Sum("text")}, "Sum of column 'text', which is string"),
        ({"n": Min("list")}, "Min of column 'list', which is array"),
    ],
)
def test_what_cannot_be_combined_is_named(aggregates: Any, error: str) -> None:
    with pytest.raises(PlanError, match=error):
        Aggregates(aggregates, SCHEMA, "operator 'x'")


def test_which_results_may_depend_on_the_order() -> None:
    for name, one in AGGREGATES.items():
        needs_order = Aggregates({name: one}, SCHEMA, "here").needs_order
        assert needs_order == isinstance(one, First | Last | CollectList), name
    assert Aggregates({"x": Sum("double")}, SCHEMA, "here").needs_order


def batches(keys: list[str], rows_per_batch: int) -> Iterator[pa.RecordBatch]:
    table = pa.table({"k": keys, f"{INPUT}0": list(range(len(keys)))})
    yield from table.to_batches(max_chunksize=rows_per_batch)


def totals(found: Iterable[pa.RecordBatch]) -> tuple[dict[str, int], int]:
    rows = [row for batch in found for row in batch.to_pylist()]
    sums: dict[str, int] = {}
    for row in rows:
        sums[row["k"]] = sums.get(row["k"], 0) + row["v"]
    return sums, len(rows)


@pytest.mark.parametrize(("different", "pays"), [(3, True), (200, False)])
def test_before_the_shuffle_it_is_given_up_where_it_does_not_pay(
    different: int, pays: bool
) -> None:
    combination = Aggregates(
        {"v": Sum("v")}, T.StructType([T.StructField("v", T.LongType())]), "here"
    )
    keys = [f"k{n % different}" for n in range(200)]
    combine = CombinedBeforeShuffle(combination, ["k"], most_bytes=1)  # a piece for each batch
    found, rows = totals(combine(batches(keys, 50)))
    expected: dict[str, int] = {}
    for n, key in enumerate(keys):
        expected[key] = expected.get(key, 0) + n
    assert found == expected
    assert rows == (12 if pays else 200)
    whole = CombinedBeforeShuffle(combination, ["k"])
    assert totals(whole(batches(keys, 50))) == (expected, different)
    assert list(whole(iter(()))) == []


SHARES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(-8, 8)), min_size=1, max_size=8)
"""Rows in eighths of the largest sum, so that a few of them may be too many."""


def totals_of(rows: list[tuple[str, int]]) -> dict[str, int]:
    return {key: sum(v for k, v in rows if k == key) for key, _ in rows}


def is_merged_or_refused(
    combination: Aggregates, sent: pa.Table, rows: list[tuple[str, int]], least: int, most: int
) -> None:
    if all(least <= total <= most for total in totals_of(rows).values()):
        found = combination.merge(sent, ["k"])
        assert {row["k"]: int(row["v"]) for row in found.to_pylist()} == totals_of(rows)
    else:
        with pytest.raises(StateValueError, match=r"operator 'x': the sum 'v' .* not fit"):
            combination.merge(sent, ["k"])


@given(shares=SHARES, cut=st.integers(0, 8))
def test_only_the_whole_sum_of_longs_is_refused(shares: list[tuple[str, int]], cut: int) -> None:
    schema = T.StructType([T.StructField("v", T.LongType())])
    combination = Aggregates({"v": Sum("v")}, schema, "operator 'x'")
    rows = [(key, 2**63 // 8 * share - (share > 0)) for key, share in shares]
    sent = []
    for task in (rows[:cut], rows[cut:]):
        columns = {
            "k": [k for k, _ in task],
            f"{INPUT}0": pa.array([v for _, v in task], pa.int64()),
        }
        combine = CombinedBeforeShuffle(combination, ["k"])
        sent += combine(iter([pa.RecordBatch.from_pydict(columns)]))
    is_merged_or_refused(combination, pa.Table.from_batches(sent), rows, -(2**63), 2**63 - 1)


@given(shares=SHARES, cut=st.integers(0, 8))
def test_only_the_whole_sum_of_decimals_is_refused(shares: list[tuple[str, int]], cut: int) -> None:
    """A sum has ten digits more than its rows, so the rows of a test are sums of many rows."""
    schema = T.StructType([T.StructField("v", T.DecimalType(28, 0))])
    combination = Aggregates({"v": Sum("v")}, schema, "operator 'x'")
    rows = [(key, (10**38 - 1) // 8 * share) for key, share in shares]
    sent = []
    for task in (rows[:cut], rows[cut:]):
        values = pa.array([Decimal(v) for _, v in task], pa.decimal128(38, 0))
        partials = pa.table({"k": pa.array([k for k, _ in task], pa.string()), "v": values})
        merged = combination.merge_some(partials, ["k"])
        sent.append(partials if merged is None else merged)
    is_merged_or_refused(combination, pa.concat_tables(sent), rows, 1 - 10**38, 10**38 - 1)


def test_a_piece_that_does_not_fit_is_left_as_it_is_and_the_next_is_combined() -> None:
    schema = T.StructType([T.StructField("v", T.LongType())])
    combine = CombinedBeforeShuffle(Aggregates({"v": Sum("v")}, schema, "x"), ["k"], most_bytes=1)
    pieces = [[2**62, 2**62], [1, 2, 3], [-(2**62), -1]]
    columns = [{"k": ["a"] * len(values), f"{INPUT}0": values} for values in pieces]
    found = [batch.column("v").to_pylist() for batch in combine(map(pa.record_batch, columns))]
    assert found == [[2**62, 2**62], [6], [-(2**62) - 1]]


def keeps_everything(table: pa.Table, keys: list[str]) -> pa.Table:
    return table


def forgets_a_key(table: pa.Table, keys: list[str]) -> pa.Table:
    return table.group_by(keys).aggregate([("v", "sum")]).rename_columns([*keys, "v"]).slice(1)


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (keeps_everything, "3 rows with 2 different keys for 2 keys"),
        (forgets_a_key, "1 rows with 1 different keys for 2 keys"),
        (lambda table, keys: 1, "returned int"),
        (lambda table, keys: table.select(keys), r"lack \['v'\]"),
        (
            lambda table, keys: pa.table({"k": ["a", "b"], "v": ["x", "y"]}),
            "returned string for the column 'v'",
        ),
        (
            lambda table, keys: pa.table({"k": ["A", "b"], "v": [4, 2]}),
            r"1 of 2 keys changed: leave the columns \['k'\] as they are",
        ),
        (lambda table, keys: pa.table({"k": ["b", "c"], "v": [4, 2]}), "1 of 2 keys changed"),
        (
            lambda table, keys: pa.table({"k": [1.5, 2.5], "v": [4, 2]}),
            "returned double for the column 'k'",
        ),
    ],
)
def test_a_function_that_loses_something_is_named(function: Any, error: str) -> None:
    schema = T.StructType([T.StructField("v", T.LongType())])
    combination = FunctionOverTables(function, schema, "operator 'x'")
    with pytest.raises(StateValueError, match=error):
        combination.merge(pa.table({"k": ["a", "b", "a"], "v": [1, 2, 3]}), ["k"])


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_a_function_may_return_keys_in_another_form(kind: pa.DataType) -> None:
    schema = T.StructType([T.StructField("v", T.LongType())])
    returned = pa.table({"k": pa.array(["b", "a"]).cast(kind), "v": pa.array([2, 4], pa.int32())})
    combination = FunctionOverTables(lambda table, keys: returned, schema, "operator 'x'")
    partials = pa.table({"k": ["a", "b", "a"], "v": [1, 2, 3]})
    found = combination.merge(partials, ["k"])
    assert found.schema == partials.schema
    assert found.to_pydict() == {"k": ["b", "a"], "v": [2, 4]}
