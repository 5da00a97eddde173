"""The times of an epoch, event time in Spark's plan, and users' times as whole milliseconds.

The times are the same for all keys of an epoch, and for every attempt of its tasks. Metadata of a
column says that it carries event time.

Nothing is rounded and nothing is guessed, so that no timer fires at another time than was asked
for. A time without a zone is none, because rows have the session's zone and states the worker's.
NumPy's is one, because NumPy counts it from 1970 in UTC.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
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

WATERMARK_DELAY = "spark.watermarkDelayMs"
"""Spark's metadata key (EventTimeWatermark.delayKey)."""

_EMITTED = "pyspark_ckpt.emitted"

NEVER_LATE = 9_000_000_000_000_000
"""Stands for a null event time, in the year 2255; Spark counts null as not late."""

_EVENT_TIME = "__ckpt_event_time"
LEAST_MS, MOST_MS = -(1 << 63), (1 << 63) - 1

_PER_SECOND = {
    "s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9, "ps": 10**12, "fs": 10**15, "as": 10**18,
}  # fmt: skip

_SECONDS = {"W": 604_800, "D": 86_400, "h": 3_600, "m": 60}
_MONTHS = {"Y": 12, "M": 1}
_FIRST_YEAR = 1970

_YEARS, _DAYS = 400, 146_097
"""The Gregorian calendar repeats after so many years, which have so many days."""

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class EpochClock:
    """The times of one epoch.

    `processing_time_ms` is when the epoch was triggered, and is the same in every attempt.
    `watermark_ms` is ``None`` where the stream has no watermark. `drained_at_ms` says how far
    Spark's watermark was moved to drain the query: every event-time timer is due then, though no
    state is older than `watermark_ms` says. Rows whose event time is not after `late_ms` are late;
    it is ``None`` where no late row reaches the operator.
    """

    mode: TimeMode
    processing_time_ms: int
    watermark_ms: int | None
    drained_at_ms: int | None = None
    late_ms: int | None = None

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


def emitted_event_time(delay_ms: int) -> dict[str, Any]:
    """Return the metadata of an output column that is event time for the operator that follows.

    `delay_ms` is the delay of the input's watermark; a ``dropDuplicatesWithinWatermark`` that
    follows the operator keeps a key for so long.
    """
    return {WATERMARK_DELAY: delay_ms, _EMITTED: True}


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


def never_late_column() -> Column:
    """Return a column of event time that satisfies Spark and drops no row."""
    return F.lit(NEVER_LATE).alias(_EVENT_TIME, metadata={WATERMARK_DELAY: 0})


def instant_ms(given: Any) -> int:
    """Return an instant in milliseconds since 1970.

    `given` is a whole number of any type, a time with a zone, or NumPy's ``datetime64``. Anything
    else, and an instant between two milliseconds, is refused with a ValueError.
    """
    if type(given) is int and LEAST_MS <= given <= MOST_MS:
        return given
    return _in_64_bits(_instant(given))


