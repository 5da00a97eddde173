"""The stream between Spark's operator and a worker: groups in, output and states back."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import SpecialLengths
from pyspark.sql.streaming.state import GroupState

from pyspark_ckpt.operator.handover.worker import replies, write_stream

OUTPUT = pa.schema([("c0", pa.int64()), ("c1", pa.string())])
INFO = pa.struct([
    ("properties", pa.string()), ("keyRowAsUnsafe", pa.binary()), ("object", pa.binary()),
    ("startOffset", pa.int32()), ("numRows", pa.int32()), ("isLastChunk", pa.bool_()),
])  # fmt: skip


def info(
    key: bytes, start: int, rows: int, *, last: bool, value: Any = None, timed_out: bool = False
) -> dict[str, Any]:
    """Return what Spark says of some rows of a group."""
    properties = {
        "timeoutConf": "ProcessingTimeTimeout", "batchProcessingTimeMs": 5,
        "eventTimeWatermarkMs": -1,
        "hasTimedOut": timed_out, "watermarkPresent": False, "defined": value is not None,
        "updated": False, "removed": False, "timeoutTimestamp": -1,
    }  # fmt: skip
    return {
        "properties": json.dumps(properties), "keyRowAsUnsafe": key,
        "object": None if value is None else pickle.dumps(value),
        "startOffset": start, "numRows": rows, "isLastChunk": last,
    }  # fmt: skip


def sent(numbers: list[int], *infos: dict[str, Any]) -> pa.RecordBatch:
    padded = [*infos, *[None] * (len(numbers) - len(infos))]
    return pa.RecordBatch.from_pydict(
        {"n": pa.array(numbers, pa.int64()), "info": pa.array(padded, INFO)}
    )


def read_back(batches: Iterator[pa.RecordBatch]) -> list[tuple[list[Any], list[Any]]]:
    """Return data and states of each batch as Spark reads them: the counts are in the first row."""
    found = []
    for batch in batches:
        counts, data, states = (column.to_pylist() for column in batch.columns)
        rows, groups = counts[0]["dataCount"], counts[0]["stateCount"]
        assert len(data) == max(rows, 1)
        assert all(count == counts[0] for count in counts)
        assert all(value is None for state in states[groups:] for value in state.values())
        found.append((data[:rows], states[:groups]))
    return found


class Groups:
    """Notes the rows of each group; yields as many batches as it is told."""

    def __init__(self, *outputs: list[pa.RecordBatch]) -> None:
        self.outputs = iter(outputs)
        self.seen: list[tuple[list[int], Any, bool]] = []

    def __call__(
        self, batches: Iterator[pa.RecordBatch], state: GroupState
    ) -> Iterator[pa.RecordBatch]:
        numbers = [n for batch in batches for n in batch.column("n").to_pylist()]
        before = state.get if state.exists else None
        self.seen.append((numbers, before, state.hasTimedOut))
        yield from next(self.outputs)
        state.update((b"new" + bytes(numbers),))
        state.setTimeoutDuration(77)


def output(*rows: tuple[int | None, str | None]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True))
    return pa.record_batch([pa.array(columns[0], pa.int64()), pa.array(columns[1], pa.string())],
                           schema=OUTPUT)  # fmt: skip


def test_groups_over_batches() -> None:
    """A group ends within a batch, another goes on in the next; a third has timed out."""
    stream = [
        sent([1, 2, 3, 4], info(b"a", 0, 3, last=True), info(b"b", 3, 1, last=False)),
        sent([5, 6], info(b"b", 0, 2, last=False)),
        sent([7, 8], info(b"b", 0, 1, last=True),
             info(b"c", 1, 1, last=True, value=(b"old",), timed_out=True)),
    ]  # fmt: skip
    groups = Groups([], [output((1, "x"), (None, None)), output((2, "y"))], [output((3, "z"))])
    found = read_back(replies(stream, groups, OUTPUT))
    assert groups.seen == [
        ([1, 2, 3], None, False),
        ([4, 5, 6, 7], None, False),
        ([8], (b"old",), True),
    ]
    assert [data for data, _ in found] == [
        [],
        [{"c0": 1, "c1": "x"}, {"c0": None, "c1": None}],
        [{"c0": 2, "c1": "y"}],
        [{"c0": 3, "c1": "z"}],
    ]
    states = [states for _, states in found]
    assert states[1] == [], "the state leaves after all output"
    for (state,), key, numbers in zip(
        [states[0], *states[2:]], [b"a", b"b", b"c"], ([1, 2, 3], [4, 5, 6, 7], [8]), strict=True
    ):
        assert state["keyRowAsUnsafe"] == key
        assert pickle.loads(state["object"])[0] == b"new" + bytes(numbers)
        properties = json.loads(state["properties"])
        assert properties["updated"]
        assert properties["timeoutTimestamp"] == 5 + 77


def test_a_group_that_fails_leaves_no_state() -> None:
    def failing(batches: Iterator[pa.RecordBatch], _: GroupState) -> Iterator[pa.RecordBatch]:
        list(batches)
        yield output((1, "x"))
        yield output((2, "y"))
        raise InterruptedError

    found = replies([sent([1], info(b"a", 0, 1, last=True))], failing, OUTPUT)
    assert [states for _, states in read_back(iter([next(found)]))] == [[]]
    with pytest.raises(InterruptedError):
        next(found)


def test_the_start_of_the_stream_is_announced_with_its_first_batch() -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        raise InterruptedError
        yield

    stream = io.BytesIO()
    with pytest.raises(InterruptedError):
        write_stream(failing(), stream)
    assert stream.getvalue() == b"", "the error can still be reported"
    batch = output((1, "x"))
    write_stream(iter([batch, batch]), stream)
    head = stream.getvalue()[:4]
    assert int.from_bytes(head, "big", signed=True) == SpecialLengths.START_ARROW_STREAM
    assert pa.ipc.open_stream(stream.getvalue()[4:]).read_all().num_rows == 2
