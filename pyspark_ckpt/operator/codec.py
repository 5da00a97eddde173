"""The typed codec: tuples to bytes and back, by a Spark schema. MessagePack, never pickle.

What is encoded is checked by decoding it with the types of the schema: at 0.1 us that is both the
cheapest check and the strictest, since it proves that the value can be read again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from pyspark.sql import types as T

from pyspark_ckpt.errors import NotBuiltYetError, PlanError, StateValueError
from pyspark_ckpt.operator.leaf_values import unwrapped
from pyspark_ckpt.operator.message_pack_form import MESSAGE_PACK, canonical_fields
from pyspark_ckpt.operator.user_frames import shown
from pyspark_ckpt.operator.wire_form import (
    STATE_STYLE,
    ValueStyle,
    fields_reader,
    fields_writer,
    wire_type,
)


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
    style
        The Python objects that decoded tuples hold; by default those of PySpark's state.

    Raises
    ------
    NotBuiltYetError
        If the schema has a type that is not built yet.
    PlanError
        If keys are to hold a variant: equal ones may have different bytes.
    """

    def __init__(
        self,
        schema: T.StructType,
        what: str,
        *,
        is_key: bool = False,
        style: ValueStyle = STATE_STYLE,
    ) -> None:
        self._schema = schema
        self._what = what
        types = tuple(_wire_type(field.dataType, what) for field in schema.fields)
        if is_key:
            _check_key(schema, what)
        self._decoder = msgspec.msgpack.Decoder(tuple.__class_getitem__(types))
        self._encoder = msgspec.msgpack.Encoder(enc_hook=unwrapped)
        self._write = fields_writer(MESSAGE_PACK, schema)
        self._read = fields_reader(MESSAGE_PACK, schema, style)
        self._is_key = is_key
        self._canonical = canonical_fields(schema) if is_key else None

    def encode(self, values: Any) -> bytes:
        """Encode one tuple.

        Raises
        ------
        StateValueError
            If it does not fit the schema.
        """
        try:
            values = tuple(values)
            wire = values if self._write is None else self._write(values)
            data = self._encoder.encode(wire)
            checked = self._decoder.decode(data)
        except (msgspec.ValidationError, TypeError, OverflowError, AttributeError, ValueError) as e:
            raise StateValueError(
                f"{self._what}: {shown(values)} does not fit the schema "
                f"{self._schema.simpleString()} "
                f"({e}); give a tuple with one value per field"
            ) from e
        if not self._is_key:
            return data
        # Decoded by type, 1 and 1.0 have become one.
        return self._encoder.encode(
            checked if self._canonical is None else self._canonical(checked)
        )

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Decode one tuple.

        Raises
        ------
        StateValueError
            If the bytes were written with another schema.
        """
        try:
            wire: tuple[Any, ...] = self._decoder.decode(data)
        except msgspec.MsgspecError as e:
            raise StateValueError(
                f"{self._what}: stored bytes do not fit the schema "
                f"{self._schema.simpleString()} ({e})"
            ) from e
        return wire if self._read is None else self._read(wire)


def key_encoder() -> Callable[[Any], bytes]:
    """Return the encoder of key tuples in their shuffle form; equal keys give equal bytes."""
    return msgspec.msgpack.Encoder().encode


def holds(data_type: T.DataType, kinds: type[T.DataType] | tuple[type[T.DataType], ...]) -> bool:
    """Tell whether a type is, or has inside, one of these kinds."""
    if isinstance(data_type, kinds):
        return True
    inner = {
        T.ArrayType: ["elementType"], T.MapType: ["keyType", "valueType"],
    }.get(type(data_type), [])  # fmt: skip
    if isinstance(data_type, T.StructType):
        return any(holds(field.dataType, kinds) for field in data_type.fields)
    return any(holds(getattr(data_type, name), kinds) for name in inner)


def _check_key(schema: T.StructType, what: str) -> None:
    if holds(schema, T.VariantType):
        raise PlanError(
            f"{what}: {schema.simpleString()} has a variant, which cannot be (part of) a key; "
            "take the values that identify it out of the variant"
        )


def _wire_type(data_type: T.DataType, what: str) -> Any:
    try:
        return wire_type(MESSAGE_PACK, data_type)
    except NotBuiltYetError as e:
        raise NotBuiltYetError(f"{what}: {e}") from None
