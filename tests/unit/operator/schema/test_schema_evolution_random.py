"""Random schemas, edited at random: converted values equal a model of plain dicts.

The model keeps a struct as a dict by name, so an edit of a schema is one obvious step on the value.
Values pass the real codec before and after.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from pyspark_ckpt.operator.schema.evolution import Verdict, compare, converter
from pyspark_ckpt.values.codec import TupleCodec

Change = Callable[[Any], Any]
"""What an edit does to a value of the model that is not null."""

LEAVES: dict[str, Callable[[random.Random], Any]] = {
    "tinyint": lambda r: r.randint(-128, 127),
    "smallint": lambda r: r.randint(-(2**15), 2**15 - 1),
    "int": lambda r: r.randint(-(2**31), 2**31 - 1),
    "bigint": lambda r: r.randint(-(2**63), 2**63 - 1),
    "float": lambda r: r.choice([0.5, -0.0, 1e10]),
    "double": lambda r: r.random(),
    "string": lambda r: r.choice(["", "a", "ö"]),
    "binary": lambda r: r.choice([b"", b"\x00a"]),
    "boolean": lambda r: r.random() < 0.5,
    "decimal": lambda r: r.randint(-99999, 99999),  # unscaled
}
ATOMIC: dict[str, T.DataType] = {
    "tinyint": T.ByteType(), "smallint": T.ShortType(), "int": T.IntegerType(),
    "bigint": T.LongType(), "float": T.FloatType(), "double": T.DoubleType(),
    "string": T.StringType(), "binary": T.BinaryType(), "boolean": T.BooleanType(),
}  # fmt: skip
WIDER = {
    "tinyint": ["smallint", "int", "bigint", "double"],
    "smallint": ["int", "bigint", "double"],
    "int": ["bigint", "double"],
    "float": ["double"],
}
KEY_TYPES = ["string", "int"]
SEEDS = st.integers(0, 2**32)
"""Plain seeds spread the edits; hypothesis' own Random would mostly take the first choice."""


class Schemas:
    """Makes random types, values of the model, and edits, from one source of randomness."""

    def __init__(self, rand: random.Random) -> None:
        self.rand = rand
        self._names = 0

    def name(self) -> str:
        """Return a name never used before; a field with an old name would be a stored field."""
        self._names += 1
        return f"f{self._names}"

    def type(self, depth: int) -> T.DataType:
        shape = self.rand.choice(["leaf", "struct", "array", "map"]) if depth else "leaf"
        if shape == "struct":
            return self.struct(depth - 1)
        if shape == "array":
            return T.ArrayType(self.type(depth - 1), self.rand.random() < 0.5)
        if shape == "map":
            key = ATOMIC[self.rand.choice(KEY_TYPES)]
            return T.MapType(key, self.type(depth - 1), self.rand.random() < 0.5)
        leaf = self.rand.choice(list(LEAVES))
        return T.DecimalType(7, 2) if leaf == "decimal" else ATOMIC[leaf]

    def struct(self, depth: int) -> T.StructType:
        number = self.rand.randint(0 if depth < 2 else 1, 3)
        return T.StructType([self.field(depth) for _ in range(number)])

    def field(self, depth: int) -> T.StructField:
        return T.StructField(self.name(), self.type(depth), self.rand.random() < 0.7)

    def value(self, kind: T.DataType, nullable: bool) -> Any:
        if nullable and self.rand.random() < 0.2:
            return None
        if isinstance(kind, T.StructType):
            return {f.name: self.value(f.dataType, f.nullable) for f in kind.fields}
        if isinstance(kind, T.ArrayType):
            number = self.rand.randint(0, 2)
            return [self.value(kind.elementType, kind.containsNull) for _ in range(number)]
        if isinstance(kind, T.MapType):
            keys = {self.value(kind.keyType, False) for _ in range(self.rand.randint(0, 2))}
            return {key: self.value(kind.valueType, kind.valueContainsNull) for key in keys}
        if isinstance(kind, T.DecimalType):
            return Decimal(LEAVES["decimal"](self.rand)).scaleb(-kind.scale)
        return LEAVES[kind.simpleString()](self.rand)

    def edit(self, kind: T.DataType) -> tuple[T.DataType, Change]:
        """Edit a type at one random place; return it with the change of its values."""
        if isinstance(kind, T.StructType):
            return self._edit_struct(kind)
        if isinstance(kind, T.ArrayType):
            element, change = self.edit(kind.elementType)
            nulls = kind.containsNull or self.rand.random() < 0.2
            return T.ArrayType(element, nulls), lambda v: [_at(change, item) for item in v]
        if isinstance(kind, T.MapType):
            inner, change = self.edit(kind.valueType)
            nulls = kind.valueContainsNull or self.rand.random() < 0.2
            edited = T.MapType(kind.keyType, inner, nulls)
            return edited, lambda v: {key: _at(change, item) for key, item in v.items()}
        return self._widen(kind)

    def _widen(self, kind: T.DataType) -> tuple[T.DataType, Change]:
        if isinstance(kind, T.DecimalType):
            scale = self.rand.randint(0, 2)
            precision = min(38, kind.precision + scale + self.rand.randint(0, 2))
            wider = T.DecimalType(precision, kind.scale + precision - kind.precision)
            wider = wider if self.rand.random() < 0.7 else T.DecimalType(precision, kind.scale)
            digits = wider.scale
            return wider, lambda v: Decimal(int(v.scaleb(digits))).scaleb(-digits)
        wanted = self.rand.choice([kind.simpleString(), *WIDER.get(kind.simpleString(), [])])
        return ATOMIC[wanted], float if wanted == "double" else lambda v: v

    def _edit_struct(self, kind: T.StructType) -> tuple[T.StructType, Change]:
        fields = list(kind.fields)
        how = self.rand.choice(["add", "remove", "reorder", "loosen", *["inside"] * 5])
        if how == "add" or not fields:
            added = T.StructField(self.name(), self.type(1), nullable=True)
            fields.insert(self.rand.randint(0, len(fields)), added)
            return T.StructType(fields), lambda v: {**v, added.name: None}
        if how == "reorder":
            self.rand.shuffle(fields)
            return T.StructType(fields), lambda v: v
        place = self.rand.randrange(len(fields))
        field = fields[place]
        if how == "remove" and place == _oldest(fields):
            return kind, _same  # one stored field must be kept
        if how == "remove":
            del fields[place]
            return T.StructType(fields), lambda v: {n: i for n, i in v.items() if n != field.name}
        inner, change = (field.dataType, _same) if how == "loosen" else self.edit(field.dataType)
        fields[place] = T.StructField(field.name, inner, field.nullable or how == "loosen")
        name = field.name
        return T.StructType(fields), lambda v: {**v, name: _at(change, v[name])}


