"""What users give for a leaf: which Python values a Spark type takes, and how they are narrowed.

The rule is one for states and output columns: a type takes a value that means the same in it. A
UUID is not a text, a truth value is not a number, and a time of day is not a date. Each function
returns the type's own value: an ``int``, ``float``, ``bool``, ``str``, ``bytes``, ``date``,
``datetime``, ``time``, ``timedelta``, ``Decimal`` or ``VariantVal``, and no subclass of it. None of
them gets ``None``.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from ctypes import c_float
from datetime import date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import types as T

Converter = Callable[[Any], Any]

_INSTANT = T.TimestampType()
_SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  # of local times as well
_MIDNIGHT = time()


def _not(value: Any, what: str) -> TypeError:
    return TypeError(f"{type(value).__name__} is not {what}")


def as_truth(value: Any) -> bool:
    """Return a truth value of Python or NumPy."""
    if not isinstance(value, bool | np.bool_):
        raise _not(value, "a truth value")
    return bool(value)


def as_integer(value: Any, what: str = "an integer") -> int:
    """Return a whole number; a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise _not(value, what)
    return int(value)


def as_fraction(value: Any) -> float:
    """Return a float, or a whole number as the float that is equal to it."""
    if isinstance(value, float | np.floating):
        return float(value)
    return _exact(value, float)


def narrowed(value: Any) -> float:
    """Return a number as a 32-bit float; a number beyond its range becomes infinite."""
    if isinstance(value, float | np.floating):
        return c_float(float(value)).value
    return _exact(value, lambda whole: c_float(whole).value)


def _exact(value: Any, narrow: Callable[[int], float]) -> float:
    """Return an integer as a float that is equal to it."""
    whole = as_integer(value, "a number")
    number = narrow(whole)
    if number != whole:
        raise ValueError(f"{value} has more digits than the type holds")
    return number


def as_decimal(value: Any) -> Decimal:
    """Return a finite decimal, or a whole number as one."""
    if not isinstance(value, Decimal):
        value = Decimal(as_integer(value, "a decimal"))
    if not value.is_finite():
        raise ValueError(f"{value} is not a number")
    return Decimal(value)


def as_text(value: Any) -> str:
    """Return a text as ``str`` itself."""
    if not isinstance(value, str):
        raise _not(value, "a text")
    return str.__str__(value)


def as_binary(value: Any) -> bytes:
    """Return bytes, also of other kinds of memory."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _not(value, "bytes")
    return bytes(value)  # also of a memory whose bytes are not side by side


def _of_numpy(value: Any) -> Any:
    """Return a time of NumPy as Python's, any other value as it is."""
    if not isinstance(value, np.datetime64 | np.timedelta64):
        return value
    in_microseconds = value.astype(f"{value.dtype.kind}8[us]")
    if not np.isnat(value) and in_microseconds != value:
        raise ValueError(f"{value} has nanoseconds: round it to microseconds")
    return in_microseconds.item()


def as_moment(value: Any) -> datetime:
    """Return a datetime of Python; those of pandas and NumPy if they have no nanoseconds."""
    if type(value) is datetime:
        return value
    value = _of_numpy(value)
    if not isinstance(value, datetime) or value is pd.NaT:
        raise _not(value, "a time")
    if not isinstance(value, pd.Timestamp):  # another subclass may show itself otherwise
        return datetime.combine(value.date(), value.time(), value.tzinfo)
    if value.nanosecond:
        raise ValueError(f"{value} has nanoseconds: round it to microseconds, as floor('us') does")
    return value.to_pydatetime()


def as_day(value: Any) -> date:
    """Return a date; a datetime is one at midnight."""
    if type(value) is date:
        return value
    if isinstance(value, date) and not isinstance(value, datetime):
        return date(value.year, value.month, value.day)
    if not isinstance(value, datetime | np.datetime64) or value is pd.NaT:
        raise _not(value, "a date")
    moment = as_moment(value)
    if moment.time() != _MIDNIGHT:
        raise ValueError(f"{value} has a time of day, which a date would lose: give its date()")
    return moment.date()


def as_local_time(value: Any) -> datetime:
    """Return a datetime that has no time zone."""
    moment = as_moment(value)
    if moment.tzinfo is not None:
        raise TypeError(f"{value} has a time zone, which a time without one would lose")
    return moment


def as_time_of_day(value: Any) -> time:
    """Return a time of day that has no time zone."""
    if not isinstance(value, time):
        raise _not(value, "a time of day")
    if value.tzinfo is not None:
        raise TypeError(f"{value} has a time zone, which a time of day would lose")
    return time(value.hour, value.minute, value.second, value.microsecond)


