"""The processor after the shuffle: rows and state merged, and sent on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
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
from pyspark_ckpt.combine.combination import Aggregates
from pyspark_ckpt.combine.plan import CombiningProcessor
from pyspark_ckpt.operator.modes.output import ArrowOutput
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.values.arrow import arrow_type
from tests.unit.operator.subtask_epochs import IN_MEMORY, SubtaskEpochs, heap_epochs

FOREVER = 2**63 - 1
YEAR_10_000 = 253_402_300_800_000_000


@pytest.fixture
def epochs(tmp_path: Path) -> Iterator[SubtaskEpochs]:
    with heap_epochs(tmp_path) as made:
        yield made


def rows_of(combination: Aggregates, kind: T.DataType, *values: int) -> pa.Table:
    times = pa.array(values, pa.int64()).cast(arrow_type(kind))
    return pa.table({"key_position": [0] * len(values), combination.inputs["t"]: times})


@pytest.mark.parametrize("kind", [T.TimestampType(), T.TimestampNTZType()], ids=str)
def test_times_that_python_does_not_have(epochs: SubtaskEpochs, kind: T.DataType) -> None:
    combination = Aggregates(
        {"last": Max("t"), "all": CollectList("t")},
        T.StructType([T.StructField("t", kind)]),
        "operator 'x'",
    )
    keys = pa.table({"k": ["a"], "key_position": [0]})
    for values in ([YEAR_10_000], [-FOREVER, FOREVER]):
        processor = CombiningProcessor(combination, combines_rows=True)
        processor.init(epochs.begin())
        epochs.leave_key()
        rows = rows_of(combination, kind, *values)
        (found,) = processor.handleInputArrow(keys, rows, None)
        epochs.end()
    assert found.column("last").cast(pa.int64()).to_pylist() == [FOREVER]
    every = [YEAR_10_000, -FOREVER, FOREVER]
    assert found.column("all").cast(pa.list_(pa.int64())).to_pylist() == [every]

    schema = T.StructType([T.StructField("all", T.ArrayType(kind))])
    output = ArrowOutput(OutputRows(schema, "x"))
    output.extend([found])
    (sent,) = output.take().columns
    assert sent.cast(pa.list_(pa.int64())).to_pylist() == [every]


LATER: dict[str, Aggregate] = {
    "rows": Count(),
    "count": Count("v"),
    "sum": Sum("v"),
    "least": Min("v"),
    "most": Max("v"),
    "first": First("v"),
    "last": Last("v"),
    "all": CollectList("v"),
}


def expected(name: str, values: Sequence[int | None]) -> Any:
    known = [value for value in values if value is not None]
    return {
        "rows": len(values),
        "count": len(known),
        "sum": sum(known) if known else None,
        "least": min(known, default=None),
        "most": max(known, default=None),
        "first": values[0],
        "last": values[-1],
        "all": known,
    }[name]


VALUES = st.lists(st.none() | st.integers(0, 9), max_size=3)


@given(
    st.dictionaries(st.sampled_from(sorted(LATER)), st.integers(0, 3), min_size=1),
    st.lists(st.fixed_dictionaries({"a": VALUES, "b": VALUES}), min_size=1, max_size=5),
)
def test_an_aggregate_added_later_begins_there(
    since: dict[str, int], history: list[dict[str, list[int | None]]]
) -> None:
    """Of rows since its first epoch each aggregate says what a plain loop says, nulls too."""
    earliest = min(since.values())
    schema = T.StructType([T.StructField("v", T.LongType())])
    with (
        tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory,
        heap_epochs(Path(directory)) as epochs,
    ):
        for epoch, came in enumerate(history):
            there = {n: LATER[n] for n, begins in since.items() if begins - earliest <= epoch}
            combination = Aggregates(there, schema, "operator 'x'")
            present = [key for key, values in came.items() if values]
            if not present:
                continue
            processor = CombiningProcessor(combination, combines_rows=True)
            processor.init(epochs.begin(keys=[(b"\0\0", key.encode()) for key in present]))
            epochs.leave_key()
            keys = pa.table(
                {"k": pa.array(present, pa.string()), "key_position": range(len(present))}
            )
            positions = [n for n, key in enumerate(present) for _ in came[key]]
            rows = {"key_position": pa.array(positions, pa.int64())}
            for column in combination.inputs.values():
                rows[column] = pa.array([v for key in present for v in came[key]], pa.int64())
            (found,) = processor.handleInputArrow(keys, pa.table(rows), None)
            epochs.end()
            for key, row in zip(present, found.to_pylist(), strict=True):
                assert row.pop("k") == key
                for name, value in row.items():
                    begins = since[name] - earliest
                    values = [v for one in history[begins : epoch + 1] for v in one[key]]
                    assert value == expected(name, values), (epoch, key, name)
