"""Spark expressions that turn a column of any type into JSON text without loss, and back.

A cast renames all fields by position and makes most leaves safe. Only timestamps, variants and
maps, which no cast keeps, are rebuilt one by one. The functions run on the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.operator.values.leaves import TEXTS, TIME_OF_DAY
from pyspark_ckpt.operator.values.wire_form import holds

JSON, VARIANTS = "json", "variants"
"""Fields of a column whose variants travel next to the text."""

_ANY_SIZE = str(2**31 - 1)
_VARIANTS = T.ArrayType(T.VariantType())
_BINARIES = T.ArrayType(T.BinaryType())
_REPLACED = "\ufffd"
_MARK = "!"
"""Begins a text that travels in place of JSON."""
_MICROSECOND_SECONDS = T.DecimalType(19, 6)
_SECONDS = T.DayTimeIntervalType(T.DayTimeIntervalType.SECOND)
_MONTHS = T.YearMonthIntervalType(T.YearMonthIntervalType.MONTH)
_REBUILT = (T.MapType, T.TimestampType, T.VariantType, T.NullType)
_TEXT_IN_JSON: tuple[type[T.DataType], ...] = (
    *TEXTS,
    T.DateType,
    T.TimestampNTZType,
    *TIME_OF_DAY,
    T.NullType,
)


def travelling_type(data_type: T.DataType) -> T.DataType:
    """Return the type of a column as it travels: text, or text and variants."""
    if not holds(data_type, T.VariantType):
        return T.StringType()
    return T.StructType([T.StructField(JSON, T.StringType()), T.StructField(VARIANTS, _VARIANTS)])


def to_travelling(data_type: T.DataType, column: Column) -> Column:
    """Return the expression that sends a column of any type."""
    in_units = column.cast(_mapped(data_type, _interval_unit))
    safe = _rebuilt(in_units.cast(_mapped(data_type, _safe_leaf)), data_type, _sent_leaf)
    text = F.to_json(F.struct(safe.alias("c0")), {"ignoreNullFields": "false"})
    if holds(data_type, TEXTS):
        text = _marked(text, column, data_type)
    if not holds(data_type, T.VariantType):
        return text
    return F.struct(text.alias(JSON), _variants(column, data_type).alias(VARIANTS))


def check_marked(text: str) -> None:
    """Raise the error of a text that travels in place of a value with a text that is not UTF-8."""
    if text.startswith(_MARK):
        bytes.fromhex(text.removeprefix(_MARK)).decode()


def _marked(text: Column, column: Column, data_type: T.DataType) -> Column:
    """Return the JSON of a column, or a mark if a text in it is not UTF-8.

    ``to_json`` puts U+FFFD in place of such bytes. So texts are looked at only where one is found.
    """
    by_position = column.cast(_mapped(data_type, _text_leaf))
    first = F.get(_bad_texts(by_position, data_type), F.lit(0))
    found = F.when(text.contains(_REPLACED), F.hex(first))
    return F.coalesce(F.concat(F.lit(_MARK), found), text)


def _bad_texts(column: Column, data_type: T.DataType) -> Column:
    """Return the bytes of a value's texts that are not UTF-8, as an array."""
    nothing = F.array().cast(_BINARIES)
    if isinstance(data_type, TEXTS):
        bad = F.array(column.cast("binary"))
        return F.when(~F.is_valid_utf8(column), bad).otherwise(nothing)
    if not holds(data_type, TEXTS):
        return nothing
    if isinstance(data_type, T.ArrayType):
        inside = F.transform(column, lambda item: _bad_texts(item, data_type.elementType))
        return F.coalesce(F.flatten(inside), nothing)
    if isinstance(data_type, T.MapType):
        keys = _bad_texts(F.map_keys(column), T.ArrayType(data_type.keyType))
        values = _bad_texts(F.map_values(column), T.ArrayType(data_type.valueType))
        return F.concat(keys, values)
    assert isinstance(data_type, T.StructType)
    return F.concat(
        *[
            _bad_texts(column[f"c{index}"], field.dataType)
            for index, field in enumerate(data_type.fields)
            if holds(field.dataType, TEXTS)
        ]
    )


def from_travelling(data_type: T.DataType, column: Column) -> Column:
    """Return the expression that restores a column's type from the text that Python sent."""
    has_variants = holds(data_type, T.VariantType)
    text = column[JSON] if has_variants else column
    schema = T.StructType([T.StructField("c0", _json_type(data_type))])
    parsed = F.from_json(text, schema, {"mode": "FAILFAST", "maxStringLen": _ANY_SIZE})["c0"]
    restore = partial(_restored_leaf, column[VARIANTS] if has_variants else None)
    in_units = parsed.cast(_mapped(_json_type(data_type, as_units=True), _as_is))
    return _rebuilt(in_units, data_type, restore).cast(plain_type(data_type))


def plain_type(data_type: T.DataType) -> T.DataType:
    """Return the type with everything nullable, and with strings for char and varchar."""
    return _mapped(data_type, _text_leaf, keep_names=True)


def _mapped(
    data_type: T.DataType, leaf: Callable[[T.DataType], T.DataType], *, keep_names: bool = False
) -> T.DataType:
    """Return a type with other leaves, and by default with fields named by position."""
    inner = partial(_mapped, leaf=leaf, keep_names=keep_names)
    if isinstance(data_type, T.ArrayType):
        return T.ArrayType(inner(data_type.elementType))
    if isinstance(data_type, T.MapType):
        return T.MapType(inner(data_type.keyType), inner(data_type.valueType))
    if isinstance(data_type, T.StructType):
        return T.StructType(
            [
                T.StructField(field.name if keep_names else f"c{index}", inner(field.dataType))
                for index, field in enumerate(data_type.fields)
            ]
        )
    return leaf(data_type)


