"""A processor that notes every call, and the subtask that runs its epochs."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.operator.modes.mode import ROWS
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.operator.rows.sides import EpochInput
from pyspark_ckpt.operator.run.processing import EpochProcessing
from tests.unit.operator.rows.sent import sent_batch
from tests.unit.operator.subtask_epochs import NUMBER, SubtaskEpochs

UTC = datetime.timezone.utc
INPUT = T.StructType([
    T.StructField("k", T.StringType()),
    T.StructField("n", T.LongType()),
    T.StructField("at", T.TimestampType(), metadata={"spark.watermarkDelayMs": 0}),
])  # fmt: skip
OUTPUT = T.StructType([T.StructField("k", T.StringType()), T.StructField("n", T.LongType())])
COLUMNS = InputColumns(INPUT, ["k"])
GROUPS = {"a": 3, "b": 3, "c": 9, "ab": 1, None: 20}
"""Key groups as Spark might hash them."""

Input = list[tuple[str | None, int]]


def frame_of(rows: Input, at_ms: int | None = 0) -> pa.RecordBatch:
    at = None if at_ms is None else datetime.datetime.fromtimestamp(at_ms / 1000, UTC)
    return sent_batch(INPUT, [(k, n, at) for k, n in rows], *[GROUPS[k] for k, _ in rows])


class Logged(StatefulProcessor):
    """A processor that notes every call; functions say what it does in them."""

    def __init__(self, **steps: Callable[..., Any]) -> None:
        self.steps = steps
        self.log: list[Any] = []
        self.taken: list[int] = []
        self.left: list[int] = []

    def step(self, name: str, *arguments: Any) -> Any:
        return self.steps[name](self, *arguments) if name in self.steps else None

    def init(self, handle: Any) -> None:
        self.log.append("init")
        self.handle = handle
        self.sum = handle.getValueState("sum", NUMBER)
        self.step("init")

    def restoreState(self, context: Any) -> None:
        self.log.append("restoreState")
        self.step("restoreState", context)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterable[Row]:
        rows = list(rows)
        self.log.append((key, [row.n for row in rows]))
        self.times = (
            timerValues.getCurrentProcessingTimeInMs(),
            timerValues.getCurrentWatermarkInMs(),
        )
        (before,) = self.sum.get() or (0,)
        self.sum.update((before + sum(row.n for row in rows),))
        output = self.step("handleInputRows", key, rows)
        return [Row(k=key[0], n=self.sum.get()[0])] if output is None else output

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterable[Row]:
        time_ms = expiredTimerInfo.getExpiryTimeInMs()
        self.log.append((key, f"timer {time_ms}"))
        output = self.step("handleExpiredTimer", key, time_ms)
        return [Row(k=key[0], n=-time_ms)] if output is None else output

    def snapshotState(self, context: Any) -> None:
        self.log.append(f"snapshotState {context.getEpoch()}")
        self.step("snapshotState", context)

    def close(self) -> None:
        self.log.append("close")
        self.step("close")


class Subtask:
    def __init__(self, epochs: SubtaskEpochs) -> None:
        self.epochs = epochs

    def run(
        self,
        processor: Logged,
        parts: Iterable[list[pa.RecordBatch]] = (),
        *,
        fails: bool = False,
    ) -> list[tuple[Any, ...]]:
        """Run an epoch and return the rows that it emitted."""
        epochs = self.epochs
        handle = epochs.begin()
        epochs.leave_key()
        mode = ROWS.of_operator(COLUMNS, OutputRows(OUTPUT, "u"))
        run = EpochProcessing(
            processor, epochs.table, handle, epochs.clock, mode, COLUMNS.decode_key,
            f"operator 'u', subtask 0, epoch {epochs.number}",
        )  # fmt: skip
        try:
            self.frames = list(run.run(lambda: EpochInput(parts), epochs.number))
            self.laps = run.laps
        except BaseException:
            epochs.drop()
            raise
        epochs.end()
        return [tuple(row.values()) for one in self.frames for row in one.to_pylist()]


def register(*times_ms: int) -> Callable[..., None]:
    def step(self: Logged, key: Any, rows: list[Row]) -> None:
        for time_ms in times_ms:
            self.handle.registerTimer(time_ms + rows[0].n)

    return step
