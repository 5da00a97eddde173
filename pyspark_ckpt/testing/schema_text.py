"""Schemas of states and output from their DDL text, without the JVM that has Spark's parser."""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import types as T

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.state.handle import as_state_schema

_ATOMIC: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "tinyint": T.ByteType(), "byte": T.ByteType(),
    "smallint": T.ShortType(), "short": T.ShortType(),
    "int": T.IntegerType(), "integer": T.IntegerType(),
    "bigint": T.LongType(), "long": T.LongType(),
    "float": T.FloatType(), "real": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "binary": T.BinaryType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(), "timestamp_ltz": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
}  # fmt: skip

_DECIMAL = ("decimal", "dec", "numeric")
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*')|(\w+)|([<>(),:]))")
_END = ""


class ParsedSchemas(dict[str, T.StructType]):
    """Schemas of states by their text, parsed at first use; a single type is allowed."""

    def __missing__(self, text: str) -> T.StructType:
        schema = self[text] = as_state_schema(_Parser(text).type_or_schema())
        return schema


def parse_schema(text: str) -> T.StructType:
    """Parse a list of fields, as Spark does."""
    return _Parser(text).schema()


class _Parser:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._next = 0

    def schema(self) -> T.StructType:
        if [token.lower() for token in self._tokens[:2]] == ["struct", "<"]:
            schema: Any = self._type()
        else:
            schema = T.StructType(self._fields(_END))
        if self._peek() != _END:
            raise self._error(f"unexpected {self._peek()!r} at the end")
        return schema  # type: ignore[no-any-return]

    def type_or_schema(self) -> T.DataType:
        if self._tokens[1:] and self._tokens[1] not in ("<", "("):
            return self.schema()
        data_type = self._type()
        if self._peek() != _END:
            raise self._error(f"unexpected {self._peek()!r} at the end")
        return data_type

    def _split(self) -> list[str]:
        tokens, position = [], 0
        text = self._text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._error(f"unexpected {text[position:]!r}")
            tokens.append(match[0].strip())
            position = match.end()
        return tokens

    def _fields(self, end: str) -> list[T.StructField]:
        fields = [] if self._peek() == end and end != _END else [self._field()]
        while self._peek() == ",":
            self._take(",")
            fields.append(self._field())
        return fields

    def _field(self) -> T.StructField:
        name = self._word()
        if self._peek() == ":":
            self._take(":")
        data_type = self._type()
        nullable, metadata = True, {}
        if self._peek().lower() == "not":
            self._take("not")
            self._take("null")
            nullable = False
        if self._peek().lower() == "comment":
            self._take("comment")
            metadata["comment"] = re.sub(r"\\(.)", r"\1", self._any()[1:-1])
        return T.StructField(name, data_type, nullable, metadata)

    def _type(self) -> T.DataType:
        word = self._word().lower()
        if word in _ATOMIC:
            return _ATOMIC[word]
        if word in _DECIMAL:
            return T.DecimalType(*self._numbers()) if self._peek() == "(" else T.DecimalType()
        if word not in ("array", "map", "struct"):
            raise self._error(f"unknown type {word!r}")
        self._take("<")
        nested: T.DataType
        if word == "array":
            nested = T.ArrayType(self._type())
        elif word == "map":
            key = self._type()
            self._take(",")
            nested = T.MapType(key, self._type())
        else:
            nested = T.StructType(self._fields(">"))
        self._take(">")
        return nested

    def _numbers(self) -> list[int]:
        self._take("(")
        numbers = [self._number()]
        if self._peek() == ",":
            self._take(",")
            numbers.append(self._number())
        self._take(")")
        return numbers

    def _number(self) -> int:
        token = self._any()
        if not token.isdecimal():
            raise self._error(f"{token!r} is not a number")
        return int(token)

    def _word(self) -> str:
        token = self._any()
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not re.fullmatch(r"\w+", token):
            raise self._error(f"{token!r} is not a name")
        return token

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else _END

    def _any(self) -> str:
        token = self._peek()
        self._next += 1
        return token

    def _take(self, wanted: str) -> None:
        token = self._any()
        if token.lower() != wanted:
            raise self._error(f"expected {wanted!r} instead of {token!r}")

    def _error(self, why: str) -> PlanError:
        return PlanError(f"schema {self._text!r} cannot be parsed: {why}; give a StructType")
