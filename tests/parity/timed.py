"""A processor that registers and deletes timers by its input rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

INPUT = "k string, i long, ts timestamp, commands string"
OUTPUT = "k string, what string, calls long, timers string, watermark long"
ORIGIN = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
ORIGIN_MS = int(ORIGIN.timestamp() * 1000)


def at(seconds: float) -> dt.datetime:
    return ORIGIN + dt.timedelta(seconds=seconds)


class Timers(StatefulProcessor):
    """Name timers, and emit at each row and each firing which timers of the key are left.

    Commands are ``register NAME MS``, ``delete NAME MS``, with times from an origin, and
    ``again NAME MS``, from the current time. What a firing timer does is in `ON_EXPIRY`.
    """

    EVENT_TIME: ClassVar[bool] = True
    ON_EXPIRY: ClassVar[Mapping[str, str]] = {}

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.names = handle.getMapState("names", "at long", "name string")
        self.origin = handle.getValueState("origin", "at long")
        self.calls = handle.getValueState("calls", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda r: r.i):
            yield self.step(key, f"row {row.i}", row.commands, timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        (name,) = self.names.getValue((expiredTimerInfo.getExpiryTimeInMs(),))
        yield self.step(key, f"timer {name}", self.ON_EXPIRY.get(name, ""), timerValues)

    def step(self, key: Any, what: str, commands: str, times: Any) -> Row:
        self.calls.update(((self.calls.get() or (0,))[0] + 1,))
        for command in filter(None, (c.strip() for c in commands.split(";"))):
            self.run(*command.split(), times=times)
        listed = sorted(self.handle.listTimers())
        left = " ".join(self.names.getValue((at_ms,))[0] for at_ms in listed)
        watermark = times.getCurrentWatermarkInMs() if self.EVENT_TIME else None
        calls = self.calls.get()[0]
        return Row(k=key[0], what=what, calls=calls, timers=left, watermark=watermark)

    def run(self, verb: str, name: str, after_ms: str, *, times: Any) -> None:
        at_ms = self.now(times) if verb == "again" else self.origin_ms(times)
        at_ms += int(after_ms)
        if verb == "delete":
            self.handle.deleteTimer(at_ms)
        else:
            self.handle.registerTimer(at_ms)
            self.names.updateValue((at_ms,), (name,))

    def now(self, times: Any) -> int:
        if self.EVENT_TIME:
            return int(times.getCurrentWatermarkInMs())
        return int(times.getCurrentProcessingTimeInMs())

    def origin_ms(self, times: Any) -> int:
        """The same instant in every run, or the processing time at which the key began."""
        if self.EVENT_TIME:
            return ORIGIN_MS
        if not self.origin.exists():
            self.origin.update((self.now(times),))
        return int(self.origin.get()[0])

    def close(self) -> None:
        pass


class PandasTimers(Timers):
    """The same, for transformWithStateInPandas."""

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        frame = pd.concat(rows).sort_values("i")
        emitted = map(self.step_of(key, timerValues), frame["i"], frame["commands"])
        yield pd.DataFrame([row.asDict() for row in emitted])

    def step_of(self, key: Any, times: Any) -> Any:
        return lambda i, commands: self.step(key, f"row {i}", commands, times)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        for row in super().handleExpiredTimer(key, timerValues, expiredTimerInfo):
            yield pd.DataFrame([row.asDict()])
