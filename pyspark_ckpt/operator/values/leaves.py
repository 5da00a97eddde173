"""Leaf values in all forms: the Python types they accept, and how they are narrowed."""

from __future__ import annotations

from ctypes import c_float
from datetime import datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import partial
from typing import Annotated, Any

import msgspec
import numpy as np
from pyspark.sql import types as T

from pyspark_ckpt.operator.values.wire_form import Converter

_BITS: dict[type[T.DataType], int] = {
    T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64,
}  # fmt: skip
TEXTS = (T.StringType, T.CharType, T.VarcharType)
"""Char and varchar are strings as in Spark's rows; Spark checks their length in tables only."""
TIME_OF_DAY: tuple[type[T.DataType], ...] = (T.TimeType,) if hasattr(T, "TimeType") else ()
"""The type of a time without a date; PySpark 4.1 added it."""

_INSTANT = T.TimestampType()
_SECOND = 1_000_000


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


def narrowed(value: Any) -> float:
    """Return a number as a 32-bit float; a number beyond its range becomes infinite."""
    return c_float(number(value)).value


def number(value: Any) -> Any:
    """Return a number as a plain Python number; raise TypeError for other values."""
    if isinstance(value, float):
        return value
    value = unwrapped(value) if hasattr(value, "item") else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{type(value).__name__} is no number")
    return value


def decimal_writer(data_type: T.DecimalType) -> Converter:
    """Return a function that rounds decimals to the type's scale, or raises if they do not fit."""
    context = Context(prec=data_type.precision, rounding=ROUND_HALF_UP)
    return partial(_scaled, context, Decimal(1).scaleb(-data_type.scale), data_type)


def _scaled(context: Context, unit: Decimal, data_type: T.DecimalType, value: Any) -> Decimal:
    if not isinstance(value, Decimal):
        value = number(value)
        if isinstance(value, float):
            raise TypeError("float is no decimal")
        value = Decimal(value)
    if not value.is_finite():
        raise ValueError(f"{value} is no number")
    try:
        scaled: Decimal = value.quantize(unit, context=context)
    except InvalidOperation as exc:
        raise ValueError(f"{value} does not fit {data_type.simpleString()}") from exc
    return scaled or scaled.copy_abs()  # Spark knows no -0


def microseconds_of(time: Any) -> int:
    """Return an instant as microseconds since 1970; a time without a zone is of the local one.

    PySpark's ``toInternal`` asks ``mktime``, which guesses the first or the second of two equal
    local times; here the time's ``fold`` says it, as PySpark sets it where it reads an instant.
    """
    if time.tzinfo is None:
        try:  # pandas has a timestamp() of its own, which takes the time for one in UTC
            seconds = round(datetime.timestamp(time) - time.microsecond / _SECOND)
            microseconds: int = seconds * _SECOND + time.microsecond
            return microseconds
        except (ValueError, OverflowError):
            pass  # Python cannot look a day beyond the first and the last year
    return int(_INSTANT.toInternal(time))


def variant_parts(value: Any) -> tuple[bytes, bytes]:
    """Return the two binaries of a variant."""
    if not isinstance(value, T.VariantVal):
        raise TypeError(f"{type(value).__name__} is no VariantVal")
    return bytes(value.value), bytes(value.metadata)


def unwrapped(value: Any) -> Any:
    """Return a numpy value or bytes-like value as a type that msgspec encodes."""
    if isinstance(value, np.ndarray) and value.ndim:
        return value.tolist()
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{type(value).__name__} is no Spark SQL value")
