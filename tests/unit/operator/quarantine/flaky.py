"""A processor that uses every kind of state and timers, and raises at rows that say so."""

from __future__ import annotations

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt import AggregateFunction

BAD = -1
"""A row of this value makes the unmended processor raise, after it has written and yielded."""

BAD_TIMER = 7
"""A timer of a time that ends with this digit makes the unmended processor raise."""


class Sum(AggregateFunction):
    """The sum of what was added."""

    def create(self):
        """Return zero."""
        return (0,)

    def add(self, value, accumulator):
        """Return the sum."""
        return (accumulator[0] + value,)

    def getResult(self, accumulator):
        """Return the sum."""
        return accumulator[0]

    def merge(self, a, b):
        """Return the sum."""
        return (a[0] + b[0],)


class Flaky(StatefulProcessor):
    """Counts, lists and sums values; each call is seen in the output."""

    def __init__(self, *, is_mended=False, with_timers=False):
        self.is_mended = is_mended
        self.with_timers = with_timers

    def init(self, handle):
        """Ask for the states."""
        self.handle = handle
        self.count = handle.getValueState("count", "n long")
        self.values = handle.getListState("values", "v long")
        self.seen = handle.getMapState("seen", "v long", "n long")
        self.sum = handle.getAggregatingState("sum", "n long", Sum())
        self.all = handle.getOperatorListState("all", "v long")

    def handleInputRows(self, key, rows, timerValues):
        """Write before each row is looked at, so that an undone call has something to undo."""
        for values in self._values(rows):
            yield self._row(key, [self._handled(value) for value in values])

    def _values(self, rows):
        yield [row.v for row in rows]

    def _row(self, key, values):
        return Row(key=key[0], n=self.count.get()[0], text=str(values))

    def _handled(self, value):
        n = (self.count.get() or (0,))[0] + 1
        self.count.update((n,))
        self.values.appendValue((value,))
        self.seen.updateValue((value,), (n,))
        self.sum.add(value)
        self.all.appendValue((value,))
        if self.with_timers:
            self.handle.registerTimer(1_000 + abs(value))
        if value == BAD:
            self.seen.clear()
            self.values.put([(n,)])
            if not self.is_mended:
                raise ValueError(f"value {value} after {n}")
        return value

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        """Count the timer."""
        n = (self.count.get() or (0,))[0] + 100
        self.count.update((n,))
        time_ms = expiredTimerInfo.getExpiryTimeInMs()
        yield Row(key=key[0], n=n, text=f"timer {time_ms}")
        if time_ms % 10 == BAD_TIMER and not self.is_mended:
            raise ValueError(f"timer {time_ms}")

    def close(self):
        """Do nothing."""


class FlakyFrames(Flaky):
    """The same over frames."""

    def _values(self, rows):
        for frame in rows:
            yield frame["v"].tolist()

    def _row(self, key, values):
        return pd.DataFrame({"key": [key[0]], "n": [self.count.get()[0]], "text": [str(values)]})


class ReturnsOne(Flaky):
    """Returns what it should yield."""

    def handleInputRows(self, key, rows, timerValues):
        """Return one row or frame."""
        (output,) = super().handleInputRows(key, rows, timerValues)
        return output


class ReturnsOneFrame(ReturnsOne, FlakyFrames):
    """The same over frames."""


class Deleting(StatefulProcessor):
    """Sets three timers, the first of which deletes the third; key a raises at a given time."""

    def __init__(self, bad_ms):
        self.bad_ms = bad_ms

    def init(self, handle):
        """Keep the handle."""
        self.handle = handle

    def handleInputRows(self, key, rows, timerValues):
        """Set the timers."""
        for time_ms in (1_010, 1_020, 1_030):
            self.handle.registerTimer(time_ms)
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        """Delete the last timer at the first, then raise if it is the bad one."""
        time_ms = expiredTimerInfo.getExpiryTimeInMs()
        yield Row(key=key[0], time_ms=time_ms)
        if time_ms == 1_010:
            self.handle.deleteTimer(1_030)
        if key[0] == "a" and time_ms == self.bad_ms:
            raise ValueError(f"timer {time_ms}")

    def close(self):
        """Do nothing."""
