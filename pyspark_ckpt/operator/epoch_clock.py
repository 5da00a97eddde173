"""What time it is in an epoch: the same for all of its keys, and for every attempt of its tasks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pyspark.sql.streaming.stateful_processor import TimerValues

NO_TIME_MS = -1
"""What PySpark's TimerValues show without a clock."""

_NO_WATERMARK_MS = 0
"""What they show with one where the stream has no watermark."""


class TimeMode(str, Enum):
    """PySpark's time modes of a stateful operator."""

    NONE = "None"
    PROCESSING_TIME = "ProcessingTime"
    EVENT_TIME = "EventTime"


@dataclass(frozen=True, slots=True)
class EpochClock:
    """The times of one epoch.

    Parameters
    ----------
    mode
        Which of the times the operator's timers follow.
    processing_time_ms
        When the epoch was triggered; Spark repeats it in every attempt.
    watermark_ms
        The watermark of the epoch; ``None`` where the stream has none.
    """

    mode: TimeMode
    processing_time_ms: int
    watermark_ms: int | None

    @property
    def timer_values(self) -> TimerValues:
        """What the processor is told."""
        if self.mode is TimeMode.NONE:
            return TimerValues(NO_TIME_MS, NO_TIME_MS)
        watermark_ms = _NO_WATERMARK_MS if self.watermark_ms is None else self.watermark_ms
        return TimerValues(self.processing_time_ms, watermark_ms)

    @property
    def timers_now_ms(self) -> int | None:
        """The time up to which timers are due; ``None`` if the operator has no timers."""
        if self.mode is TimeMode.PROCESSING_TIME:
            return self.processing_time_ms
        return self.watermark_ms if self.mode is TimeMode.EVENT_TIME else None
