"""How each Spark type travels through pandas without loss.

Pandas changes the type of many columns that have nulls. So nulls travel as bits in mask columns.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.errors import NotBuiltYetError
from pyspark_ckpt.operator.task_failure import shown
from pyspark_ckpt.operator.values.json import JsonForm, JsonReader
from pyspark_ckpt.operator.values.json_in_spark import to_travelling, travelling_type
from pyspark_ckpt.operator.values.sent_columns import first_bad_text, is_text, values_of
from pyspark_ckpt.operator.values.time_zones import zone_of
from pyspark_ckpt.operator.values.wire_form import aware_timestamp, aware_timestamps, wire_type

MASK = "__ckpt_nulls_"
"""Prefix of the names of mask columns."""

_BITS = 62


class ValueNotHeldError(ValueError):
    """A column has a value of Spark that Python does not have."""


NOT_HELD = (ValueError, OverflowError, OSError, pa.ArrowException)
"""What Python and Arrow raise for times that Python does not have, and texts that are not UTF-8."""


class NullMasks:
    """The masks of a stream's rows, made in the plan and read on the executor.

    `nullable` has the places of the columns whose nulls travel as bits; a filler replaces the null
    itself. `parts` has the places of each mask, in the order of the bits.
    """

    def __init__(self, nullable: Sequence[int]) -> None:
        self.nullable = tuple(nullable)
        self.parts = [nullable[start : start + _BITS] for start in range(0, len(nullable), _BITS)]

    @property
    def fields(self) -> list[T.StructField]:
        """The fields of the mask columns in the sent schema."""
        return [T.StructField(f"{MASK}{n}", T.LongType()) for n in range(len(self.parts))]

    def columns(self, all_columns: Sequence[Column]) -> list[Column]:
        """Return the expressions of the masks over a stream's columns; called on the driver."""
        return [
            _mask([all_columns[index] for index in part]).alias(f"{MASK}{number}")
            for number, part in enumerate(self.parts)
        ]

    def flags(self, sent: pa.RecordBatch) -> dict[int, np.ndarray[Any, Any]]:
        """Return which rows are null, for each column that has nulls."""
        flags = {}
        for number, part in enumerate(self.parts):
            mask = sent.column(f"{MASK}{number}").to_numpy()
            if mask.any():
                for bit, index in enumerate(part):
                    column = (mask >> bit & 1).astype(bool)
                    if column.any():
                        flags[index] = column
        return flags


def _mask(columns: Sequence[Column]) -> Column:
    mask = F.lit(0).cast("long")
    for bit, column in enumerate(columns):
        mask = mask + F.when(column.isNull(), F.lit(1 << bit)).otherwise(F.lit(0)).cast("long")
    return mask


_EPOCH_ORDINAL = datetime.date(1970, 1, 1).toordinal()


@dataclass(frozen=True, slots=True)
class Transport:
    """How one Spark type travels: the plan's expression, a filler for nulls, and the way back.

    A filler of ``None`` means that pandas keeps this type's nulls by itself. `receive_all` is for a
    column, nulls included, where that takes less time.
    """

    send: Callable[[Column], Column]
    filler: Any
    receive: Callable[[Any], Any] | None = None
    receive_all: Callable[[Sequence[Any]], list[Any]] | None = None


def _as_is(column: Column) -> Column:
    return column


def _date(days: int) -> datetime.date:
    return datetime.date.fromordinal(days + _EPOCH_ORDINAL)


def _local_time(text: str) -> datetime.datetime:
    # Spark omits trailing zeros of the fraction, and Python 3.10 cannot read such a fraction.
    seconds, _, fraction = text.partition(".")
    time = datetime.datetime.fromisoformat(seconds)
    return time.replace(microsecond=int(fraction.ljust(6, "0") or 0)) if fraction else time


def _text(column: Column) -> Column:
    return column.cast("string")


_NUMBER = Transport(_as_is, 0)
_OBJECT = Transport(_as_is, None)
_TRANSPORTS: dict[type[T.DataType], Transport] = {
    T.ByteType: _NUMBER,
    T.ShortType: _NUMBER,
    T.IntegerType: _NUMBER,
    T.LongType: _NUMBER,
    T.FloatType: Transport(_as_is, 0.0),
    T.DoubleType: Transport(_as_is, 0.0),
    T.BooleanType: Transport(_as_is, filler=False),
    T.StringType: _OBJECT,
    T.BinaryType: _OBJECT,
    T.DecimalType: _OBJECT,
    T.DateType: Transport(F.unix_date, 0, _date),
    T.TimestampType: Transport(F.unix_micros, 0),
    T.TimestampNTZType: Transport(_text, None, _local_time),
}
_OTHER_TYPES: dict[type[T.DataType], T.DataType] = {
    T.DateType: T.IntegerType(),
    T.TimestampType: T.LongType(),
    T.TimestampNTZType: T.StringType(),
}
"""Types that travel as another type."""


