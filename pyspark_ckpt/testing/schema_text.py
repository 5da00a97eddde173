"""Schemas of states and output from their DDL text, without the JVM that has Spark's parser."""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import types as T

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.state.handle import as_state_schema

_TYPES: tuple[type[T.DataType], ...] = (
    T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType,
    T.StringType, T.BinaryType, T.DateType, T.TimestampType, T.TimestampNTZType, T.VariantType,
    T.NullType,
)  # fmt: skip
_ATOMIC: dict[str, T.DataType] = {
    **{name: kind() for kind in _TYPES for name in (kind.typeName(), kind().simpleString())},
    "real": T.FloatType(),
    "timestamp_ltz": T.TimestampType(),
}
_OF_A_LENGTH = {"char": T.CharType, "character": T.CharType, "varchar": T.VarcharType}
_INTERVALS = (
    (T.YearMonthIntervalType, ("year", "month")),
    (T.DayTimeIntervalType, ("day", "hour", "minute", "second")),
)
_UNITS = {unit for _, units in _INTERVALS for unit in units}
_TOKEN = re.compile(r"`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\w+|\S")


class ParsedSchemas(dict[str, T.StructType]):
    """Schemas of states by their text, parsed at first use; a single type is allowed."""

    def __missing__(self, text: str) -> T.StructType:
        schema = self[text] = as_state_schema(_Parser(text).whole(may_be_type=True))
        return schema


def parse_schema(text: str) -> T.StructType:
    """Parse a list of fields, as Spark does."""
    schema: Any = _Parser(text).whole()
    return schema  # type: ignore[no-any-return]


class _Parser:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _TOKEN.findall(text)

    def whole(self, *, may_be_type: bool = False) -> T.DataType:
        first, second = [*map(str.lower, self._tokens[:2]), "", ""][:2]
        is_struct = (first, second) == ("struct", "<")
        is_interval = first == "interval" and second in _UNITS
        is_type = is_struct or (may_be_type and (is_interval or second in ("", "<", "(")))
        found = self._type() if is_type else T.StructType(self._fields())
        if self._tokens:
            raise self._error(f"unexpected {self._tokens[0]!r}")
        return found

    def _fields(self, end: str = "") -> list[T.StructField]:
        if self._took(end):
            return []
        fields = [self._field()]
        while self._took(","):
            fields.append(self._field())
        if end:
            self._take(end)
        return fields

    def _field(self) -> T.StructField:
        name = self._name()
        self._took(":")
        field = T.StructField(name, self._type())
        if self._took("not"):
            self._take("null")
            field.nullable = False
        if self._took("comment"):
            field.metadata = {"comment": re.sub(r"\\(.)", r"\1", self._next()[1:-1])}
        return field

    def _type(self) -> T.DataType:
        word = self._name().lower()
        if word in _ATOMIC:
            return _ATOMIC[word]
        if word in ("decimal", "dec", "numeric"):
            return T.DecimalType(*self._numbers()) if self._took("(") else T.DecimalType()
        if word in _OF_A_LENGTH:
            self._take("(")
            return _OF_A_LENGTH[word](self._number_alone())
        if word == "time" and hasattr(T, "TimeType"):  # from PySpark 4.1 on
            return T.TimeType(self._number_alone(at_most=6)) if self._took("(") else T.TimeType()
        if word == "interval":
            return self._interval()
        if word not in ("array", "map", "struct"):
            raise self._error(f"unknown type {word!r}")
        self._take("<")
        if word == "struct":
            return T.StructType(self._fields(">"))
        found: T.DataType = self._type()
        if word == "map":
            self._take(",")
            found = T.MapType(found, self._type())
        else:
            found = T.ArrayType(found)
        self._take(">")
        return found

    def _interval(self) -> T.DataType:
        first = self._name().lower()
        last = self._name().lower() if self._took("to") else first
        for kind, units in _INTERVALS:
            if first in units and last in units[units.index(first) :]:
                return kind(units.index(first), units.index(last))
        raise self._error(f"unknown interval {first!r} to {last!r}")

    def _number_alone(self, at_most: int = 1 << 31) -> int:
        (number, *more) = self._numbers()
        if more or number > at_most:
            raise self._error(f"{[number, *more]} is not one number up to {at_most}")
        return number

    def _numbers(self) -> list[int]:
        numbers = [self._number()]
        if self._took(","):
            numbers.append(self._number())
        self._take(")")
        return numbers

    def _number(self) -> int:
        token = self._next()
        if not token.isdecimal():
            raise self._error(f"{token!r} is not a number")
        return int(token)

    def _name(self) -> str:
        token = self._next()
        if token.startswith("`") and len(token) > 1:
            return token[1:-1].replace("``", "`")
        if not re.fullmatch(r"\w+", token):
            raise self._error(f"{token!r} is not a name")
        return token

    def _next(self) -> str:
        return self._tokens.pop(0) if self._tokens else ""

    def _took(self, wanted: str) -> bool:
        is_next = bool(self._tokens) and self._tokens[0].lower() == wanted
        if is_next:
            self._next()
        return is_next

    def _take(self, wanted: str) -> None:
        if not self._took(wanted):
            raise self._error(f"expected {wanted!r} instead of {self._next()!r}")

    def _error(self, why: str) -> PlanError:
        return PlanError(f"schema {self._text!r} cannot be parsed: {why}; give a StructType")
