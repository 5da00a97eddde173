"""Which values that a user gives would be others in the type of their table.

Spark's cast drops the fraction of a number, takes a double that has no room for all digits, and
without ANSI gives null for a text that is no number. A key or value that changed silently would be
another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.operator.values.leaves import TIME_OF_DAY

_FRACTIONS = (T.FloatType, T.DoubleType)
_EXACT = {T.FloatType: float(1 << 24), T.DoubleType: float(1 << 53)}
"""Above these, a float may stand for several integers."""
_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_WIDER: dict[type[T.DataType], tuple[type[T.DataType], ...]] = {
    kind: _INTEGERS[place:] for place, kind in enumerate(_INTEGERS)
}
_TEXTS = (T.StringType, T.CharType, T.VarcharType)
_EXACT_TEXT = T.DecimalType(38, 18)
_DATE = r"\s*[+-]?\d+-\d{1,2}-\d{1,2}"
_CLOCK = r"[ T]\d{1,2}:\d{1,2}(:\d{1,2}(\.\d{1,6}0*)?)?"
_WHOLE_TIMES: dict[type[T.DataType], str] = {
    T.DateType: rf"^{_DATE}([ T][0:.]*)?\s*$",
    T.TimestampNTZType: rf"^{_DATE}({_CLOCK})?\s*$",
    T.TimestampType: rf"^{_DATE}({_CLOCK}\s*([A-Za-z+-].*)?)?\s*$",
}
"""Texts that are one date or time: Spark also takes a year, or drops digits or a zone."""

_NUMBERS = (T.NumericType, T.BooleanType)
_MOMENTS = (T.TimestampType, T.TimestampNTZType)
_TIMES = (T.DateType, *_MOMENTS, T.DayTimeIntervalType, *TIME_OF_DAY)


def loss(column: Column, given: T.DataType, wanted: T.DataType) -> Column | None:
    """Return whether a cast would change a value of a column.

    The structs of `column` must have their fields in the wanted order. The result is null for a
    null, and ``None`` is returned if no value can change.
    """
    if isinstance(given, T.StructType) and isinstance(wanted, T.StructType):
        pairs = zip(given.fields, wanted.fields, strict=True)
        inside = [
            loss(column.getField(a.name), a.dataType, b.dataType)
            for a, b in pairs
            if given.names.count(a.name) == 1
        ]
        return _any(inside)
    if isinstance(given, T.ArrayType) and isinstance(wanted, T.ArrayType):
        return _in_items(column, given.elementType, wanted.elementType)
    if isinstance(given, T.MapType) and isinstance(wanted, T.MapType):
        return _any(
            [
                _in_items(F.map_keys(column), given.keyType, wanted.keyType),
                _in_items(F.map_values(column), given.valueType, wanted.valueType),
            ]
        )
    return _leaf_loss(column, given, wanted)


def other_kind(given: T.DataType, wanted: T.DataType) -> str | None:
    """Return what to do about a number where a time is wanted, or the other way round.

    Spark's cast would take the number as seconds, where all else here counts milliseconds.

    The structs must have their fields in the wanted order. It returns ``None`` if the types have no
    such place.
    """
    for one, other in _leaf_pairs(given, wanted):
        if isinstance(one, _NUMBERS) and isinstance(other, _TIMES):
            remedy = "make a time of it"
            if isinstance(other, _MOMENTS):
                remedy += ", of milliseconds with timestamp_millis"
        elif isinstance(one, _TIMES) and isinstance(other, _NUMBERS):
            remedy = "make a number of it"
            if isinstance(one, _MOMENTS):
                remedy += ", of milliseconds with unix_millis"
        else:
            continue
        return (
            f"{one.simpleString()} is given and {other.simpleString()} is wanted, and a "
            f"cast of Spark would count in seconds, not in milliseconds: {remedy}"
        )
    return None


def _leaf_pairs(given: T.DataType, wanted: T.DataType) -> Iterator[tuple[T.DataType, T.DataType]]:
    if isinstance(given, T.StructType) and isinstance(wanted, T.StructType):
        for one, other in zip(given.fields, wanted.fields, strict=True):
            yield from _leaf_pairs(one.dataType, other.dataType)
    elif isinstance(given, T.ArrayType) and isinstance(wanted, T.ArrayType):
        yield from _leaf_pairs(given.elementType, wanted.elementType)
    elif isinstance(given, T.MapType) and isinstance(wanted, T.MapType):
        yield from _leaf_pairs(given.keyType, wanted.keyType)
        yield from _leaf_pairs(given.valueType, wanted.valueType)
    else:
        yield given, wanted


def _any(losses: list[Column | None]) -> Column | None:
    possible = [each for each in losses if each is not None]
    return reduce(or_, (F.coalesce(each, F.lit(False)) for each in possible)) if possible else None  # noqa: FBT003


def _in_items(column: Column, given: T.DataType, wanted: T.DataType) -> Column | None:
    if loss(F.lit(None).cast(given), given, wanted) is None:
        return None

    def of_item(item: Column) -> Column:
        found = loss(item, given, wanted)
        assert found is not None  # as above
        return F.coalesce(found, F.lit(False))  # noqa: FBT003

    return F.exists(column, of_item)


def _leaf_loss(column: Column, given: T.DataType, wanted: T.DataType) -> Column | None:
    if given == wanted or type(wanted) in _WIDER.get(type(given), ()):
        return None
    cast = column.cast(wanted)
    if isinstance(given, T.NullType) or (isinstance(given, _TEXTS) and isinstance(wanted, _TEXTS)):
        return None
    if isinstance(given, _FRACTIONS) and isinstance(wanted, _FRACTIONS):
        return None  # rounded as a processor's update would do
    if isinstance(given, T.VariantType):
        return column.isNotNull() & cast.isNull()
    if isinstance(given, _TEXTS):
        is_no_value = column.isNotNull() & cast.isNull()
        if isinstance(wanted, (*_INTEGERS, T.DecimalType)):  # "5.7" is 5 without ANSI
            scale = wanted.scale if isinstance(wanted, T.DecimalType) else 0
            has_more_digits = column.rlike(rf"\.\d{{{scale}}}\d*[1-9]")
            changes = ~column.cast(_EXACT_TEXT).eqNullSafe(cast)
            return is_no_value | F.when(column.rlike("[eE]"), changes).otherwise(has_more_digits)
        whole = _WHOLE_TIMES.get(type(wanted))
        if isinstance(wanted, TIME_OF_DAY):
            digits: int = wanted.precision  # type: ignore[attr-defined]  # PySpark 4.1 has it
            whole = rf"^\s*\d{{1,2}}:\d{{1,2}}(:\d{{1,2}}(\.\d{{0,{digits}}}0*)?)?\s*$"
        return is_no_value if whole is None else is_no_value | ~column.rlike(whole)
    if isinstance(given, _FRACTIONS) and isinstance(wanted, _TEXTS):
        return column.isNotNull()  # 5.0 is "5.0" in Spark, and another text elsewhere
    changed = column.isNotNull() & ~cast.cast(given).eqNullSafe(column)
    if isinstance(given, _FRACTIONS):
        return changed | (F.abs(column) > _EXACT[type(given)])
    return changed
