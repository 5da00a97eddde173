"""Conformance of each type of the table in every mode: rows, keys, states and output.

A processor gets values of a type as its mode shows them, writes them into its states, and yields
what the states hold. What leaves the subtask must be what came in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timezone
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.errors import InputRowsError
from pyspark_ckpt.operator.modes.mode import MODES
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.sides import EpochInput
from pyspark_ckpt.values.columns import NUMBER_OF_NAT
from pyspark_ckpt.values.types import MOMENTS, Kind, kind_of, leaf_of
from tests.unit.operator.modes.mode_epochs import Subtask
from tests.unit.operator.rows.sent import sent_batch
from tests.unit.operator.subtask_epochs import SubtaskEpochs, heap_epochs
from tests.unit.values.cases import (
    TYPED,
    every_type,
    in_utc,  # noqa: F401
    named,
    nestings_of,
    plain,
    row_of,
    schema_of,
)

pytestmark = pytest.mark.usefixtures("in_utc")
every_mode = pytest.mark.parametrize("name", MODES)
BY_ID = T.StructType([T.StructField("id", T.IntegerType())])


class Kept(StatefulProcessor):
    """Keeps the values of a key in each kind of state; its rows begin with an id."""

    def __init__(self, schema: T.StructType) -> None:
        self.schema = schema

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", self.schema)
        self.list = handle.getListState("list", self.schema)
        self.map = handle.getMapState("map", BY_ID, self.schema)

    def kept(self, row: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Write a row of the current key; return it, and what is read."""
        self.value.update(row[1:])
        self.list.appendList([row[1:]])
        self.map.updateValue((row[0],), row[1:])
        found = [self.value.get(), *self.list.get(), self.map.getValue((row[0],))]
        return [row, *((row[0], *values) for values in found)]