def _as_is(leaf: T.DataType) -> T.DataType:
    return leaf


def _text_leaf(leaf: T.DataType) -> T.DataType:
    return T.StringType() if isinstance(leaf, T.CharType | T.VarcharType) else leaf


def _interval_unit(leaf: T.DataType) -> T.DataType:
    """Return the one unit in which Spark casts intervals to and from numbers."""
    if isinstance(leaf, T.DayTimeIntervalType):
        return _SECONDS
    return _MONTHS if isinstance(leaf, T.YearMonthIntervalType) else _text_leaf(leaf)


def _safe_leaf(leaf: T.DataType) -> T.DataType:
    """Return the type that ``to_json`` writes without loss."""
    if isinstance(leaf, _TEXT_IN_JSON):
        return T.StringType()
    if isinstance(leaf, T.FloatType):
        return T.DoubleType()
    if isinstance(leaf, T.DayTimeIntervalType):
        return _MICROSECOND_SECONDS
    return T.IntegerType() if isinstance(leaf, T.YearMonthIntervalType) else leaf


def _rebuilt(
    column: Column, data_type: T.DataType, leaf: Callable[[T.DataType, Column], Column]
) -> Column:
    """Return the column with leaves and maps replaced; other parts stay as they are."""
    if not holds(data_type, _REBUILT):
        return column
    if isinstance(data_type, T.ArrayType):
        return F.transform(column, lambda item: _rebuilt(item, data_type.elementType, leaf))
    if isinstance(data_type, T.StructType):
        fields = [
            _rebuilt(column[f"c{index}"], field.dataType, leaf).alias(f"c{index}")
            for index, field in enumerate(data_type.fields)
        ]
        return F.when(column.isNotNull(), F.struct(*fields))
    return leaf(data_type, column)


def _sent_leaf(data_type: T.DataType, column: Column) -> Column:
    if isinstance(data_type, T.MapType):
        return F.transform(
            F.map_entries(column),
            lambda entry: F.struct(
                _rebuilt(entry["key"], data_type.keyType, _sent_leaf).alias("c0"),
                _rebuilt(entry["value"], data_type.valueType, _sent_leaf).alias("c1"),
            ),
        )
    if isinstance(data_type, T.TimestampType):
        return F.unix_micros(column)
    if isinstance(data_type, T.VariantType):
        return F.when(column.isNotNull(), F.lit(True))  # noqa: FBT003
    return column


def _restored_leaf(variants: Column | None, data_type: T.DataType, column: Column) -> Column:
    again = partial(_restored_leaf, variants)
    if isinstance(data_type, T.MapType):
        return F.map_from_entries(
            F.transform(
                column,
                lambda entry: F.struct(
                    _rebuilt(entry["c0"], data_type.keyType, again).alias("key"),
                    _rebuilt(entry["c1"], data_type.valueType, again).alias("value"),
                ),
            )
        )
    if isinstance(data_type, T.TimestampType):
        return F.timestamp_micros(column)
    if isinstance(data_type, T.VariantType):
        assert variants is not None
        return F.when(column.isNotNull(), F.element_at(variants, column + 1))
    return F.lit(None)


def _json_type(data_type: T.DataType, *, as_units: bool = False) -> T.DataType:
    """Return the type in which ``from_json`` reads a column, or the type it is then cast to."""
    inner = partial(_json_type, as_units=as_units)
    if isinstance(data_type, T.ArrayType):
        return T.ArrayType(inner(data_type.elementType))
    if isinstance(data_type, T.StructType):
        fields = [inner(field.dataType) for field in data_type.fields]
    elif isinstance(data_type, T.MapType):
        fields = [inner(data_type.keyType), inner(data_type.valueType)]
    else:
        return _interval_unit_in_json(data_type) if as_units else _read_leaf(data_type)
    entry = T.StructType([T.StructField(f"c{index}", kind) for index, kind in enumerate(fields)])
    return T.ArrayType(entry) if isinstance(data_type, T.MapType) else entry


def _read_leaf(leaf: T.DataType) -> T.DataType:
    if isinstance(leaf, T.TimestampType):
        return T.LongType()
    return T.IntegerType() if isinstance(leaf, T.VariantType) else _safe_leaf(leaf)


def _interval_unit_in_json(leaf: T.DataType) -> T.DataType:
    unit = _interval_unit(leaf)
    return unit if unit in (_SECONDS, _MONTHS) else _read_leaf(leaf)


def _variants(column: Column, data_type: T.DataType) -> Column:
    """Return a value's variants that are not null, as an array in the order of the JSON."""
    nothing = F.array().cast(_VARIANTS)
    if isinstance(data_type, T.VariantType):
        return F.when(column.isNotNull(), F.array(column)).otherwise(nothing)
    if not holds(data_type, T.VariantType):
        return nothing
    if isinstance(data_type, T.ArrayType):
        found = F.flatten(F.transform(column, lambda item: _variants(item, data_type.elementType)))
    elif isinstance(data_type, T.StructType):
        parts = [
            _variants(column[field.name], field.dataType)
            for field in data_type.fields
            if holds(field.dataType, T.VariantType)
        ]
        found = F.concat(*parts)
    else:
        assert isinstance(data_type, T.MapType)
        values = F.map_values(column)
        found = F.flatten(F.transform(values, lambda item: _variants(item, data_type.valueType)))
    return F.coalesce(found, nothing)
