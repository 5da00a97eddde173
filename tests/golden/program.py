"""The query that wrote the golden locations, and that restores them.

Changed only together with new golden data: what is checked in was written by it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt

ROW_DDL = "k string, v long, ts timestamp"
RULE_DDL = "name string, factor long"
TOLD = "k string, what string, subtask int, told string"
COUNTED = f"{TOLD}, nth long"
NEAR_MS, FAR_MS = 3_000, 25_000
STEP_MS = 137
HOUR_MS = 3_600_000
SHORT_MS = 15_000


class Everything(StatefulProcessor):
    """Keep something in each kind of state; tell all of it at each row, rule and timer."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState(
            "total", "n long, sum decimal(12,2), last timestamp, tags array<string>"
        )
        self.items = handle.getListState("items", "v double, raw binary")
        self.tally = handle.getMapState(
            "tally", "bucket int, odd boolean", "times long, note string"
        )
        lasting = ckpt.StateTtlConfig(HOUR_MS, time="event")
        short = ckpt.StateTtlConfig(SHORT_MS, time="event")
        self.lasting = handle.getListState("lasting", "v long", lasting)
        self.short = handle.getListState("short", "v long", short)
        self.aging = handle.getMapState("aging", "v long", "twice long", short)
        self.dealt = handle.getOperatorListState("dealt", "v long")
        self.united = handle.getOperatorListState("united", "v long", "union")
        self.rules = handle.getBroadcastState("rules", "name string", "factor long")
        self.fired = 0

    def restoreState(self, context: Any) -> None:
        for stream in context.getRawOperatorStateInputs():
            self.fired += json.loads(stream.read())["fired"]

    def snapshotState(self, context: Any) -> None:
        with context.getRawOperatorStateOutput() as stream:
            stream.write(json.dumps({"fired": self.fired}).encode())

    def handleBroadcastRows(self, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row.factor is None:
                self.rules.removeKey((row.name,))
            else:
                self.rules.updateValue((row.name,), (row.factor,))
        told = {
            "rules": sorted([k[0], v[0]] for k, v in self.rules.iterator()),
            "dealt": sorted(item[0] for item in self.dealt.get()),
            "united": sorted(item[0] for item in self.united.get()),
            "fired": self.fired,
        }
        yield self._told(None, "rules", told)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            ts_ms = round(row.ts.timestamp() * 1000)
            told = {**self._of_key(), "timers": list(self.handle.listTimers()), "v": row.v}
            self._keep(row)
            number = int(key[0][1:])
            for ahead_ms in (NEAR_MS, FAR_MS):
                self.handle.registerTimer(ts_ms + ahead_ms + number * STEP_MS)
            if number % 5 == 0:  # a timer that was set in an earlier epoch goes
                self.handle.deleteTimer(ts_ms - 10_000 + FAR_MS + number * STEP_MS)
            yield self._told(key[0], "row", told)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        self.fired += 1
        at_ms = expiredTimerInfo.getExpiryTimeInMs()
        yield self._told(key[0], "timer", {**self._of_key(), "at": at_ms, "number": self.fired})

    def close(self) -> None:
        pass

    def _keep(self, row: Row) -> None:
        n, total, _, tags = self.total.get() or (0, 0, None, [])
        tags = [*tags, None if row.v % 3 else f"t{row.v}"][-3:]
        self.total.update((n + 1, total + row.v, row.ts, tags))
        self.items.appendValue((row.v / 2, str(row.v).encode() if row.v % 4 else None))
        bucket = (row.v % 4, row.v % 2 == 1)
        times, _ = self.tally.getValue(bucket) or (0, None)
        if times == 2:
            self.tally.removeKey(bucket)
        else:
            self.tally.updateValue(bucket, (times + 1, f"of {row.v}"))
        self.lasting.appendValue((row.v,))
        self.short.appendValue((row.v,))
        self.aging.updateValue((row.v,), (2 * row.v,))
        self.dealt.appendValue((row.v,))
        self.united.appendValue((row.v,))

    def _of_key(self) -> dict[str, Any]:
        total = self.total.get()
        if total is not None:
            n, amount, last, tags = total
            last_ms = round(last.timestamp() * 1000)
            total = [n, str(amount), last_ms, list(tags)]
        items = [[v, None if raw is None else bytes(raw).decode()] for v, raw in self.items.get()]
        return {
            "total": total,
            "items": items,
            "tally": sorted([*k, *v] for k, v in self.tally.iterator()),
            "lasting": [item[0] for item in self.lasting.get()],
            "short": [item[0] for item in self.short.get()],
            "aging": sorted([k[0], v[0]] for k, v in self.aging.iterator()),
        }

    def _told(self, k: str | None, what: str, told: Mapping[str, Any]) -> Row:
        context = TaskContext.get()
        assert context is not None
        return Row(k=k, what=what, subtask=context.partitionId(), told=json.dumps(told))


class Counted(StatefulProcessor):
    """Number what the first operator tells, by what it is."""

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self.n.get() or (0,))[0]
        for row in rows:
            n += 1
            yield Row(k=row.k, what=key[0], subtask=row.subtask, told=row.told, nth=n)
        self.n.update((n,))

    def close(self) -> None:
        pass


class Mean(ckpt.AggregateFunction):
    """The mean of what was added."""

    def create(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def getResult(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]


class Merged(StatefulProcessor):
    """Pass on the numbered rows; fail if a merging state is not of all numbers before."""

    def init(self, handle: Any) -> None:
        self.most = handle.getReducingState("most", "n long", max)
        self.mean = handle.getAggregatingState("mean", "total long, n long", Mean())

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.nth):
            before, mean = (self.most.get() or (0,))[0], self.mean.get()
            if row.nth != before + 1 or (before and mean != (before + 1) / 2):
                raise ValueError(f"{key}: {row.nth} after {before}, whose mean was {mean}")
            self.most.add((row.nth,))
            self.mean.add(row.nth)
            yield row

    def close(self) -> None:
        pass


class Sink:
    """What the query emits, row by row; each epoch counts once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epochs: dict[int, list[Row]] = {}

    def __call__(self, df: DataFrame, epoch: int) -> None:
        rows = df.collect()
        with self._lock:
            self._epochs[epoch] = rows

    def rows(self) -> list[Row]:
        return [row for epoch in sorted(self._epochs) for row in self._epochs[epoch]]


def writer(
    spark: SparkSession,
    base: Path,
    location: Path,
    sink: Sink,
    options: Mapping[str, Any],
) -> ckpt.CheckpointedStreamWriter:
    """The query over the files in ``rows`` and ``rules`` below `base`, one of each per epoch."""

    def files(name: str, ddl: str) -> DataFrame:
        reader = spark.readStream.schema(ddl).option("maxFilesPerTrigger", 1)
        return reader.json(str(base / name))

    rows = files("rows", ROW_DDL).withWatermark("ts", "0 seconds")
    keyed = ckpt.key_by(rows, "k").connectBroadcast(files("rules", RULE_DDL))
    told = keyed.transformWithState(Everything(), TOLD, "Append", "EventTime", uid="everything")
    counted = ckpt.key_by(told, "what")
    numbered = counted.transformWithState(Counted(), COUNTED, "Append", "None", uid="counted")
    by_what = ckpt.key_by(numbered, "what")
    df = by_what.transformWithState(Merged(), COUNTED, "Append", "None", uid="merged")
    writer = ckpt.write_stream(df).foreachBatch(sink).outputMode("append")
    writer = writer.option("checkpointLocation", str(location))
    for key, value in options.items():
        writer = writer.option(key, value)
    return writer
