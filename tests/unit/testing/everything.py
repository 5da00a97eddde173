"""A processor of everything that an operator offers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from pyspark_ckpt import StateTtlConfig
from tests.unit.testing.captured_query import MINUTE_MS


class Everything(StatefulProcessor):
    """Uses each kind of state, timers, a time to live and a broadcast stream."""

    step = 1

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long, mean double")
        self.values = handle.getListState("values", "v long")
        self.seen = handle.getMapState("seen", "v long", "times long")
        self.recent = handle.getValueState("recent", "v long", StateTtlConfig(90_000))
        self.rules = handle.getBroadcastState("rules", "name string", "most long")

    def handleBroadcastRows(self, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.rules.updateValue((row.name,), (row.most,))
            yield Row(k=row.name, n=-1)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (most,) = self.rules.getValue(("all",)) or (1000,)
        n, _ = self.total.get() or (0, 0.0)
        for row in rows:
            n += min(row.v * self.step, most)
            self.values.appendValue((row.v,))
            (times,) = self.seen.getValue((row.v,)) or (0,)
            self.seen.updateValue((row.v,), (times + 1,))
            self.recent.update((row.v,))
        self.total.update((n, n / 3 if n else math.nan))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 2 * MINUTE_MS)
        yield Row(k=key[0], n=n)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield Row(k=key[0], n=1_000_000 + len(list(self.values.get())))
        self.values.clear()

    def close(self) -> None:
        pass
