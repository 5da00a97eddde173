"""One processor in every mode: it does the same in each, with all that modes have.

A new mode is added to :data:`PROCESSORS`, and each test of what modes can do then runs in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pyspark_ckpt as ckpt

NUMBER = T.StructType([T.StructField("n", T.LongType())])
TEXT = T.StructType([T.StructField("s", T.StringType())])

Key = str | None
Emitted = list[tuple[Key, int]]


class Same(StatefulProcessor):
    """What is done for one key, in whichever calls the key comes.

    If it `sets_timers`, each number of a row is also the time of a timer, and a timer of an even
    time registers one that is due in the next epoch. A key that is `bad` raises.
    """

    def __init__(self, *, sets_timers: bool = False, bad: Key = "nobody") -> None:
        self.sets_timers, self.bad = sets_timers, bad

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", NUMBER)
        self.seen = handle.getListState("seen", NUMBER)
        self.by_count = handle.getMapState("by_count", NUMBER, NUMBER)
        self.most = handle.getReducingState("most", NUMBER, max)
        self.offsets = handle.getBroadcastState("offsets", TEXT, NUMBER)

    def started(self, numbers: list[int]) -> None:
        self.total.update((sum(numbers),))

    def offset(self) -> int:
        found = self.offsets.getValue(("offset",))
        return 0 if found is None else int(found[0])

    def of_key(self, key: Key, numbers: list[int]) -> Emitted:
        if key == self.bad:
            raise RuntimeError("a bad key")
        (before,) = self.total.get() or (0,)
        n = before + sum(numbers) + self.offset()
        self.total.update((n,))
        self.seen.appendList([(number,) for number in numbers])
        self.by_count.updateValue((len(numbers),), (n,))
        for number in numbers:
            self.most.add((number,))
            if self.sets_timers:
                self.handle.registerTimer(number)
        return [(key, n)]

    def of_timer(self, key: Key, time_ms: int) -> Emitted:
        self.seen.appendValue((-time_ms,))
        if time_ms % 2 == 0:
            self.handle.registerTimer(time_ms + 1)
        return [(key, -len(list(self.seen.get())))]

    def close(self) -> None: ...


def of_offsets(self: Same, offsets: Iterable[int]) -> None:
    for offset in offsets:
        self.offsets.updateValue(("offset",), (offset,))


class InRows(Same):
    def handleBroadcastRows(self, rows: Iterator[Row], timerValues: Any) -> None:
        of_offsets(self, [row.n for row in rows])

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        self.started([initialState.n])

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for k, n in self.of_key(key[0], [row.n for row in rows]):
            yield Row(k=k, n=n)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        for k, n in self.of_timer(key[0], expiredTimerInfo.getExpiryTimeInMs()):
            yield Row(k=k, n=n)


def frame_of(emitted: Emitted) -> pd.DataFrame:
    return pd.DataFrame(emitted, columns=["k", "n"])


class InFrames(Same):
    def handleBroadcastRows(self, rows: Iterator[pd.DataFrame], timerValues: Any) -> None:
        for frame in rows:
            of_offsets(self, frame["n"].tolist())

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:
        self.started(initialState["n"].tolist())


class InPandas(InFrames):
    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        yield frame_of(self.of_key(key[0], [n for frame in rows for n in frame["n"].tolist()]))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        yield frame_of(self.of_timer(key[0], expiredTimerInfo.getExpiryTimeInMs()))


def lists(positions: list[int], values: list[int], keys: int) -> list[list[int]]:
    """Return the values of each key."""
    found: list[list[int]] = [[] for _ in range(keys)]
    for position, value in zip(positions, values, strict=True):
        found[position].append(value)
    return found


class InBatches(InFrames, ckpt.BatchProcessor):
    def handleInputBatch(
        self, keys: pd.DataFrame, rows: pd.DataFrame, timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        numbers = lists(rows.index.tolist(), rows["n"].tolist(), len(keys))
        for place in self.handle.eachKey(keys):
            yield frame_of(self.of_key(keys["k"].tolist()[place], numbers[place]))

    def handleExpiredTimers(
        self, keys: pd.DataFrame, timers: pd.DataFrame, timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        times = lists(timers.index.tolist(), timers["time_ms"].tolist(), len(keys))
        for place in self.handle.eachKey(keys):
            for time_ms in times[place]:
                yield frame_of(self.of_timer(keys["k"].tolist()[place], time_ms))


def table_of(emitted: Emitted) -> pa.Table:
    keys, numbers = zip(*emitted, strict=True)
    return pa.table({"n": pa.array(numbers, pa.int64()), "k": pa.array(keys, pa.string())})


class InArrow(Same, ckpt.ArrowProcessor):
    def handleBroadcastRows(self, rows: Iterator[pa.Table], timerValues: Any) -> None:
        for table in rows:
            of_offsets(self, table["n"].to_pylist())

    def handleInitialState(self, key: Any, initialState: pa.Table, timerValues: Any) -> None:
        self.started(initialState["n"].to_pylist())

    def handleInputArrow(
        self, keys: pa.Table, rows: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        numbers = lists(rows["key_position"].to_pylist(), rows["n"].to_pylist(), len(keys))
        for place in self.handle.eachKey(keys):
            yield table_of(self.of_key(keys["k"][place].as_py(), numbers[place]))

    def handleExpiredTimers(
        self, keys: pa.Table, timers: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        positions = timers["key_position"].to_pylist()
        times = lists(positions, timers["time_ms"].to_pylist(), len(keys))
        for place in self.handle.eachKey(keys):
            for time_ms in times[place]:
                yield table_of(self.of_timer(keys["k"][place].as_py(), time_ms))


PROCESSORS: Mapping[str, type[Same]] = {
    "rows": InRows,
    "pandas": InPandas,
    "batches": InBatches,
    "arrow": InArrow,
}
"""The processor of each mode."""