def duration_ms(given: Any) -> int:
    """Return a duration above zero, in milliseconds.

    `given` is an integer of any type, or a ``timedelta`` of Python, NumPy or pandas. A duration
    that is longer than 64 bits of milliseconds never ends.
    """
    if isinstance(given, np.timedelta64):
        milliseconds = _whole(_of_numpy(given, "timedelta"), given)
    elif isinstance(given, pd.Timedelta):
        return duration_ms(given.to_timedelta64())
    elif isinstance(given, timedelta) and not pd.isna(given):
        milliseconds = _whole(Fraction(given // timedelta(microseconds=1), 1_000), given)
    else:
        milliseconds = _integer(given, "duration")
    if milliseconds <= 0:
        raise ValueError("it is not above 0")
    return milliseconds


def whole_instants_ms(given: Numbers) -> Numbers | None:
    """Return the instants of a column of integers or of NumPy's times, if all of them are whole.

    ``None`` says that :func:`instant_ms` has to look at them one by one.
    """
    if given.dtype.kind == "i":
        return given
    if given.dtype.kind != "M":
        return None
    unit, count = np.datetime_data(given.dtype)
    per_ms = _PER_SECOND.get(unit, 0) // 1_000
    if count != 1 or per_ms == 0 or np.isnat(given).any():
        return None
    whole, rest = np.divmod(given.astype(np.int64), per_ms)
    return None if rest.any() else whole


def _instant(given: Any) -> int:
    if given is None or given is pd.NaT or given is pd.NA:
        raise ValueError("it is null")
    if isinstance(given, pa.Scalar):
        return _of_arrow(given)
    if type(given) is np.ndarray and given.ndim == 0:
        return _instant(given[()])
    if isinstance(given, np.datetime64):
        return _whole(_of_numpy(given, "datetime"), given)
    if isinstance(given, datetime):
        return _of_datetime(given)
    if isinstance(given, float | np.floating | Decimal | Fraction):
        return _of_fraction(given)
    return _integer(given, "instant")


def _integer(given: Any, what: str) -> int:
    if not isinstance(given, bool | np.bool_ | np.timedelta64 | np.ndarray):
        try:
            return operator.index(given)
        except TypeError:
            pass
    raise ValueError(f"it is no {what}")


def _of_arrow(given: pa.Scalar) -> int:
    if not given.is_valid:
        raise ValueError("it is null")
    if not pa.types.is_timestamp(given.type):
        return _instant(given.as_py())
    if given.type.tz is None:
        raise _without_zone()
    return _whole(Fraction(given.value * 1_000, _PER_SECOND[given.type.unit]), given)


def _of_datetime(given: datetime) -> int:
    if given.utcoffset() is None:
        raise _without_zone()
    if isinstance(given, pd.Timestamp):  # which may have nanoseconds
        return _instant(given.tz_convert(None).to_datetime64())
    since = given - datetime.fromtimestamp(0, timezone.utc)
    return _whole(Fraction(since // timedelta(microseconds=1), 1_000), given)


def _of_fraction(given: Any) -> int:
    try:
        numerator, denominator = given.as_integer_ratio()
    except (ValueError, OverflowError) as exc:  # NaN, infinity
        raise ValueError("it is no number") from exc
    return _whole(Fraction(numerator, denominator), given)


def _of_numpy(given: Any, kind: str) -> Fraction:
    """Return NumPy's time or duration in milliseconds, without its wrapping arithmetic."""
    unit, count = np.datetime_data(given.dtype)
    if np.isnat(given):
        raise ValueError("it is null")
    number = int(given.astype(np.int64)) * count
    if unit in _MONTHS and kind == "datetime":
        return Fraction(_days(number * _MONTHS[unit]) * _SECONDS["D"] * 1_000)
    if unit in _SECONDS:
        return Fraction(number * _SECONDS[unit] * 1_000)
    if unit not in _PER_SECOND:
        raise ValueError(f"its unit is {unit!r}")
    return Fraction(number * 1_000, _PER_SECOND[unit])


def _days(months: int) -> int:
    """Return the days from the beginning of 1970 to the beginning of a month counted from there."""
    years, month = divmod(months, 12)
    cycles, year = divmod(years, _YEARS)
    return cycles * _DAYS + (date(_FIRST_YEAR + year, month + 1, 1) - date(_FIRST_YEAR, 1, 1)).days


def _whole(milliseconds: Fraction, given: Any) -> int:
    if milliseconds.denominator != 1:
        raise ValueError(f"{given} lies between two milliseconds: round it")
    return milliseconds.numerator


def _in_64_bits(milliseconds: int) -> int:
    if not LEAST_MS <= milliseconds <= MOST_MS:
        raise ValueError("it does not fit 64 bits")
    return milliseconds


def _without_zone() -> ValueError:
    return ValueError("it has no time zone, so it is no instant: give it one")
