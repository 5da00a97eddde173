"""Small processors, as a user would write them; schemas are DDL text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from pyspark_ckpt import AggregateFunction, BatchProcessor, StateTtlConfig


class Processor(StatefulProcessor):
    """The methods that the other processors need not repeat."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        return iter(())

    def close(self) -> None: ...


class Count(Processor):
    """Value state."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        n = (self.count.get() or (0,))[0] + sum(row.n for row in rows)
        self.count.update((n,))
        yield Row(key=key[0], n=n)

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        n = (self.count.get() or (0,))[0]
        self.count.update((n + initialState.n,))


class PandasCount(Processor):
    """Count with frames."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        n = (self.count.get() or (0,))[0] + int(sum(frame["n"].sum() for frame in rows))
        self.count.update((n,))
        yield pd.DataFrame({"key": [key[0]], "n": [n]})

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:
        self.count.update((int(initialState["n"].sum()),))


class Collect(Processor):
    """List and map state; a negative number removes."""

    def init(self, handle: Any) -> None:
        self.list = handle.getListState("list", "n bigint")
        self.map = handle.getMapState("map", "n bigint", "times bigint, last string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            number = (abs(row.n),)
            if row.n < 0:
                self.list.clear()
                self.map.removeKey(number)
                continue
            self.list.appendValue(number)
            times = (self.map.getValue(number) or (0, ""))[0] + 1
            self.map.updateValue(number, (times, str(row.n)))
        values = [n for (n,) in self.list.get()]
        yield Row(key=key[0], values=values, known=sorted(n for (n,), _ in self.map.iterator()))


class Alarm(Processor):
    """A timer per row at its ``at``, and a value that counts those that fired."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.fired = handle.getValueState("fired", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.handle.registerTimer(row.at)
        yield self.row("set", key, timerValues, -1)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        self.fired.update(((self.fired.get() or (0,))[0] + 1,))
        yield self.row("fired", key, timerValues, expiredTimerInfo.getExpiryTimeInMs())

    def row(self, what: str, key: Any, times: Any, at: int) -> Row:
        return Row(
            what=what,
            key=key[0],
            at=at,
            processing=times.getCurrentProcessingTimeInMs(),
            watermark=times.getCurrentWatermarkInMs(),
            timers=sorted(self.handle.listTimers()),
        )


class Aging(Processor):
    """A value with a time to live."""

    def __init__(self, ttl: int | StateTtlConfig) -> None:
        self.ttl = ttl

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "n bigint", self.ttl)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        before = self.seen.get()
        for row in rows:
            self.seen.update((row.n,))
        yield Row(before=before)


class Mean(AggregateFunction):
    """Sum and number; shows the mean."""

    def create(self) -> tuple[Any, ...]:
        return (0, 0)

    def add(self, value: int, accumulator: tuple[Any, ...]) -> tuple[Any, ...]:
        return (accumulator[0] + value, accumulator[1] + 1)

    def getResult(self, accumulator: tuple[Any, ...]) -> float:
        return float(accumulator[0] / accumulator[1])

    def merge(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        return (a[0] + b[0], a[1] + b[1])


class Everything(Processor):
    """Every kind of state, a timer per row, and raw state."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", "n bigint")
        self.list = handle.getListState("list", "n bigint")
        self.map = handle.getMapState("map", "n bigint", "n bigint")
        self.sum = handle.getReducingState("sum", "n bigint", lambda a, b: (a[0] + b[0],))
        self.mean = handle.getAggregatingState("mean", "sum bigint, number bigint", Mean())
        self.log = handle.getOperatorListState("log", "line string")
        self.rules = handle.getBroadcastState("rules", "name string", "n bigint")
        if not self.rules.exists():
            self.rules.updateValue(("limit",), (10,))

    def restoreState(self, context: Any) -> None:
        streams = [stream.read() for stream in context.getRawOperatorStateInputs()]
        self.epochs = int(streams[0]) if streams else 0

    def snapshotState(self, context: Any) -> None:
        context.getRawOperatorStateOutput().write(str(self.epochs + 1).encode())

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.value.update((row.n,))
            self.list.appendValue((row.n,))
            self.map.updateValue((row.n % 3,), (row.n,))
            self.sum.add((row.n,))
            self.mean.add(row.n)
            self.log.appendValue((f"{key[0]} {row.n}",))
            self.handle.registerTimer(row.n)
            yield Row(key=key[0], n=row.n, sum=self.sum.get()[0], epochs=self.epochs)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        at = expiredTimerInfo.getExpiryTimeInMs()
        if at % 2:
            self.handle.registerTimer(at + 5)
        self.list.appendValue((-at,))
        yield Row(key=key[0], n=-at, sum=0, epochs=self.epochs)


KEYED_STATES = ("value", "list", "map", "sum", "mean")
OPERATOR_STATES = ("log", "rules")


class BatchCount(BatchProcessor):
    """All keys at once."""

    def __init__(self, ttl: StateTtlConfig | None = None) -> None:
        self.ttl = ttl

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n bigint", self.ttl)

    def handleInputBatch(
        self, keys: pd.DataFrame, rows: pd.DataFrame, timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        before = self.count.getMany(keys)["n"].fillna(0)
        n = before + rows.groupby(level=0)["n"].sum()
        self.count.updateMany(keys, pd.DataFrame({"n": n}))
        yield keys.assign(n=n.astype("int64"))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        return iter(())

    def close(self) -> None: ...


class Rules(Processor):
    """Broadcast rows set limits by name; a key's rows show the limit of that name."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.limits = handle.getBroadcastState("limits", "key string", "n bigint")

    def handleBroadcastRows(self, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.limits.updateValue((row.key,), (row.n,))
            yield Row(key=row.key, n=row.n, at=timerValues.getCurrentProcessingTimeInMs())

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.handle.registerTimer(5)
        yield Row(key=key[0], n=(self.limits.getValue(key) or (None,))[0], at=-1)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        at = expiredTimerInfo.getExpiryTimeInMs()
        if at == 5:
            self.handle.registerTimer(6)
        yield Row(key=key[0], n=None, at=at)


class BatchRules(BatchCount):
    """Broadcast frames go out as they came."""

    def handleBroadcastRows(self, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        yield from rows


class Echo(Processor):
    """Says what it is called for, with timers and a state."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.handleInitialState(key, next(rows), timerValues)
        self.handle.deleteTimer(0)
        self.handle.registerTimer(1)
        yield Row(what="rows", key=key)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.n.update((initialState.n,))
        self.handle.registerTimer(0)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield Row(what="timer", key=key)
