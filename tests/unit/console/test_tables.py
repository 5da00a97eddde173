"""What the pages say about subtasks and keys."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from pyspark_ckpt.console.data.snapshots import operator_table
from pyspark_ckpt.console.data.states import (
    HeavyKey,
    Sample,
    StateSample,
    Trend,
    _heaviest,
    grown_keys,
)
from pyspark_ckpt.formats.counters import EpochMetrics
from pyspark_ckpt.formats.handle import StateDescriptor
from tests.unit.console.made_operator import operator


def test_a_subtask_without_state_counts_in_the_skew() -> None:
    balanced = operator_table(operator(50, 50, parallelism=2), {}, has_before=False)
    alone = operator_table(operator(50, parallelism=4), {}, has_before=False)
    assert balanced.skew == 1
    assert alone.skew == 4
    summary = alone.summaries[0]
    assert summary is not None
    assert (summary.minimum, summary.maximum, summary.worst) == (0, 50, 0)


def test_times_are_compared_within_one_epoch() -> None:
    metadata = operator(50, 50, 50, parallelism=5)
    handles = [
        msgspec.structs.replace(handle, epoch=epoch, metrics=EpochMetrics(process_ms=ms))
        for handle, epoch, ms in zip(metadata.handles, (7, 8, 8), (900, 10, 30), strict=True)
    ]
    table = operator_table(msgspec.structs.replace(metadata, handles=handles), {}, has_before=False)
    assert table.slowest is not None
    assert (table.slowest.worst, table.slowest.maximum, table.slowest.skew) == (2, 30, 1.5)
    assert table.idle == [3, 4]
    alone = operator_table(operator(50, parallelism=2), {}, has_before=False)
    assert alone.slowest is None


def test_the_schema_of_a_map_has_its_key() -> None:
    def schema(name: str, of: str) -> str:
        return T.StructType().add(name, of).json()

    state = StateDescriptor("countries", "map", schema("times", "long"), schema("code", "string"))
    metadata = operator(50, parallelism=1)
    handles = [msgspec.structs.replace(handle, states=(state,)) for handle in metadata.handles]
    table = operator_table(msgspec.structs.replace(metadata, handles=handles), {}, has_before=False)
    assert table.states[0].schema == "struct<code:string> to struct<times:bigint>"


@pytest.mark.parametrize(
    ("sizes", "per_epoch"),
    [
        ((10, 20, 30, 40, 50, 60), 10),
        ((10, 60, 10, 60, 11, 61), 0),  # filled and emptied in turn
        ((60, 50, 40, 30, 20, 10), -10),
        ((10, 90), None),
    ],
)
def test_whether_a_state_grows(sizes: tuple[int, ...], per_epoch: int | None) -> None:
    trend = Trend("op / list", tuple(enumerate(sizes)))
    assert trend.bytes_per_epoch == per_epoch
    assert (trend.least, trend.most) == (min(sizes), max(sizes))


def test_keys_of_nested_types_are_ranked() -> None:
    key = pa.array([{"a": 1, "b": "x"}, {"a": 2, "b": "é"}, {"a": 2, "b": "é"}])
    table = pa.table({"k": key, "v": pa.array([1, 2, 3])})
    (first, second), _, keys = _heaviest(table, ["k"], pa.array([5, 4, 4]), None)
    assert (first.text, first.rows, first.size_bytes) == (('{"a": 2, "b": "é"}',), 2, 8)
    assert keys == 2
    assert (second.text, second.rows_before) == (('{"a": 1, "b": "x"}',), None)


def test_keys_are_ranked_by_bytes_and_by_rows() -> None:
    table = pa.table({"k": pa.array(["wide", "many", "many", "many", "one"])})
    heaviest, by_rows, keys = _heaviest(table, ["k"], pa.array([90, 9, 9, 9, 5]), None)
    assert [each.text for each in heaviest] == [("wide",), ("many",), ("one",)]
    assert [(each.text, each.rows) for each in by_rows] == [
        (("many",), 3), (("wide",), 1), (("one",), 1),
    ]  # fmt: skip
    assert keys == 3
    _, by_rows, _ = _heaviest(table.slice(2), ["k"], pa.array([9, 9, 5]), None)
    assert by_rows[0].rows == 2
    _, by_rows, _ = _heaviest(table.slice(3), ["k"], pa.array([9, 5]), None)
    assert by_rows == (), "each key has one row"


def test_keys_that_grew_most_come_first_over_all_states() -> None:
    def sample(*heaviest: HeavyKey) -> Sample:
        return Sample(
            rows=1, size_bytes=1, expired=None, is_whole=True, key_columns=("k",), heaviest=heaviest
        )

    samples = [
        StateSample(
            "op", "count", sample(HeavyKey(("new",), 1, 9, 0), HeavyKey(("old",), 1, 9, 1))
        ),
        StateSample("op", "list", sample(HeavyKey(("ada",), 90, 9, 10), HeavyKey(("x",), 5, 9))),
        StateSample("op", "broken", None, "a file is missing"),
    ]
    found = [(each.state, each.key, each.rows_before, each.rows) for each in grown_keys(samples)]
    assert found == [("list", ("ada",), 10, 90), ("count", ("new",), 0, 1)]
