"""Columns that travel as JSON text, on the executor: read from rows, written to rows, as keys.

Objects here are shipped to executors, and compile what they need once per schema and process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
from pyarrow.lib import string_to_tzinfo
from pyspark.sql import types as T

from pyspark_ckpt.operator.codec import TupleCodec, holds
from pyspark_ckpt.operator.json_form import JsonForm
from pyspark_ckpt.operator.leaf_values import unwrapped
from pyspark_ckpt.operator.wire_form import reader_of, row_style, wire_type, writer_of


@dataclass(frozen=True, slots=True)
class JsonReader:
    """Reads the values of a column; timestamps are shown in `time_zone`."""

    data_type: T.DataType
    time_zone: str

    def __call__(self, travelling: Any) -> Any:
        """Return the value as PySpark's rows hold it."""
        return _compiled_reader(self.data_type, self.time_zone)(travelling)


@dataclass(frozen=True, slots=True)
class JsonWriter:
    """Writes the values of a column for ``from_travelling``."""

    data_type: T.DataType

    def __call__(self, value: Any) -> Any:
        """Return what travels.

        Raises
        ------
        TypeError, ValueError, OverflowError, AttributeError
            If the value is not of the column's type.
        """
        return _compiled_writer(self.data_type)(value)


@dataclass(frozen=True, slots=True)
class JsonKey:
    """A key column: equal values get the same bytes, which are its form in the shuffle's groups."""

    field: T.StructField
    time_zone: str

    def canonical(self, text: str) -> bytes:
        """Return the bytes of a travelling value."""
        value = _compiled_reader(self.field.dataType, self.time_zone)(text)
        return _key_codec(self.field, self.time_zone).encode((value,))

    def shown(self, canonical: bytes) -> Any:
        """Return the key as the user's processor sees it."""
        return _key_codec(self.field, self.time_zone).decode(canonical)[0]


@cache
def _compiled_reader(data_type: T.DataType, time_zone: str) -> Callable[[Any], Any]:
    form = JsonForm()
    decode = msgspec.json.Decoder(_column_type(form, data_type)).decode
    convert = reader_of(form, _column(data_type), row_style(string_to_tzinfo(time_zone)))
    assert convert is not None  # it takes the object around the value away
    if not holds(data_type, T.VariantType):
        return lambda text: convert(decode(text))["c0"]

    def read(travelling: Any) -> Any:
        form.arriving = iter(travelling["variants"])
        return convert(decode(travelling["json"]))["c0"]

    return read


@cache
def _compiled_writer(data_type: T.DataType) -> Callable[[Any], Any]:
    form = JsonForm()
    encode = msgspec.json.Encoder(enc_hook=unwrapped, decimal_format="number").encode
    check = msgspec.json.Decoder(_column_type(form, data_type)).decode
    convert = writer_of(form, _column(data_type))
    assert convert is not None

    def write(value: Any) -> str:
        text = encode(convert((value,)))
        check(text)
        return text.decode()

    if not holds(data_type, T.VariantType):
        return write

    def write_with_variants(value: Any) -> dict[str, Any]:
        form.variants = []
        return {"json": write(value), "variants": form.variants}

    return write_with_variants


@cache
def _key_codec(field: T.StructField, time_zone: str) -> TupleCodec:
    style = row_style(string_to_tzinfo(time_zone))
    what = f"key column {field.name!r}"
    return TupleCodec(T.StructType([field]), what, is_key=True, style=style)


def _column(data_type: T.DataType) -> T.StructType:
    """Return the object that the text holds: one value may be null, and no text is a null."""
    return T.StructType([T.StructField("c0", data_type)])


def _column_type(form: JsonForm, data_type: T.DataType) -> Any:
    return form.struct_type([wire_type(form, data_type)])
