"""The form of values in JSON: what nested columns are on their way to and from the JVM.

Spark's ``to_json`` writes it and its ``from_json`` reads it; see :mod:`json_expressions`. Variants
have no JSON that keeps their types, so they travel beside the text, in the order of the text.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from functools import cache
from operator import attrgetter
from typing import Any

import msgspec
from pyspark.sql import types as T

from pyspark_ckpt.operator.leaf_values import (
    PLAIN_TYPES,
    TIME_OF_DAY,
    decimal_writer,
    narrowed,
    number,
    variant_parts,
)
from pyspark_ckpt.operator.wire_form import Converter, WireForm

_LEAF_TYPES: dict[type[T.DataType], Any] = {
    **PLAIN_TYPES,
    T.FloatType: float | str,
    T.DoubleType: float | str,
    T.DateType: datetime.date,
    T.TimestampNTZType: datetime.datetime,
    **dict.fromkeys(TIME_OF_DAY, datetime.time),
    T.DayTimeIntervalType: Decimal,
    T.VariantType: bool | int,  # read: there is one; written: its index
}
_MAX_MICROSECONDS = 1 << 63


class JsonForm(WireForm):
    """Structs are objects with the fields c0, c1, ..., maps are arrays of entries.

    Attributes
    ----------
    variants
        The variants of the value that is written, in order.
    arriving
        Those of the value that is read.
    """

    def __init__(self) -> None:
        self.variants: list[T.VariantVal] = []
        self.arriving: Iterator[T.VariantVal] = iter(())

    def leaf_type(self, data_type: T.DataType) -> Any:
        """Return the msgspec type of a leaf."""
        return _LEAF_TYPES[type(data_type)]

    def leaf_writer(self, data_type: T.DataType) -> Converter | None:
        """Return what turns a leaf into its plain value."""
        if isinstance(data_type, T.DecimalType):
            return decimal_writer(data_type)
        if isinstance(data_type, T.TimestampType):
            return data_type.toInternal
        if isinstance(data_type, T.VariantType):
            return self._put_variant
        return _WRITERS.get(type(data_type))

    def leaf_reader(self, data_type: T.DataType) -> Converter | None:
        """Return what turns a plain value back."""
        if isinstance(data_type, T.FloatType | T.DoubleType):
            return float
        if isinstance(data_type, T.DayTimeIntervalType):
            return _interval
        return self._take_variant if isinstance(data_type, T.VariantType) else None

    def struct_type(self, field_types: Sequence[Any]) -> Any:
        """Return the msgspec type of a struct."""
        fields = [(f"c{index}", kind) for index, kind in enumerate(field_types)]
        return msgspec.defstruct("Fields", fields, forbid_unknown_fields=True, gc=False)

    def map_type(self, key_type: Any, value_type: Any) -> Any:
        """Return the msgspec type of a map."""
        return list.__class_getitem__(self.struct_type([key_type, value_type]))

    def pack_struct(self, width: int) -> Converter:
        """Return what makes a struct of its fields."""
        pack = _fields_class(width)
        return lambda values: pack(*values)

    def unpack_struct(self, width: int) -> Converter:
        """Return what gives the fields of a struct."""
        names = [f"c{index}" for index in range(width)]
        if width > 1:
            return attrgetter(*names)
        return (lambda wire: (wire.c0,)) if width else lambda wire: ()  # noqa: ARG005

    def pack_map(self, entries: Iterable[tuple[Any, Any]]) -> Any:
        """Return the plain value of a map."""
        return [_Entry(*entry) for entry in entries]

    def unpack_map(self, wire: Any) -> Iterable[tuple[Any, Any]]:
        """Return the entries of a map's plain value."""
        return map(_entry, wire)

    def _put_variant(self, value: Any) -> int:
        self.variants.append(T.VariantVal(*variant_parts(value)))
        return len(self.variants) - 1

    def _take_variant(self, _: Any) -> T.VariantVal:
        return next(self.arriving)


@cache
def _fields_class(width: int) -> Any:
    return msgspec.defstruct("Fields", [(f"c{index}", Any) for index in range(width)], gc=False)


_Entry = _fields_class(2)
_entry = attrgetter("c0", "c1")


def _double(value: Any) -> Any:
    value = number(value)
    return value if math.isfinite(value) else _NOT_FINITE[str(float(value))]


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _float(value: Any) -> Any:
    return _double(narrowed(value))


def _date(value: Any) -> datetime.date:
    return datetime.date(value.year, value.month, value.day)


def _local_time(value: Any) -> datetime.datetime:
    return datetime.datetime.combine(value.date(), value.time())


def _time(value: Any) -> datetime.time:
    if not isinstance(value, datetime.time):
        raise TypeError(f"{type(value).__name__} is no time")
    return value.replace(tzinfo=None)


def _interval(seconds: Decimal) -> datetime.timedelta:
    return datetime.timedelta(microseconds=int(seconds.scaleb(6)))


def _seconds(value: Any) -> Decimal:
    microseconds = (value.days * 86400 + value.seconds) * 1_000_000 + value.microseconds
    if not -_MAX_MICROSECONDS <= microseconds < _MAX_MICROSECONDS:
        raise OverflowError(f"{value} is longer than Spark's longest interval")
    return Decimal(microseconds).scaleb(-6)


_WRITERS: dict[type[T.DataType], Converter] = {
    T.FloatType: _float,
    T.DoubleType: _double,
    T.DateType: _date,
    T.TimestampNTZType: _local_time,
    **dict.fromkeys(TIME_OF_DAY, _time),
    T.DayTimeIntervalType: _seconds,
}
