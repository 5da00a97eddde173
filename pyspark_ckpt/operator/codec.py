"""The typed codec: tuples to bytes and back, by a Spark schema. MessagePack, never pickle.

What is encoded is checked by decoding it with the types of the schema: at 0.1 us that is both the
cheapest check and the strictest, since it proves that the value can be read again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Annotated, Any

import msgspec
from pyspark.sql import types as T

from pyspark_ckpt.errors import NotBuiltYetError, StateValueError

_INTEGER_BITS: dict[type[T.DataType], int] = {
    T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64,
    T.DateType: 32, T.TimestampType: 64, T.TimestampNTZType: 64,
}  # fmt: skip
_PLAIN: dict[type[T.DataType], Any] = {
    T.FloatType: float,
    T.DoubleType: float,
    T.BooleanType: bool,
    T.StringType: str,
    T.BinaryType: bytes,
    T.DecimalType: Decimal,
}


_NAN = float("nan")


class TupleCodec:
    """Encodes and decodes the tuples of one schema.

    Parameters
    ----------
    schema
        The Spark schema of the tuples.
    what
        What they are, for errors: ``state 'count'``.
    is_key
        Whether equal tuples must give equal bytes, as keys of a map must.
    """

    def __init__(self, schema: T.StructType, what: str, *, is_key: bool = False) -> None:
        self._is_key = is_key
        self._schema = schema
        self._what = what
        types = tuple(_wire_type(field.dataType, what) for field in schema.fields)
        self._decoder = msgspec.msgpack.Decoder(tuple.__class_getitem__(types))
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_unwrap_numpy)
        self._converts = any(
            field.dataType.needConversion() or isinstance(field.dataType, T.DecimalType)
            for field in schema.fields
        )

    def encode(self, values: Any) -> bytes:
        """Encode one tuple.

        Raises
        ------
        StateValueError
            If it does not fit the schema.
        """
        try:
            wire = self._to_wire(values) if self._converts else tuple(values)
            data = self._encoder.encode(wire)
            checked = self._decoder.decode(data)
        except (msgspec.ValidationError, TypeError, OverflowError, AttributeError, ValueError) as e:
            raise StateValueError(
                f"{self._what}: {values!r} does not fit the schema {self._schema.simpleString()} "
                f"({e}); give a tuple with one value per field"
            ) from e
        # Decoded by type, 1 and 1.0 have become one.
        return self._encoder.encode(tuple(map(_canonical, checked))) if self._is_key else data

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Decode one tuple.

        Raises
        ------
        StateValueError
            If the bytes were written with another schema.
        """
        try:
            wire = self._decoder.decode(data)
        except msgspec.MsgspecError as e:
            raise StateValueError(
                f"{self._what}: stored bytes do not fit the schema "
                f"{self._schema.simpleString()} ({e})"
            ) from e
        return self._from_wire(wire) if self._converts else wire

    def _to_wire(self, values: Any) -> tuple[Any, ...]:
        values = tuple(values)
        if len(values) != len(self._schema.fields):
            raise ValueError(f"{len(values)} values for {len(self._schema.fields)} fields")
        return tuple(
            _to_wire(field.dataType, value)
            for field, value in zip(self._schema.fields, values, strict=True)
        )

    def _from_wire(self, wire: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            field.dataType.fromInternal(value) if field.dataType.needConversion() else value
            for field, value in zip(self._schema.fields, wire, strict=True)
        )


def _to_wire(data_type: T.DataType, value: Any) -> Any:
    if isinstance(data_type, T.DecimalType) and isinstance(value, Decimal):
        return _scaled(data_type, value)
    return data_type.toInternal(value) if data_type.needConversion() else value


def _scaled(data_type: T.DecimalType, value: Decimal) -> Decimal:
    """Round a decimal to its type's scale, as Spark does, and refuse one that has no room."""
    if not value.is_finite():
        raise ValueError(f"{value} is no number")
    context = Context(prec=data_type.precision, rounding=ROUND_HALF_UP)
    try:
        return value.quantize(Decimal(1).scaleb(-data_type.scale), context=context)
    except InvalidOperation as exc:
        raise ValueError(f"{value} does not fit {data_type.simpleString()}") from exc


def _canonical(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return _NAN if math.isnan(value) else value + 0.0


def key_encoder() -> Callable[[Any], bytes]:
    """Return the encoder of key tuples in their shuffle form; equal keys give equal bytes."""
    return msgspec.msgpack.Encoder().encode


def _wire_type(data_type: T.DataType, what: str) -> Any:
    bits = _INTEGER_BITS.get(type(data_type))
    if bits is not None:
        bound = 1 << (bits - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)] | None
    plain = _PLAIN.get(type(data_type))
    if plain is not None:
        return plain | None
    if isinstance(data_type, T.ArrayType):
        return list.__class_getitem__(_wire_type(data_type.elementType, what)) | None
    if isinstance(data_type, T.StructType):
        fields = tuple(_wire_type(field.dataType, what) for field in data_type.fields)
        return tuple.__class_getitem__(fields) | None
    if isinstance(data_type, T.MapType):
        key = _wire_type(data_type.keyType, what)
        return dict.__class_getitem__((key, _wire_type(data_type.valueType, what))) | None
    raise NotBuiltYetError(f"{what}: values of type {data_type.simpleString()} are not built yet")


def _unwrap_numpy(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{type(value).__name__} is no Spark SQL value")
