"""The form of values in JSON: nested columns on their way between JVM and Python.

Spark's ``to_json`` writes the text and ``from_json`` reads it (:mod:`json_in_spark`); this module
does the same on the executor. JSON loses the types of variants, so variants travel next to the
text, in the order of the text. Objects are shipped to executors, and compile their converters once
per schema and process.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Iterator, Sequence
from decimal import Context, Decimal
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any

import msgspec
from pyspark.sql import types as T

from pyspark_ckpt.operator.values.codec import TupleCodec
from pyspark_ckpt.operator.values.json_in_spark import JSON, VARIANTS, check_marked
from pyspark_ckpt.operator.values.leaves import (
    OWN_KINDS,
    PLAIN_TYPES,
    TIME_OF_DAY,
    decimal_writer,
    microseconds_of,
    taken,
    variant_parts,
)
from pyspark_ckpt.operator.values.time_zones import zone_of
from pyspark_ckpt.operator.values.wire_form import (
    Converter,
    WireForm,
    holds,
    reader_of,
    row_style,
    wire_type,
    writer_of,
)

_LEAF_TYPES: dict[type[T.DataType], Any] = {
    **PLAIN_TYPES,
    T.FloatType: float | str,
    T.DoubleType: float | str,
    T.DateType: datetime.date,
    T.TimestampNTZType: datetime.datetime,
    **dict.fromkeys(TIME_OF_DAY, datetime.time),
    T.DayTimeIntervalType: Decimal,
    T.VariantType: bool | int,  # when read: whether there is one; when written: its index
}
_MAX_MICROSECONDS = 1 << 63


class JsonForm(WireForm):
    """Structs are objects with the fields c0, c1, ..., maps are arrays of entries.

    With `of_plain`, leaves are written from plain values, as MessagePack stores them. `variants`
    has the variants of the value that is being written, in order, and `arriving` those of the value
    that is being read.
    """

    def __init__(self, *, of_plain: bool = False) -> None:
        self._of_plain = of_plain
        self.variants: list[T.VariantVal] = []
        self.arriving: Iterator[T.VariantVal] = iter(())

    def leaf_type(self, data_type: T.DataType) -> Any:
        """Return the msgspec type of a leaf."""
        return _LEAF_TYPES[type(data_type)]

    def leaf_writer(self, data_type: T.DataType) -> Converter:
        """Return a function from what a user gives for a leaf to its plain value."""
        if isinstance(data_type, T.DecimalType):
            return decimal_writer(data_type)
        if isinstance(data_type, T.VariantType):
            return self._put_parts if self._of_plain else self._put_variant
        if self._of_plain and isinstance(data_type, T.TimestampType):
            return _as_is
        write = _WRITERS.get(type(data_type))
        take = taken(data_type)
        if self._of_plain and isinstance(data_type, _AS_PLAIN_INTEGERS):
            take = data_type.fromInternal
        return take if write is None else _after(take, write)

    def kinds_as_they_are(self, data_type: T.DataType) -> frozenset[type]:
        """Return the Python types of which a value is its own plain value."""
        is_fraction = isinstance(data_type, T.DoubleType)  # whose NaN is a text
        return frozenset() if is_fraction else OWN_KINDS.get(type(data_type), frozenset())

    def leaf_reader(self, data_type: T.DataType) -> Converter | None:
        """Return a function from a plain value to the leaf, ``None`` if they are the same."""
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
        """Return a function from fields to a struct."""
        pack = _fields_class(width)
        return lambda values: pack(*values)

    def unpack_struct(self, width: int) -> Converter:
        """Return a function from a struct to its fields."""
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

    def _put_parts(self, parts: Any) -> int:
        return self._put_variant(T.VariantVal(*parts))

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


def _as_is(value: Any) -> Any:
    return value


def _number(value: float) -> Any:
    return value if math.isfinite(value) else _NOT_FINITE[str(value)]


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


_ALL_DIGITS = Context(prec=2 * 38)
"""Of any interval; the context of the thread may have fewer."""


def _interval(seconds: Decimal) -> datetime.timedelta:
    return datetime.timedelta(microseconds=int(seconds.scaleb(6, context=_ALL_DIGITS)))


def _seconds(value: Any) -> Decimal:
    microseconds = (value.days * 86400 + value.seconds) * 1_000_000 + value.microseconds
    if not -_MAX_MICROSECONDS <= microseconds < _MAX_MICROSECONDS:
        raise OverflowError(f"{value} is longer than Spark's longest interval")
    return Decimal(microseconds).scaleb(-6, context=_ALL_DIGITS)


_WRITERS: dict[type[T.DataType], Converter] = {
    T.FloatType: _number,
    T.DoubleType: _number,
    T.TimestampType: microseconds_of,
    T.DayTimeIntervalType: _seconds,
}


_AS_PLAIN_INTEGERS: tuple[type[T.DataType], ...] = (
    T.DateType, T.TimestampNTZType, *TIME_OF_DAY, T.DayTimeIntervalType,
)  # fmt: skip


def _after(read: Converter, write: Converter) -> Converter:
    return lambda value: write(read(value))


_REMEMBERED_KEYS = 4096


class JsonReader:
    """Reads the values of a column; timestamps are shown in `time_zone`."""

    def __init__(self, data_type: T.DataType, time_zone: str) -> None:
        self._arguments = (data_type, time_zone)
        self._read: Converter | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonReader, self._arguments

    def __call__(self, travelling: Any) -> Any:
        """Return the value as PySpark's rows hold it."""
        if self._read is None:
            self._read = _compiled_reader(*self._arguments)
        return self._read(travelling)


