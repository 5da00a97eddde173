"""Widening: which pairs of types lose nothing, and what a value becomes."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from pyspark.sql import types as T

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.values.types import TIME_OF_DAY, widening_of

TYPES: dict[str, T.DataType] = {
    "byte": T.ByteType(), "short": T.ShortType(), "int": T.IntegerType(), "long": T.LongType(),
    "float": T.FloatType(), "double": T.DoubleType(), "boolean": T.BooleanType(),
    "string": T.StringType(), "lower": T.StringType("UTF8_LCASE"), "char": T.CharType(3),
    "varchar": T.VarcharType(3), "varchar9": T.VarcharType(9), "binary": T.BinaryType(),
    "date": T.DateType(), "timestamp": T.TimestampType(), "ntz": T.TimestampNTZType(),
    "days": T.DayTimeIntervalType(), "months": T.YearMonthIntervalType(),
    "variant": T.VariantType(), "null": T.NullType(),
    "10,2": T.DecimalType(10, 2), "12,2": T.DecimalType(12, 2), "12,4": T.DecimalType(12, 4),
    "12,5": T.DecimalType(12, 5), "10,4": T.DecimalType(10, 4), "10,0": T.DecimalType(10, 0),
    "38,18": T.DecimalType(38, 18), "array": T.ArrayType(T.LongType()),
    "map": T.MapType(T.StringType(), T.LongType()),
    "struct": T.StructType([T.StructField("n", T.LongType())]),
}  # fmt: skip
TYPES.update(("time", kind()) for kind in TIME_OF_DAY)
WIDENINGS = {
    ("byte", "short"), ("byte", "int"), ("byte", "long"), ("byte", "double"),
    ("short", "int"), ("short", "long"), ("short", "double"),
    ("int", "long"), ("int", "double"), ("float", "double"),
    ("char", "string"), ("varchar", "string"), ("varchar9", "string"),
    ("10,2", "12,2"), ("10,2", "12,4"), ("10,2", "38,18"), ("12,2", "38,18"), ("12,4", "38,18"),
    ("12,5", "38,18"), ("10,4", "12,5"), ("10,4", "38,18"), ("10,0", "12,2"), ("10,0", "38,18"),
    ("10,4", "12,4"),
}  # fmt: skip


def _converter(stored: T.DataType, wanted: T.DataType) -> Callable[[Any], Any] | None:
    widening = widening_of(stored, wanted)
    assert widening is not None
    return widening.convert(stored, wanted)


@pytest.mark.parametrize(("stored", "wanted"), list(product(TYPES, TYPES)))
def test_a_type_widens_to_those_that_lose_nothing_and_no_others(stored: str, wanted: str) -> None:
    found = widening_of(TYPES[stored], TYPES[wanted])
    assert (found is not None) is ((stored, wanted) in WIDENINGS)


@pytest.mark.parametrize(
    ("stored", "wanted", "value", "widened"),
    [
        ("byte", "double", -128, -128.0),
        ("short", "double", 2**15 - 1, 32767.0),
        ("int", "double", -(2**31), -2147483648.0),
        ("10,2", "12,4", Decimal("12345678.91"), Decimal("12345678.9100")),
        ("10,0", "12,2", Decimal(-7), Decimal("-7.00")),
        ("10,4", "12,5", Decimal("-0.0001"), Decimal("-0.00010")),
        ("12,5", "38,18", Decimal("9999999.99999"), Decimal("9999999.999990000000000000")),
    ],
)
def test_a_value_takes_the_form_of_the_wider_type(
    stored: str, wanted: str, value: object, widened: object
) -> None:
    widen = _converter(TYPES[stored], TYPES[wanted])
    assert widen is not None
    assert repr(widen(value)) == repr(widened)


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        ("byte", "short"), ("byte", "long"), ("int", "long"), ("float", "double"),
        ("10,2", "12,2"), ("10,4", "12,4"), ("char", "string"), ("varchar", "string"),
    ],
)  # fmt: skip
def test_values_that_have_the_form_already_are_left_alone(stored: str, wanted: str) -> None:
    assert _converter(TYPES[stored], TYPES[wanted]) is None


def test_a_decimal_beyond_its_own_stored_schema_is_named() -> None:
    widen = _converter(TYPES["10,2"], TYPES["12,4"])
    assert widen is not None
    with pytest.raises(StateValueError, match=r"1234567890\.12 .*decimal\(12,4\).*Migration"):
        widen(Decimal("1234567890.12"))


def test_a_decimal_with_more_decimals_than_its_stored_schema_is_rounded_as_spark_does() -> None:
    widen = _converter(TYPES["10,2"], TYPES["12,4"])
    assert widen is not None
    assert repr(widen(Decimal("1.00005"))) == repr(Decimal("1.0001"))
