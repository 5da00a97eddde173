"""Have Spark's Python worker hand a task's rows over as one Arrow stream.

While the worker unpickles the function of a task, its function ``read_udfs`` is on the stack. That
function holds the serializer object of this one task, which reads the stream from Spark and writes
the stream back. Its two methods are replaced on the object: no module is changed, and no other task
is concerned. Where anything is not as expected, nothing is changed, and the reason is returned.
This module alone knows PySpark's worker; the driver asks it before (`plan/hand_over`).

In the stream to Python the last column of a batch says which of its rows belong to which group, and
has the group's state in the first batch of the group. In the stream back each batch has three
columns of structs: how many data rows and state rows there are, the data, and the states. PySpark's
worker does the same with pandas in between.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from types import FrameType
from typing import IO, Any

import numpy as np
import pyarrow as pa
from pyspark.serializers import CPickleSerializer, SpecialLengths, write_int
from pyspark.sql import types as T
from pyspark.sql.pandas.serializers import ArrowStreamSerializer
from pyspark.sql.streaming.state import GroupState
from pyspark.util import PythonEvalType

_READ_UDFS = "read_udfs"
_WORKERS = ("pyspark.worker", "__main__")
PROFILER = "spark.sql.pyspark.udf.profiler"
PIPELINED = "spark.python.udf.pipelined.enabled"

Replies = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""From the batches of the stream to Python to those of the stream back."""

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


def take_over(replies: Replies) -> str | None:
    """Have the task whose function is being unpickled hand its rows over as Arrow.

    Called on an executor while the worker unpickles; does nothing anywhere else. Returns why the
    worker refuses it, ``None`` if it does not.
    """
    return _hooked(
        PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF_WITH_STATE,
        lambda serializer: _replace_methods(serializer, replies),
    )


def refusal_of_probe() -> str | None:
    """Return why the worker that unpickles a function of ``mapInArrow`` would refuse the hook."""
    return _hooked(PythonEvalType.SQL_MAP_ARROW_ITER_UDF, _replace_by_themselves)


def _hooked(eval_type: int, replace: Callable[[Any], None]) -> str | None:
    """Replace methods of the serializer of a task of a type; return why the worker refuses it."""
    frame = _reading_frame()
    if frame is None:
        return f"no {_READ_UDFS} of PySpark's worker unpickles the function"
    try:
        reason = _refusal(frame, eval_type)
        if reason is None:
            replace(frame.f_locals["ser"])
    except Exception as exc:  # an unknown worker
        reason = f"the worker is not as expected ({type(exc).__name__}: {exc})"
    return reason


def _replace_by_themselves(serializer: Any) -> None:
    for name in ("load_stream", "dump_stream"):
        setattr(serializer, name, getattr(serializer, name))


def _reading_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        name, module = frame.f_code.co_name, frame.f_globals.get("__name__")
        if name == _READ_UDFS and module in _WORKERS:
            return frame
        frame = frame.f_back
    return None


def _refusal(frame: FrameType, wanted: int) -> str | None:
    """Return why a task of an evaluation type cannot hand over Arrow, ``None`` if it can."""
    known = frame.f_locals
    if known.get("eval_type") != wanted:
        return f"the function is called as evaluation type {known.get('eval_type')}"
    if not isinstance(known.get("ser"), ArrowStreamSerializer):
        return f"the serializer is {type(known.get('ser')).__name__}"
    if os.environ.get("SPARK_PIPELINED_UDF") == "1":
        return f"{PIPELINED} is true"
    conf = known.get("runner_conf")
    if conf is None:
        return "the worker has no settings"
    profiler = conf.get(PROFILER) if isinstance(conf, dict) else conf.udf_profiler
    return f"{PROFILER} is {profiler}" if profiler else None


def _replace_methods(serializer: Any, replies: Replies) -> None:
    inputs: list[IO[bytes]] = []

    def load_stream(stream: IO[bytes]) -> Iterator[Any]:
        inputs.append(stream)
        return iter(())  # the function that PySpark makes of this is never called

    def dump_stream(_: Iterator[Any], stream: IO[bytes]) -> None:
        with pa.ipc.open_stream(inputs.pop()) as reader:
            write_stream(replies(reader), stream)

    own = serializer.load_stream
    serializer.load_stream = load_stream
    try:
        serializer.dump_stream = dump_stream
    except Exception:
        serializer.load_stream = own  # one without the other would lose the rows
        raise


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
        infos = batch.column(batch.num_columns - 1)
        for place in range(len(infos)):
            info = infos[place].as_py()
            if info is None:  # only the first rows of the column say something
                break
            if state is None:
                state = _state(info)
            yield state, data.slice(info["startOffset"], info["numRows"])
            if info["isLastChunk"]:
                state = None


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
