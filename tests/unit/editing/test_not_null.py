"""Rows of an edit have no null where a state's schema declares not null, as in an update."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from pyspark_ckpt.editing.encoding import StoredValues
from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from tests.unit.operator.subtask_epochs import NUMBER, SubtaskEpochs, heap_epochs

NEEDED = T.StructType([T.StructField("n", T.LongType(), nullable=False)])
INSIDE = T.StructType([T.StructField("s", NEEDED)])
STRUCT = pa.struct([("n", pa.int64())])


@pytest.fixture
def epochs(tmp_path: Path) -> Iterator[SubtaskEpochs]:
    with heap_epochs(tmp_path) as made:
        yield made


def value_state(handle: ProcessorHandle) -> None:
    handle.getValueState("s", NEEDED)


def inner_state(handle: ProcessorHandle) -> None:
    handle.getValueState("s", INSIDE)


def list_state(handle: ProcessorHandle) -> None:
    handle.getListState("s", NEEDED)


def map_state(handle: ProcessorHandle) -> None:
    handle.getMapState("s", NEEDED, NUMBER)


POSITIONS = pa.array([0, 1], pa.int64())
NUMBERS = pa.array([1, 2], pa.int64())
NULLS = pa.array([1, None], pa.int64())
CASES: list[tuple[Any, list[pa.Array], list[pa.Array], str]] = [
    (value_state, [NUMBERS], [NULLS], "n"),
    (inner_state, [pa.array([{"n": 1}, None], STRUCT)], [pa.array([{"n": None}] * 2, STRUCT)], "s"),
    (list_state, [POSITIONS, NUMBERS], [POSITIONS, NULLS], "n"),
    (map_state, [NUMBERS, NULLS], [NULLS, NUMBERS], "n"),
]


@pytest.mark.parametrize(("declare", "good", "bad", "name"), CASES)
def test_a_null_is_refused_where_the_schema_has_none(
    epochs: SubtaskEpochs, declare: Any, good: list[pa.Array], bad: list[pa.Array], name: str
) -> None:
    """A processor that declares not null reads values without looking for nulls."""
    declare(epochs.begin())
    epochs.end()
    values = StoredValues(0, epochs.states[0], None, has_times=False)
    heads = [pa.array([b"a", b"b"], pa.binary())]
    assert values.entries(np.zeros(2), heads, good).num_rows == 2
    with pytest.raises(StateValueError, match=f"state 's': a row has a null in column '{name}'"):
        values.entries(np.zeros(2), heads, bad)