def transport_of(field: T.StructField, time_zone: str) -> Transport:
    """Return how a column travels; timestamps arrive in `time_zone`, as PySpark gives them."""
    transport = _TRANSPORTS.get(type(field.dataType))
    if transport is None:
        return _json_transport(field, time_zone)
    if isinstance(field.dataType, T.TimestampType):
        zone = zone_of(time_zone)
        return replace(
            transport,
            receive=partial(aware_timestamp, zone),
            receive_all=partial(aware_timestamps, zone),
        )
    return transport


def _json_transport(field: T.StructField, time_zone: str) -> Transport:
    try:
        wire_type(JsonForm(), field.dataType)
    except NotBuiltYetError as exc:
        raise NotBuiltYetError(
            f"column {field.name!r}: {exc}; drop it or turn it into strings before key_by"
        ) from None
    reader = JsonReader(field.dataType, time_zone)
    return Transport(partial(to_travelling, field.dataType), None, reader)


def travels_as_json(data_type: T.DataType) -> bool:
    """Return whether a column of this type travels as JSON text; as a key it is then encoded."""
    return type(data_type) not in _TRANSPORTS


def sent_type(field: T.StructField) -> T.DataType:
    """Return the type in which a column travels."""
    if travels_as_json(field.dataType):
        return travelling_type(field.dataType)
    return _OTHER_TYPES.get(type(field.dataType), field.dataType)


def received(transport: Transport, value: Any) -> Any:
    """Return a value as the user's rows show it."""
    if value is None or transport.receive is None:
        return value
    return transport.receive(value)


def all_received(transport: Transport, values: list[Any]) -> list[Any]:
    """Return a column's values as the user's rows show them."""
    if transport.receive_all is not None:
        return transport.receive_all(values)
    receive = transport.receive
    if receive is None:
        return values
    return [None if value is None else receive(value) for value in values]


def check_held(
    field: T.StructField, transport: Transport, column: pa.Array | Sequence[Any]
) -> None:
    """Name the first value of a sent column that Python does not have, if there is one."""
    if isinstance(column, pa.Array):
        check_texts(field, column)
        column = values_of(column)
    value = None
    try:
        for value in column:  # the error names the last one
            received(transport, value)
    except UnicodeDecodeError as exc:
        raise text_not_held(field, exc.object) from exc
    except (ValueError, OverflowError, OSError) as exc:
        remedy = "cast it to text before key_by"
        if isinstance(field.dataType, T.DateType | T.TimestampType):
            remedy = f"use an ArrowProcessor, which has all of Spark's times, {remedy}"
        raise ValueNotHeldError(
            f"column {field.name!r} is {field.dataType.simpleString()} and has "
            f"{shown(in_words(field.dataType, value))}, which Python does not have ({exc}): "
            f"{remedy}, or leave out such rows"
        ) from exc


def check_texts(field: T.StructField, column: pa.Array | pa.ChunkedArray) -> None:
    """Name the first text of a column that is not UTF-8, if there is one.

    Spark makes such texts when it casts binaries or reads files of another encoding.
    """
    if is_text(column.type) and (found := first_bad_text(column)) is not None:
        raise text_not_held(field, found)


def text_not_held(field: T.StructField, data: bytes) -> ValueNotHeldError:
    """Return the error for a text of a column that is not UTF-8."""
    return ValueNotHeldError(
        f"column {field.name!r} is {field.dataType.simpleString()} and has the text "
        f"{shown(data)}, which is not UTF-8: {_remedy_of_text(field)}, or leave out such rows"
    )


def _remedy_of_text(field: T.StructField) -> str:
    if isinstance(field.dataType, T.StringType):
        name = field.name
        return (
            f"before key_by, read it in its encoding, such as decode(cast({name} as binary), "
            f"'ISO-8859-1'), replace what is wrong with make_valid_utf8({name}), or cast it to "
            "binary"
        )
    return "before key_by, replace what is wrong in its texts with make_valid_utf8"


def in_words(data_type: T.DataType, sent: Any) -> str:
    """Return a sent value as errors show it."""
    if isinstance(data_type, T.DateType):
        return str(np.datetime64(sent, "D"))
    if isinstance(data_type, T.TimestampType):
        return f"{np.datetime64(sent, 'us')}Z"
    return str(sent)