def _oldest(fields: list[T.StructField]) -> int:
    return min(range(len(fields)), key=lambda place: int(fields[place].name[1:]))


def _same(value: Any) -> Any:
    return value


def _at(change: Change, value: Any) -> Any:
    return None if value is None else change(value)


def to_row(kind: T.DataType, value: Any) -> Any:
    """Turn a value of the model into what a state takes, with Rows or plain tuples for structs."""
    if value is None:
        return None
    if isinstance(kind, T.StructType):
        return tuple(to_row(f.dataType, value[f.name]) for f in kind.fields)
    if isinstance(kind, T.ArrayType):
        return [to_row(kind.elementType, item) for item in value]
    if isinstance(kind, T.MapType):
        return {key: to_row(kind.valueType, item) for key, item in value.items()}
    return value


def rows_by_name(kind: T.DataType, value: Any) -> Iterator[tuple[list[str], T.StructType]]:
    """Yield the names that each nested Row has, with the struct type it should have."""
    if value is None:
        return
    if isinstance(kind, T.StructType):
        if isinstance(value, T.Row):
            yield list(value.__fields__), kind
        for field, item in zip(kind.fields, value, strict=True):
            yield from rows_by_name(field.dataType, item)
    elif isinstance(kind, T.ArrayType):
        for item in value:
            yield from rows_by_name(kind.elementType, item)
    elif isinstance(kind, T.MapType):
        for item in value.values():
            yield from rows_by_name(kind.valueType, item)


def without_rows(value: Any) -> Any:
    """Show a value with its exact types, 1 and 1.0 apart, Row and tuple alike."""
    if isinstance(value, tuple):
        return tuple(map(without_rows, value))
    if isinstance(value, list):
        return list(map(without_rows, value))
    if isinstance(value, dict):
        return {key: without_rows(item) for key, item in value.items()}
    return repr(value)


def edited(
    schemas: Schemas, stored: T.StructType, model: Any, edits: int
) -> tuple[T.StructType, Any]:
    wanted = stored
    for _ in range(edits):
        wanted, change = schemas._edit_struct(wanted)
        model = change(model)
    return wanted, model