class JsonKey:
    """A key column: equal values have the same bytes, by which the shuffle groups rows."""

    def __init__(self, field: T.StructField, time_zone: str) -> None:
        self._arguments = (field, time_zone)
        self._read = JsonReader(field.dataType, time_zone)
        self._codec: TupleCodec | None = None
        self.canonical = lru_cache(_REMEMBERED_KEYS)(self._canonical)
        """Return the bytes of a travelling value; cached, because many rows have the same value."""

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonKey, self._arguments

    def canonical_text(self, text: str) -> Any:
        """Return the travelling value that all equal keys have, for one of theirs."""
        return json_writer(self._arguments[0].dataType)(self.shown(self.canonical(text)))

    def _canonical(self, text: str) -> bytes:
        return self._compiled().encode((self._read(text),))

    def shown(self, canonical: bytes) -> Any:
        """Return the key as the processor sees it."""
        return self._compiled().decode(canonical)[0]

    def _compiled(self) -> TupleCodec:
        if self._codec is None:
            self._codec = _key_codec(*self._arguments)
        return self._codec


def json_writer(data_type: T.DataType, *, of_plain: bool = False) -> Converter:
    """Return a function that writes the values of a column for ``from_travelling``.

    The function raises TypeError, ValueError, OverflowError or AttributeError if a value is not of
    the column's type.
    """
    return _compiled_writer(data_type, of_plain=of_plain)


@cache
def _compiled_reader(data_type: T.DataType, time_zone: str) -> Converter:
    form = JsonForm()
    decode = msgspec.json.Decoder(_column_type(form, data_type)).decode
    convert = reader_of(form, data_type, row_style(zone_of(time_zone)))

    def read(text: str) -> Any:
        try:
            value = decode(text).c0
        except msgspec.DecodeError:
            check_marked(text)
            raise
        return value if value is None or convert is None else convert(value)

    if not holds(data_type, T.VariantType):
        return read

    def read_with_variants(travelling: Any) -> Any:
        form.arriving = iter(travelling[VARIANTS])
        return read(travelling[JSON])

    return read_with_variants


@cache
def _compiled_writer(data_type: T.DataType, *, of_plain: bool) -> Converter:
    form = JsonForm(of_plain=of_plain)
    encode = msgspec.json.Encoder(decimal_format="number").encode
    check = msgspec.json.Decoder(_column_type(form, data_type)).decode
    convert, pack = writer_of(form, data_type), form.pack_struct(1)
    assert convert is not None  # JSON has no form of a value that proves its type

    def write(value: Any) -> str:
        text = encode(pack((convert(value),)))
        check(text)
        return text.decode()

    if not holds(data_type, T.VariantType):
        return write

    def write_with_variants(value: Any) -> dict[str, Any]:
        form.variants = []
        return {JSON: write(value), VARIANTS: form.variants}

    return write_with_variants


@cache
def _key_codec(field: T.StructField, time_zone: str) -> TupleCodec:
    style = row_style(zone_of(time_zone))
    what = f"key column {field.name!r}"
    return TupleCodec(T.StructType([field]), what, is_key=True, style=style)


def _column_type(form: JsonForm, data_type: T.DataType) -> Any:
    """Return the type of the object in the text; every row has one, also if it is null."""
    return form.struct_type([wire_type(form, data_type)])
