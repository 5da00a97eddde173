"""Unit tests of processors without Spark, on the library's own state, timers and barriers.

Examples
--------
The examples of the methods continue this one.

>>> from pyspark.sql import Row
>>> from pyspark.sql.streaming import StatefulProcessor
>>> from pyspark_ckpt.testing import ProcessorHarness
>>> class Visits(StatefulProcessor):
...     def init(self, handle):
...         self.handle = handle
...         self.count = handle.getValueState("count", "n long")
...         self.cities = handle.getListState("cities", "city string")
...         self.by_city = handle.getMapState("by_city", "city string", "n long")
...
...     def handleInputRows(self, key, rows, timerValues):
...         (n,) = self.count.get() or (0,)
...         for row in rows:
...             n += 1
...             self.cities.appendValue((row.city,))
...         self.count.update((n,))
...         self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 60_000)
...         yield Row(user=key[0], n=n)
...
...     def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
...         self.count.clear()
...         yield Row(user=key[0], n=0)
...
...     def close(self): ...
>>> harness = ProcessorHarness(Visits(), timeMode="ProcessingTime")
>>> harness.test("ada", [Row(city="Oslo"), Row(city="Rome")])
[Row(user='ada', n=2)]
"""

from pyspark_ckpt.testing.harness import ProcessorHarness
from pyspark_ckpt.testing.harness_subtask import CrashStep
from pyspark_ckpt.testing.replaying.differences import Difference
from pyspark_ckpt.testing.replaying.replay import ReplayResult, replay
from pyspark_ckpt.testing.snapshot import HarnessSnapshot

__all__ = [
    "CrashStep",
    "Difference",
    "HarnessSnapshot",
    "ProcessorHarness",
    "ReplayResult",
    "replay",
]