def tuples(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows of a frame, with ``None`` where a whole value is null."""
    rows = frame.itertuples(index=False, name=None)
    return [tuple(None if is_missing(value) else value for value in row) for row in rows]


def is_missing(value: Any) -> bool:
    return value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value))


def frame_of(rows: list[tuple[Any, ...]], frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=frame.columns, dtype=object)


class InRows(Kept):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield from (Row(*values) for row in rows for values in self.kept(tuple(row)))


class InPandas(Kept):
    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        for frame in rows:
            yield frame_of([each for row in tuples(frame) for each in self.kept(row)], frame)
            yield frame


class InBatches(Kept, ckpt.BatchProcessor):
    def handleInputBatch(
        self, keys: pd.DataFrame, rows: pd.DataFrame, timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        self.value.updateMany(keys, rows.drop(columns="id"))
        found = self.value.getMany(keys)
        found.insert(0, "id", rows["id"])
        yield found
        each = tuples(rows)
        for place in self.handle.eachKey(keys):
            yield frame_of(self.kept(each[place]), rows)
        yield rows


class InArrow(Kept, ckpt.ArrowProcessor):
    def handleInputArrow(
        self, keys: pa.Table, rows: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        rows = rows.drop_columns("key_position")
        self.value.updateMany(keys, rows.drop_columns("id"))
        yield self.value.getMany(keys).add_column(0, "id", rows["id"])
        yield rows


PROCESSORS = {"rows": InRows, "pandas": InPandas, "batches": InBatches, "arrow": InArrow}


def in_a_zone(values: list[Any], data_type: T.DataType) -> list[Any]:
    """Return instants with the zone that Python needs at its limits."""
    if kind_of(data_type) is Kind.INSTANT:
        return [value.replace(tzinfo=timezone.utc) for value in values]
    return values


def has_all_years(data_type: T.DataType) -> bool:
    """Return whether frames have instants in microseconds: PySpark makes such ones of pandas 3."""
    return isinstance(data_type, T.TimestampType) and int(pd.__version__.split(".")[0]) >= 3


def held(values: list[Any], data_type: T.DataType, name: str) -> list[Any]:
    """Return the values that a mode has: pandas has fewer years, and takes NaN for null."""
    values = in_a_zone(values, data_type)
    if MODES[name].has_frames and kind_of(data_type) in MOMENTS:
        if has_all_years(data_type):
            return values
        return [value for value in values if 1700 < value.year < 2200]
    if MODES[name].has_frames and kind_of(data_type) is Kind.FRACTION:
        return [value for value in values if not math.isnan(value)]
    return values


@every_mode
@every_type
def test_rows_and_states(
    data_type: T.DataType, values: list[Any], name: str, subtask_epochs: SubtaskEpochs
) -> None:
    names, given = nestings_of(data_type), held(values, data_type, name)
    schema = schema_of(data_type, *names)
    columns = T.StructType([*BY_ID.fields, *schema.fields])
    rows = [(n, *row_of(value, *names)) for n, value in enumerate((*given, None))]
    sent = sent_batch(columns, rows)
    # The null has a part, and so a frame, without integers, which pandas would make fractions.
    parts = [[sent.slice(0, len(given))], [sent.slice(len(given))]]
    subtask = Subtask(subtask_epochs, MODES[name], InputColumns(columns, ["id"]), columns)
    found = pa.Table.from_batches(
        subtask.batches(PROCESSORS[name](schema), EpochInput(parts))
    ).to_pylist()
    expected = {row["c0"]: plain(row) for row in sent.select(range(len(rows[0]))).to_pylist()}
    assert {row["c0"] for row in found} == expected.keys()
    for row in found:
        assert plain(row) == expected[row["c0"]]


@pytest.fixture
def epochs(tmp_path: Path) -> Iterator[SubtaskEpochs]:
    with heap_epochs(tmp_path) as epochs:
        yield epochs
        epochs.close()


@pytest.mark.parametrize("name", [name for name, mode in MODES.items() if mode.has_frames])
@pytest.mark.parametrize(
    ("data_type", "values"), [typed for typed in TYPED if kind_of(typed[0]) in MOMENTS], ids=named
)
def test_what_pandas_does_not_have_is_refused(
    data_type: T.DataType, values: list[Any], name: str, epochs: SubtaskEpochs
) -> None:
    schema = schema_of(data_type, "bare")
    columns = T.StructType([*BY_ID.fields, *schema.fields])
    subtask = Subtask(epochs, MODES[name], InputColumns(columns, ["id"]), columns)
    has = held(values, data_type, name)
    refused = [value for value in in_a_zone(values, data_type) if value not in has]
    assert bool(refused) != has_all_years(data_type)
    for value in [*refused, NUMBER_OF_NAT]:
        sent = sent_batch(columns, [(1, value)])
        is_first = value == NUMBER_OF_NAT  # which NumPy and pandas take for none
        reason = "-290308-12-21.*does not have" if is_first else "from 1677 to 2262 only"
        with pytest.raises(InputRowsError, match=reason):
            subtask.batches(PROCESSORS[name](schema), EpochInput([[sent]]))


class Keys(StatefulProcessor):
    """Yields its keys."""

    def init(self, handle: Any) -> None:
        handle.getValueState("value", BY_ID)


class KeysInRows(Keys):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield Row(*key)


class KeysInPandas(Keys):
    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        yield frame_of([key], next(rows))


class KeysInBatches(Keys, ckpt.BatchProcessor):
    def handleInputBatch(
        self, keys: pd.DataFrame, rows: pd.DataFrame, timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        yield keys


class KeysInArrow(Keys, ckpt.ArrowProcessor):
    def handleInputArrow(
        self, keys: pa.Table, rows: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        yield keys.drop_columns("key_position")


KEY_PROCESSORS = {
    "rows": KeysInRows, "pandas": KeysInPandas, "batches": KeysInBatches, "arrow": KeysInArrow,
}  # fmt: skip


@every_mode
@every_type
def test_keys(data_type: T.DataType, values: list[Any], name: str, epochs: SubtaskEpochs) -> None:
    if not leaf_of(data_type).is_key:
        return
    names = ["bare", "array", "struct", "deep"]
    schema = schema_of(data_type, *names)
    rows = [row_of(value, *names) for value in (*held(values, data_type, name), None)]
    sent = sent_batch(schema, rows)
    subtask = Subtask(epochs, MODES[name], InputColumns(schema, names), schema)
    # In a pandas frame, a column of integers that has a null becomes a column of floats.
    parts = [[sent.slice(0, len(rows) - 1)], [sent.slice(len(rows) - 1)]]
    found = pa.Table.from_batches(subtask.batches(KEY_PROCESSORS[name](), EpochInput(parts)))
    expected = {repr(plain(row, is_key=True)) for row in sent.select(range(4)).to_pylist()}
    assert {repr(plain(row)) for row in found.to_pylist()} == expected
