"""The times of a harness: a test moves them forward; a failed epoch leaves them unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pyspark_ckpt.errors import ClockError, HarnessUseError, TimeModeError
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.time import EpochClock, instant_ms
from pyspark_ckpt.testing.harness_input import EventTime, Given, each_row


class HarnessClock:
    """The processing time and the watermark of a harness; both begin at 0.

    Without `event_time` a watermark does not exist, and the attribute of that name refuses what is
    not a number of milliseconds. With `keeps_late_rows`, late rows reach the operator, which is
    told what is late; else they are dropped here, as by Spark. `ages` says whether a state has a
    time to live in processing time.
    """

    def __init__(
        self,
        mode: TimeMode,
        event_time: EventTime | None,
        where: str,
        *,
        keeps_late_rows: bool = False,
    ) -> None:
        if mode is TimeMode.EVENT_TIME and event_time is None:
            raise TimeModeError(
                f"{where}: timeMode='EventTime' needs an eventTimeExtractor: give the harness one",
                "ARGUMENT_REQUIRED",
            )
        self.mode = mode
        self.processing_time_ms = 0
        self.watermark_ms = None if event_time is None else 0
        self.ages = False
        self.event_time = None if event_time is None else _in_milliseconds(event_time, where)
        self._where = where
        self._keeps_late_rows = keeps_late_rows

    def now(self) -> EpochClock:
        """Return the times of an epoch that begins now."""
        return EpochClock(
            self.mode,
            self.processing_time_ms,
            self.watermark_ms,
            late_ms=self.watermark_ms if self._keeps_late_rows else None,
        )

    def arriving(self, rows: Given) -> tuple[Given, Sequence[int | None]]:
        """Return the rows of a list, frame or table that reach the operator, with their times."""
        if self.event_time is None:
            return rows, [None] * len(rows)
        times = [self.event_time(row) for row in each_row(rows)]
        if self.mode is not TimeMode.EVENT_TIME or self._keeps_late_rows:
            return rows, times
        kept = [time is None or time > (self.watermark_ms or 0) for time in times]
        left = [time for time, is_kept in zip(times, kept, strict=True) if is_kept]
        if isinstance(rows, pd.DataFrame):
            return rows[kept].reset_index(drop=True), left
        if isinstance(rows, pa.Table):
            return rows.filter(pa.array(kept, pa.bool_())), left
        return [row for row, is_kept in zip(rows, kept, strict=True) if is_kept], left

    @contextmanager
    def processing_time(self, given: Any) -> Iterator[None]:
        """Move the processing time; an error in the context moves it back."""
        if self.mode is not TimeMode.PROCESSING_TIME and not self.ages:
            raise TimeModeError(
                f"{self._where}: setProcessingTime changes nothing in timeMode="
                f"{self.mode.value!r}: give the harness timeMode='ProcessingTime'",
                "UNSUPPORTED_OPERATION",
            )
        new_ms = self._forward("processing time", self.processing_time_ms, given)
        with self.kept_if_well():
            self.processing_time_ms = new_ms
            yield

    @contextmanager
    def watermark(self, given: Any) -> Iterator[None]:
        """Move the watermark; an error in the context moves it back."""
        if self.watermark_ms is None:
            raise TimeModeError(
                f"{self._where}: there is no watermark for setWatermark: give the harness an "
                "eventTimeExtractor, and timeMode='EventTime' for timers",
                "UNSUPPORTED_OPERATION",
            )
        new_ms = self._forward("watermark", self.watermark_ms, given)
        with self.kept_if_well():
            self.watermark_ms = new_ms
            yield

    def set_back(self, processing_time_ms: int, watermark_ms: int | None) -> None:
        """Set the times of a snapshot."""
        self.processing_time_ms = processing_time_ms
        if self.watermark_ms is not None:
            self.watermark_ms = watermark_ms or 0

    @contextmanager
    def kept_if_well(self) -> Iterator[None]:
        """Undo changes of the times if the context raises."""
        before = self.processing_time_ms, self.watermark_ms
        try:
            yield
        except BaseException:
            self.processing_time_ms, self.watermark_ms = before
            raise

    def _forward(self, what: str, now_ms: int, given: Any) -> int:
        try:
            new_ms = instant_ms(given)
        except ValueError as exc:
            raise HarnessUseError(
                f"{self._where}: the {what} cannot become {given!r}: {exc}; give whole "
                "milliseconds, or a time with a zone"
            ) from exc
        if new_ms <= now_ms:
            raise ClockError(
                f"{self._where}: the {what} is {now_ms} ms and cannot become {new_ms} ms: it must "
                "move forward"
            )
        return new_ms


def _in_milliseconds(event_time: EventTime, where: str) -> EventTime:
    """Return a test's ``eventTimeExtractor``, with an error if it returns what is not a time."""

    def checked(row: Any) -> int | None:
        time = event_time(row)
        if time is None:
            return None
        returned = f"{where}: eventTimeExtractor returned"
        if isinstance(time, bool) or not isinstance(time, int | float | np.number):
            raise HarnessUseError(
                f"{returned} a {type(time).__name__}: return milliseconds, an int"
            )
        try:
            return instant_ms(time)
        except ValueError as exc:
            raise HarnessUseError(
                f"{returned} {time!r}: {exc}; return whole milliseconds, an int"
            ) from exc

    return checked
