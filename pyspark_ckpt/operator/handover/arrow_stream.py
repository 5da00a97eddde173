"""The Arrow stream between Spark's ``FlatMapGroupsInPandasWithState`` and its Python worker.

In the stream to Python the last column of a batch says which of its rows belong to which group, and
has the group's state in the first batch of the group. In the stream back each batch has three
columns of structs: how many data rows and state rows there are, the data, and the states. PySpark's
worker does the same with pandas in between.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import IO, Any

import numpy as np
import pyarrow as pa
from pyspark.serializers import CPickleSerializer, SpecialLengths, write_int
from pyspark.sql import types as T
from pyspark.sql.streaming.state import GroupState

STATE_SCHEMA = T.StructType([T.StructField("handle", T.BinaryType())])
"""What Spark's own state store keeps for a subtask."""

_STATE_COLUMNS = (
    ("properties", pa.string()),
    ("keyRowAsUnsafe", pa.binary()),
    ("object", pa.binary()),
    ("oldTimeoutTimestamp", pa.int64()),
)

_PICKLED: Any = CPickleSerializer()
"""The form in which Spark's JVM sends and takes the value of a state."""

Group = Callable[[Iterator[pa.RecordBatch], GroupState], Iterator[pa.RecordBatch]]
"""The function of a group: gets its rows and its state, yields its output, changes the state."""


def replies(
    batches: Iterable[pa.RecordBatch], group: Group, output_schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Call a function for each group of a stream; yield the batches of the stream back.

    The state of a group leaves with the group's last batch, after the function has ended.
    """
    for state, pieces in groupby(_pieces(batches), key=lambda piece: piece[0]):
        held: pa.RecordBatch | None = None
        for output in group((rows for _, rows in pieces), state):
            if held is not None:
                yield _reply(held, None)
            held = output
        last = pa.RecordBatch.from_pylist([], output_schema) if held is None else held
        yield _reply(last, state)


def write_stream(batches: Iterator[pa.RecordBatch], stream: IO[bytes]) -> None:
    """Write the stream back; its start is announced when the first batch is there.

    Before that an error of the first group can still be reported to Spark.
    """
    writer = None
    try:
        for batch in batches:
            if writer is None:
                write_int(SpecialLengths.START_ARROW_STREAM, stream)  # type: ignore[no-untyped-call]
                writer = pa.RecordBatchStreamWriter(stream, batch.schema)
            writer.write_batch(batch)
    finally:
        if writer is not None:
            writer.close()


def _pieces(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[GroupState, pa.RecordBatch]]:
    """Yield the rows of each group piece by piece, each with the one state of its group."""
    state = None
    for batch in batches:
        data = batch.select(range(batch.num_columns - 1))
        for info in _piece_infos(batch.column(batch.num_columns - 1)):
            if state is None:
                state = _state(info)
            yield state, data.slice(info["startOffset"], info["numRows"])
            if info["isLastChunk"]:
                state = None


def _piece_infos(column: pa.Array) -> Iterator[dict[str, Any]]:
    """Yield what the first rows of the column say; the others are null."""
    for place in range(len(column)):
        info = column[place].as_py()
        if info is None:
            return
        yield info


def _state(info: dict[str, Any]) -> GroupState:
    properties = json.loads(info["properties"])
    stored = info["object"]
    properties["optionalValue"] = _PICKLED.loads(stored) if stored else None
    return GroupState(keyAsUnsafe=info["keyRowAsUnsafe"], valueSchema=STATE_SCHEMA, **properties)


def _reply(data: pa.RecordBatch, state: GroupState | None) -> pa.RecordBatch:
    rows, length = data.num_rows, max(1, data.num_rows)
    numbers = (rows, int(state is not None))
    counts = pa.StructArray.from_arrays(
        [pa.array(np.full(length, number, np.int32)) for number in numbers],
        names=["dataCount", "stateCount"],
    )
    columns = data.columns if rows else [pa.nulls(1, column.type) for column in data.columns]
    values = pa.StructArray.from_arrays(columns, fields=list(data.schema))
    return pa.RecordBatch.from_arrays(
        [counts, values, _state_rows(state, length)], names=["_0", "_1", "_2"]
    )


def _state_rows(state: GroupState | None, length: int) -> pa.Array:
    """Return the column of states; only its first row is used."""
    names = [name for name, _ in _STATE_COLUMNS]
    if state is None:
        return pa.StructArray.from_arrays(
            [pa.nulls(length, kind) for _, kind in _STATE_COLUMNS], names=names
        )
    value = None
    if state.exists:
        value = _PICKLED.dumps(STATE_SCHEMA.toInternal(state._value))  # noqa: SLF001
    key = state._keyAsUnsafe  # noqa: SLF001
    row = (state.json(), key, value, state.oldTimeoutTimestamp)
    return pa.StructArray.from_arrays(
        [
            pa.concat_arrays([pa.array([one], kind), pa.nulls(length - 1, kind)])
            for one, (_, kind) in zip(row, _STATE_COLUMNS, strict=True)
        ],
        names=names,
    )
