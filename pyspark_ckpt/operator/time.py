"""The times of an epoch, and the column of event time in Spark's plan.

The times are the same for all keys of an epoch, and for every attempt of its tasks. Metadata of a
column says that it carries event time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import TimerValues

from pyspark_ckpt.formats.modes import TimeMode

NO_TIME_MS = -1
"""The time that PySpark's TimerValues show without a clock."""

_NO_WATERMARK_MS = 0
"""The watermark that they show if the stream has no watermark."""


DRAIN_TIME_MS = 7_258_118_400_000
"""The watermark that processors see while a query is drained. The year 2200 is beyond all data, and
dates and sums can still hold it."""

_LAST_TIME_MS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class EpochClock:
    """The times of one epoch.

    `processing_time_ms` is when the epoch was triggered, and is the same in every attempt.
    `watermark_ms` is ``None`` where the stream has no watermark. `drained_at_ms` says how far
    Spark's watermark was moved to drain the query: every event-time timer is due then, though no
    state is older than `watermark_ms` says.
    """

    mode: TimeMode
    processing_time_ms: int
    watermark_ms: int | None
    drained_at_ms: int | None = None

    @property
    def timer_values(self) -> TimerValues:
        """The times as the processor gets them."""
        if self.mode is TimeMode.NONE:
            return TimerValues(NO_TIME_MS, NO_TIME_MS)
        watermark_ms = _NO_WATERMARK_MS if self.watermark_ms is None else self.watermark_ms
        if self.drained_at_ms is not None:
            watermark_ms = max(watermark_ms, DRAIN_TIME_MS)
        return TimerValues(self.processing_time_ms, watermark_ms)

    @property
    def timers_now_ms(self) -> int | None:
        """The time up to which timers are due; ``None`` if the operator has no timers."""
        if self.mode is TimeMode.PROCESSING_TIME:
            return self.processing_time_ms
        if self.mode is not TimeMode.EVENT_TIME:
            return None
        return self.watermark_ms if self.drained_at_ms is None else _LAST_TIME_MS

    @property
    def earliest_timeout_ms(self) -> int | None:
        """The earliest time at which Spark can call again; ``None`` without timers."""
        return self.timers_now_ms if self.drained_at_ms is None else self.drained_at_ms


WATERMARK_DELAY = "spark.watermarkDelayMs"
"""Spark's metadata key (EventTimeWatermark.delayKey)."""

_EMITTED = "pyspark_ckpt.emitted"


def emitted_event_time(delay_ms: int) -> dict[str, Any]:
    """Return the metadata of an output column that is event time for the operator that follows.

    `delay_ms` is the delay of the input's watermark; a ``dropDuplicatesWithinWatermark`` that
    follows the operator keeps a key for so long.
    """
    return {WATERMARK_DELAY: delay_ms, _EMITTED: True}


NEVER_LATE = 9_000_000_000_000_000
"""Stands for a null event time, in the year 2255; Spark counts null as not late."""


def event_time_index(schema: T.StructType) -> int | None:
    """Return the place of the column of event time, ``None`` if there is none.

    ``withWatermark`` named it, or it is the window of an aggregation, whose end counts for Spark.
    """
    timed = [n for n, field in enumerate(schema.fields) if WATERMARK_DELAY in field.metadata]
    times = [n for n in timed if isinstance(schema.fields[n].dataType, T.TimestampType)]
    windows = [n for n in timed if is_window(schema.fields[n].dataType)]
    return next(iter([*times, *windows]), None)


def is_window(data_type: T.DataType) -> bool:
    """Return whether a type is that of Spark's windows, which have a start and an end."""
    kinds = (
        [type(field.dataType) for field in data_type.fields]
        if isinstance(data_type, T.StructType)
        else []
    )
    return kinds == [T.TimestampType, T.TimestampType]


def is_emitted(field: T.StructField) -> bool:
    """Return whether an operator of this library made a column of event time."""
    return bool(field.metadata.get(_EMITTED))


_EVENT_TIME = "__ckpt_event_time"


def never_late_column() -> Column:
    """Return a column of event time that satisfies Spark and drops no row."""
    return F.lit(NEVER_LATE).alias(_EVENT_TIME, metadata={WATERMARK_DELAY: 0})


def end_of_window_column(window: Column, delay_ms: int) -> Column:
    """Return a column of event time in microseconds, which is that of a window for Spark."""
    by_position = window.cast("struct<c0: timestamp, c1: timestamp>")
    end = F.coalesce(F.unix_micros(by_position["c1"]), F.lit(NEVER_LATE))
    return end.alias(_EVENT_TIME, metadata={WATERMARK_DELAY: delay_ms})