@settings(max_examples=300)
@given(SEEDS, st.integers(0, 12))
def test_converted_values_equal_the_model_after_any_allowed_edits(seed: int, edits: int) -> None:
    check_converted_values(seed, edits)


@pytest.mark.soak
@settings(max_examples=20_000)
@given(SEEDS, st.integers(0, 12))
def test_converted_values_equal_the_model_in_long_runs(seed: int, edits: int) -> None:
    check_converted_values(seed, edits)


def check_converted_values(seed: int, edits: int) -> None:
    schemas = Schemas(random.Random(seed))
    stored = schemas.struct(depth=3)
    model = schemas.value(stored, False)
    wanted, wanted_model = edited(schemas, stored, model, edits)

    evolution = compare(stored, wanted)
    assert evolution.verdict is not Verdict.INCOMPATIBLE, evolution.refused
    convert = converter(stored, wanted)
    if evolution.verdict is Verdict.SAME:
        assert convert is None

    old, new = TupleCodec(stored, "old"), TupleCodec(wanted, "new")
    plain = to_row(stored, model)
    decoded = old.decode(old.encode(plain))
    expected = to_row(wanted, wanted_model)
    for value in (plain, decoded):
        converted = value if convert is None else convert(value)
        assert type(converted) is tuple
        assert without_rows(converted) == without_rows(expected)
        assert without_rows(new.decode(new.encode(converted))) == without_rows(expected)
    for names, kind in rows_by_name(wanted, decoded if convert is None else convert(decoded)):
        assert names == kind.names


@settings(max_examples=150)
@given(SEEDS, st.integers(0, 6))
def test_steps_of_evolution_give_what_one_gives(seed: int, edits: int) -> None:
    schemas = Schemas(random.Random(seed))
    first = schemas.struct(depth=3)
    second, _ = edited(schemas, first, schemas.value(first, False), edits)
    third, _ = edited(schemas, second, schemas.value(second, False), edits)
    value = to_row(first, schemas.value(first, False))
    once, one, two = (
        converter(*pair) for pair in ((first, third), (first, second), (second, third))
    )
    middle = value if one is None else one(value)
    by_steps = middle if two is None else two(middle)
    assert without_rows(value if once is None else once(value)) == without_rows(by_steps)


def spoil(rand: random.Random, kind: T.DataType, path: str) -> tuple[T.DataType, str]:
    """Make one incompatible edit at a random depth; return the path it is to be reported at."""
    if isinstance(kind, T.StructType) and kind.fields and rand.random() < 0.9:
        fields = list(kind.fields)
        place = rand.randrange(len(fields))
        field = fields[place]
        inner, where = spoil(rand, field.dataType, f"{path}.{field.name}".strip("."))
        fields[place] = T.StructField(field.name, inner, field.nullable)
        return T.StructType(fields), where
    if isinstance(kind, T.StructType):
        name = "spoilt"
        added = T.StructField(name, T.LongType(), nullable=False)
        return T.StructType([*kind.fields, added]), f"{path}.{name}".strip(".")
    if isinstance(kind, T.ArrayType):
        if kind.containsNull and rand.random() < 0.3:
            return T.ArrayType(kind.elementType, containsNull=False), f"{path}.element"
        element, where = spoil(rand, kind.elementType, f"{path}.element")
        return T.ArrayType(element, kind.containsNull), where
    if isinstance(kind, T.MapType):
        if rand.random() < 0.3:
            key = T.LongType() if kind.keyType == T.IntegerType() else T.VarcharType(3)
            return T.MapType(key, kind.valueType, kind.valueContainsNull), f"{path}.key"
        inner, where = spoil(rand, kind.valueType, f"{path}.value")
        return T.MapType(kind.keyType, inner, kind.valueContainsNull), where
    return T.DateType(), path


@settings(max_examples=200)
@given(SEEDS, st.integers(0, 4))
def test_one_incompatible_edit_among_allowed_ones_is_refused_with_its_path(
    seed: int, edits: int
) -> None:
    rand = random.Random(seed)
    schemas = Schemas(rand)
    stored = schemas.struct(depth=3)
    spoilt, path = spoil(rand, stored, "")
    assert isinstance(spoilt, T.StructType)
    fields = [*spoilt.fields]
    for _ in range(edits):
        fields.insert(rand.randint(0, len(fields)), T.StructField(schemas.name(), T.LongType()))
    rand.shuffle(fields)
    evolution = compare(stored, T.StructType(fields))
    assert evolution.verdict is Verdict.INCOMPATIBLE
    assert len(evolution.refused) == 1
    assert evolution.refused[0].startswith(f"field {path!r} ")
