"""Columns that travel as JSON text, on the executor: read from rows, written to rows, as keys.

Objects here are shipped to executors, and compile what they need once per schema and process.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import msgspec
from pyarrow.lib import string_to_tzinfo
from pyspark.sql import types as T

from pyspark_ckpt.operator.codec import TupleCodec, holds
from pyspark_ckpt.operator.json_expressions import JSON, VARIANTS
from pyspark_ckpt.operator.json_form import JsonForm
from pyspark_ckpt.operator.leaf_values import unwrapped
from pyspark_ckpt.operator.wire_form import Converter, reader_of, row_style, wire_type, writer_of

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
    """A key column: equal values get the same bytes, which are its form in the shuffle's groups."""

    def __init__(self, field: T.StructField, time_zone: str) -> None:
        self._arguments = (field, time_zone)
        self._read = JsonReader(field.dataType, time_zone)
        self._codec: TupleCodec | None = None
        self.canonical = lru_cache(_REMEMBERED_KEYS)(self._canonical)
        """Return the bytes of a travelling value; many rows have the same."""

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonKey, self._arguments

    def _canonical(self, text: str) -> bytes:
        return self._compiled().encode((self._read(text),))

    def shown(self, canonical: bytes) -> Any:
        """Return the key as the user's processor sees it."""
        return self._compiled().decode(canonical)[0]

    def _compiled(self) -> TupleCodec:
        if self._codec is None:
            self._codec = _key_codec(*self._arguments)
        return self._codec


def json_writer(data_type: T.DataType) -> Converter:
    """Return what writes the values of a column for ``from_travelling``.

    It raises TypeError, ValueError, OverflowError or AttributeError if a value is not of the
    column's type.
    """
    return _compiled_writer(data_type)


@cache
def _compiled_reader(data_type: T.DataType, time_zone: str) -> Converter:
    form = JsonForm()
    decode = msgspec.json.Decoder(_column_type(form, data_type)).decode
    convert = reader_of(form, data_type, row_style(string_to_tzinfo(time_zone)))

    def read(text: str) -> Any:
        value = decode(text).c0
        return value if value is None or convert is None else convert(value)

    if not holds(data_type, T.VariantType):
        return read

    def read_with_variants(travelling: Any) -> Any:
        form.arriving = iter(travelling[VARIANTS])
        return read(travelling[JSON])

    return read_with_variants


@cache
def _compiled_writer(data_type: T.DataType) -> Converter:
    form = JsonForm()
    encode = msgspec.json.Encoder(enc_hook=unwrapped, decimal_format="number").encode
    check = msgspec.json.Decoder(_column_type(form, data_type)).decode
    convert, pack = writer_of(form, data_type), form.pack_struct(1)

    def write(value: Any) -> str:
        wire = value if value is None or convert is None else convert(value)
        text = encode(pack((wire,)))
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
    style = row_style(string_to_tzinfo(time_zone))
    what = f"key column {field.name!r}"
    return TupleCodec(T.StructType([field]), what, is_key=True, style=style)


def _column_type(form: JsonForm, data_type: T.DataType) -> Any:
    """Return the type of the object that the text holds, one for every row, null or not."""
    return form.struct_type([wire_type(form, data_type)])
