"""Leaf values in all forms: which Python values a Spark type takes, and how they are narrowed.

The rule is one for states and output columns, see :func:`taken`: a type takes a value that means
the same in it. A UUID is not a text, a truth value is not a number, and a time of day is not a
date.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_float
from datetime import date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import partial
from typing import Annotated, Any

import msgspec
import numpy as np
import pandas as pd
from pyspark.sql import types as T

from pyspark_ckpt.operator.values.wire_form import Converter, local_timestamp

_BITS: dict[type[T.DataType], int] = {
    T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64,
}  # fmt: skip
TEXTS = (T.StringType, T.CharType, T.VarcharType)
"""Char and varchar are strings as in Spark's rows; Spark checks their length in tables only."""
TIME_OF_DAY: tuple[type[T.DataType], ...] = (T.TimeType,) if hasattr(T, "TimeType") else ()
"""The type of a time without a date; PySpark 4.1 added it."""

_INSTANT = T.TimestampType()
_SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  # of local times as well
_MIDNIGHT = time()


def bounded(bits: int) -> Any:
    """Return the msgspec type of integers of so many bits."""
    bound = 1 << (bits - 1)
    return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)]


PLAIN_TYPES: dict[type[T.DataType], Any] = {
    **{kind: bounded(bits) for kind, bits in _BITS.items()},
    **dict.fromkeys(TEXTS, str),
    T.BooleanType: bool,
    T.BinaryType: bytes,
    T.DecimalType: Decimal,
    T.TimestampType: bounded(64),
    T.YearMonthIntervalType: bounded(32),
    T.NullType: type(None),
}
"""Leaves that all forms encode alike; year-month intervals are months, as Python has no type."""


def taken(data_type: T.DataType) -> Converter:
    """Return a function from a value that a user gives for a leaf to the type's own Python value.

    The type's own value is an ``int``, ``float``, ``bool``, ``str``, ``bytes``, ``date``,
    ``datetime``, ``time``, ``timedelta``, ``Decimal`` or ``VariantVal``, and no subclass of it. The
    function never gets ``None``.
    """
    return _TAKEN[type(data_type)]


def _not(value: Any, what: str) -> TypeError:
    return TypeError(f"{type(value).__name__} is not {what}")


def _truth(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise _not(value, "a truth value")
    return bool(value)


def _integer(value: Any, what: str = "an integer") -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise _not(value, what)
    return int(value)


def _fraction(value: Any) -> float:
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
    whole = _integer(value, "a number")
    number = narrow(whole)
    if number != whole:
        raise ValueError(f"{value} has more digits than the type holds")
    return number


def _decimal(value: Any) -> Decimal:
    if not isinstance(value, Decimal):
        value = Decimal(_integer(value, "a decimal"))
    if not value.is_finite():
        raise ValueError(f"{value} is not a number")
    return Decimal(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _not(value, "a text")
    return str.__str__(value)


def _binary(value: Any) -> bytes:
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


def _moment(value: Any) -> datetime:
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


def _day(value: Any) -> date:
    """Return a date; a datetime is one at midnight."""
    if type(value) is date:
        return value
    if isinstance(value, date) and not isinstance(value, datetime):
        return date(value.year, value.month, value.day)
    if not isinstance(value, datetime | np.datetime64) or value is pd.NaT:
        raise _not(value, "a date")
    moment = _moment(value)
    if moment.time() != _MIDNIGHT:
        raise ValueError(f"{value} has a time of day, which a date would lose: give its date()")
    return moment.date()


def _local_time(value: Any) -> datetime:
    moment = _moment(value)
    if moment.tzinfo is not None:
        raise TypeError(f"{value} has a time zone, which a time without one would lose")
    return moment


def _time_of_day(value: Any) -> time:
    if not isinstance(value, time):
        raise _not(value, "a time of day")
    if value.tzinfo is not None:
        raise TypeError(f"{value} has a time zone, which a time of day would lose")
    return time(value.hour, value.minute, value.second, value.microsecond)


def _duration(value: Any) -> timedelta:
    value = _of_numpy(value)
    if not isinstance(value, timedelta):
        raise _not(value, "a timedelta")
    if not isinstance(value, pd.Timedelta):
        return timedelta(value.days, value.seconds, value.microseconds)
    if value.nanoseconds:
        raise ValueError(f"{value} has nanoseconds: round it to microseconds, as floor('us') does")
    return value.to_pytimedelta()


def _variant(value: Any) -> T.VariantVal:
    if not isinstance(value, T.VariantVal):
        raise _not(value, "a VariantVal")
    return value


def _nothing(value: Any) -> None:
    raise TypeError(f"{type(value).__name__} is not null, and the type has nothing else")


_TAKEN: dict[type[T.DataType], Converter] = {
    **dict.fromkeys((*_BITS, T.YearMonthIntervalType), _integer),
    **dict.fromkeys(TEXTS, _text),
    **dict.fromkeys(TIME_OF_DAY, _time_of_day),
    T.BooleanType: _truth,
    T.FloatType: narrowed,
    T.DoubleType: _fraction,
    T.DecimalType: _decimal,
    T.BinaryType: _binary,
    T.DateType: _day,
    T.TimestampType: _moment,
    T.TimestampNTZType: _local_time,
    T.DayTimeIntervalType: _duration,
    T.VariantType: _variant,
    T.NullType: _nothing,
}

OWN_KINDS: dict[type[T.DataType], frozenset[type]] = {
    **dict.fromkeys((*_BITS, T.YearMonthIntervalType), frozenset({int})),
    **dict.fromkeys(TEXTS, frozenset({str})),
    T.BooleanType: frozenset({bool}),
    T.DoubleType: frozenset({float}),
    T.BinaryType: frozenset({bytes}),
}
"""Python types whose values :func:`taken` returns as they are; it need not be called for them."""


def decimal_writer(data_type: T.DecimalType) -> Converter:
    """Return a function that rounds decimals to the type's scale, or raises if they do not fit."""
    context = Context(prec=data_type.precision, rounding=ROUND_HALF_UP)
    return partial(_scaled, context, Decimal(1).scaleb(-data_type.scale), data_type)


def _scaled(context: Context, unit: Decimal, data_type: T.DecimalType, value: Any) -> Decimal:
    value = _decimal(value)
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
    moment = _moment(value)
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
    value = _variant(value)
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
