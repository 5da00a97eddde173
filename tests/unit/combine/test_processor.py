"""The processor behind the shuffle: rows and state merged, and sent on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from pyspark_ckpt.combine.aggregates import CollectList, Max
from pyspark_ckpt.combine.combination import Aggregates
from pyspark_ckpt.combine.processor import CombiningProcessor
from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.modes.arrow import ArrowOutput
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.operator.table.writes import DEFAULT_LIMIT_BYTES
from pyspark_ckpt.operator.values.arrow_values import arrow_type
from state_backends import open_backend
from tests.unit.operator.subtask_epochs import SubtaskEpochs

FOREVER = 2**63 - 1
YEAR_10_000 = 253_402_300_800_000_000


@pytest.fixture
def epochs(tmp_path: Path) -> Iterator[SubtaskEpochs]:
    writes = tmp_path / "writes"
    writes.mkdir()
    with open_backend("heap", tmp_path / "state", create=True) as backend:
        yield SubtaskEpochs(backend, DEFAULT_LIMIT_BYTES, writes)


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
    if isinstance(kind, T.TimestampType):
        output.extend([found])
        text = ",".join(map(str, every))
        assert output.take().column(0).to_pylist() == [f'{{"c0":[{text}]}}']
    else:  # local times travel as Python writes them
        with pytest.raises(StateValueError, match="output column 'all' is array<timestamp_ntz>"):
            output.extend([found])