def as_duration(value: Any) -> timedelta:
    """Return a timedelta; those of pandas and NumPy if they have no nanoseconds."""
    value = _of_numpy(value)
    if not isinstance(value, timedelta):
        raise _not(value, "a timedelta")
    if not isinstance(value, pd.Timedelta):
        return timedelta(value.days, value.seconds, value.microseconds)
    if value.nanoseconds:
        raise ValueError(f"{value} has nanoseconds: round it to microseconds, as floor('us') does")
    return value.to_pytimedelta()


def as_variant(value: Any) -> T.VariantVal:
    """Return a variant of PySpark."""
    if not isinstance(value, T.VariantVal):
        raise _not(value, "a VariantVal")
    return value


def as_nothing(value: Any) -> None:
    """Refuse any value, because only null is one."""
    raise TypeError(f"{type(value).__name__} is not null, and the type has nothing else")


def decimal_writer(data_type: T.DecimalType) -> Converter:
    """Return a function that rounds decimals to the type's scale, or raises if they do not fit."""
    context = Context(prec=data_type.precision, rounding=ROUND_HALF_UP)
    return partial(_scaled, context, Decimal(1).scaleb(-data_type.scale), data_type)


def _scaled(context: Context, unit: Decimal, data_type: T.DecimalType, value: Any) -> Decimal:
    value = as_decimal(value)
    try:
        scaled: Decimal = value.quantize(unit, context=context)
    except InvalidOperation as exc:
        raise ValueError(f"{value} does not fit {data_type.simpleString()}") from exc
    return scaled or scaled.copy_abs()  # Spark knows no -0


def microseconds_of(value: Any) -> int:
    """Return an instant as microseconds since 1970; a time without a zone is of the local one.

    PySpark's ``toInternal`` asks ``mktime``, which guesses the first or the second of two equal
    local times; here the time's ``fold`` says it, as PySpark sets it where it reads an instant.
    """
    moment = as_moment(value)
    offset = moment.utcoffset()
    if offset is not None:
        # In whole numbers, because the first and the last instant have no time in UTC.
        return _microseconds(moment.replace(tzinfo=None) - _EPOCH) - _microseconds(offset)
    try:
        seconds = round(moment.timestamp() - moment.microsecond / _SECOND)
        return seconds * _SECOND + moment.microsecond
    except (ValueError, OverflowError):
        pass  # Python cannot look a day beyond the first and the last year
    return int(_INSTANT.toInternal(moment.replace(tzinfo=None)))


def _microseconds(duration: timedelta) -> int:
    return (duration.days * 86400 + duration.seconds) * _SECOND + duration.microseconds


def local_timestamp(microseconds: int) -> datetime:
    """Return an instant as a time of this process's zone, as PySpark's state shows it.

    A local time outside the years 1 to 9999 raises ValueError, OverflowError or OSError.
    """
    try:
        return _INSTANT.fromInternal(microseconds)
    except (ValueError, OverflowError, OSError):
        # It looks a day ahead and back, and the first and the last day have none there.
        seconds, rest = divmod(microseconds, 1_000_000)
        return datetime(*clock.localtime(seconds)[:6], rest)  # noqa: DTZ001


_SHOWN_EVERYWHERE = range(
    _microseconds(datetime(2, 1, 1) - _EPOCH),  # noqa: DTZ001
    _microseconds(datetime(9999, 1, 1) - _EPOCH),  # noqa: DTZ001
)
"""Instants that are in one of Python's years in any time zone."""


def shown_microseconds_of(value: Any) -> int:
    """Return :func:`microseconds_of`, of an instant that :func:`local_timestamp` can show."""
    microseconds = microseconds_of(value)
    if microseconds not in _SHOWN_EVERYWHERE:
        try:
            local_timestamp(microseconds)
        except (ValueError, OverflowError, OSError) as exc:
            raise ValueError(
                f"Python has no time for it in this worker's time zone, so it could not be read: "
                f"{exc}"
            ) from exc
    return microseconds


def variant_parts(value: Any) -> tuple[bytes, bytes]:
    """Return the two binaries of a variant."""
    value = as_variant(value)
    return bytes(value.value), bytes(value.metadata)


_EXACT_FLOATS = range(-(2**53), 2**53 + 1)
"""Integers that are equal to a float only if they are that number: to NumPy others are, too."""


def unwrapped(value: Any) -> Any:
    """Return a scalar of NumPy as Python's, if a comparison says whether it was read as it is."""
    if not isinstance(value, np.generic):
        raise TypeError(f"{type(value).__name__} is not a Spark SQL value")
    plain = value.item()
    if isinstance(plain, int) and plain not in _EXACT_FLOATS:
        raise TypeError(f"{plain} has more digits than a comparison of NumPy looks at")
    return plain
