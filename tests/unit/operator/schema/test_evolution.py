"""Schemas are compared; each change is named, and the values are converted."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from pyspark_ckpt.errors import IncompatibleStateError
from pyspark_ckpt.operator.schema.evolution import Verdict, compare, converter
from pyspark_ckpt.values.nesting import same_type

BYTE, INT, LONG, FLOAT, DOUBLE, TEXT = (
    T.ByteType(), T.IntegerType(), T.LongType(), T.FloatType(), T.DoubleType(), T.StringType(),
)  # fmt: skip
NOT = ": not without a migration"


def struct(**fields: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])


def not_null(name: str, kind: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind, nullable=False)])


WRAPPERS: dict[str, tuple[str, Callable[[T.DataType], T.StructType], Callable[[Any], Any]]] = {
    "field": ("f", lambda t: struct(f=t), lambda v: (v,)),
    "nested": ("f.g", lambda t: struct(f=struct(g=t)), lambda v: (Row(g=v),)),
    "element": ("f.element", lambda t: struct(f=T.ArrayType(t)), lambda v: ([v, None],)),
    "value": ("f.value", lambda t: struct(f=T.MapType(TEXT, t)), lambda v: ({"k": v, "n": None},)),
    "deep": (
        "f.element.value.g",
        lambda t: struct(f=T.ArrayType(T.MapType(TEXT, struct(g=t)))),
        lambda v: ([{"k": Row(g=v)}],),
    ),
}


@pytest.mark.parametrize("where", WRAPPERS)
@pytest.mark.parametrize(
    ("stored", "wanted", "value", "converted"),
    [
        (INT, LONG, 7, 7),
        (FLOAT, DOUBLE, 0.5, 0.5),
        (BYTE, DOUBLE, 7, 7.0),
        (T.DecimalType(4, 1), T.DecimalType(6, 2), Decimal("1.5"), Decimal("1.50")),
        (T.VarcharType(3), TEXT, "abc", "abc"),
    ],
)
def test_widening_is_allowed_at_any_depth(
    where: str, stored: T.DataType, wanted: T.DataType, value: Any, converted: Any
) -> None:
    path, wrap, wrap_value = WRAPPERS[where]
    evolution = compare(wrap(stored), wrap(wanted))
    change = f"from {stored.simpleString()} to {wanted.simpleString()}"
    assert evolution.changes == (f"field {path!r} widened {change}",)
    assert evolution.verdict is Verdict.EVOLVED
    convert = converter(wrap(stored), wrap(wanted))
    if repr(value) == repr(converted):
        assert convert is None
    else:
        assert convert is not None
        assert repr(convert(wrap_value(value))) == repr(wrap_value(converted))
        assert convert(wrap_value(None)) == wrap_value(None)
        assert convert((None,)) == (None,)


@pytest.mark.parametrize("where", WRAPPERS)
@pytest.mark.parametrize(
    ("stored", "wanted", "how"),
    [
        (LONG, INT, "narrowed"), (DOUBLE, FLOAT, "narrowed"), (DOUBLE, INT, "narrowed"),
        (T.DecimalType(6, 2), T.DecimalType(4, 1), "narrowed"), (TEXT, T.CharType(3), "narrowed"),
        (T.DecimalType(6, 2), T.DecimalType(6, 3), "changed"), (LONG, DOUBLE, "changed"),
        (INT, FLOAT, "changed"), (INT, T.DecimalType(38, 0), "changed"), (INT, TEXT, "changed"),
        (T.DateType(), T.TimestampNTZType(), "changed"), (TEXT, T.BinaryType(), "changed"),
        (T.TimestampType(), T.TimestampNTZType(), "changed"), (LONG, struct(n=LONG), "changed"),
        (struct(n=LONG), LONG, "changed"), (T.ArrayType(INT), T.MapType(TEXT, INT), "changed"),
        (T.ArrayType(INT), INT, "changed"), (T.VarcharType(3), T.VarcharType(9), "changed"),
    ],
)  # fmt: skip
def test_any_other_type_is_refused_with_its_path(
    where: str, stored: T.DataType, wanted: T.DataType, how: str
) -> None:
    path, wrap, _ = WRAPPERS[where]
    evolution = compare(wrap(stored), wrap(wanted))
    change = f"from {stored.simpleString()} to {wanted.simpleString()}"
    assert evolution.refused == (f"field {path!r} {how} {change}{NOT}",)
    assert evolution.changes == evolution.refused
    assert evolution.verdict is Verdict.INCOMPATIBLE
    with pytest.raises(IncompatibleStateError, match=rf"field '{path}' {how}"):
        converter(wrap(stored), wrap(wanted))


ALL_TYPES: list[T.DataType] = [
    BYTE, T.ShortType(), INT, LONG, FLOAT, DOUBLE, TEXT, T.StringType("UTF8_LCASE"),
    T.CharType(3), T.VarcharType(3), T.BinaryType(), T.BooleanType(), T.DateType(),
    T.TimestampType(), T.TimestampNTZType(), T.DecimalType(6, 2), T.DecimalType(8, 3),
    T.ArrayType(INT), T.MapType(TEXT, INT), struct(n=INT),
]  # fmt: skip
ALLOWED = {
    "tinyint": {"smallint", "int", "bigint", "double"},
    "smallint": {"int", "bigint", "double"},
    "int": {"bigint", "double"},
    "float": {"double"},
    "char(3)": {"string"},
    "varchar(3)": {"string"},
    "decimal(6,2)": {"decimal(8,3)"},
}


@pytest.mark.parametrize(("stored", "wanted"), list(product(ALL_TYPES, ALL_TYPES)))
def test_every_pair_of_types_has_one_verdict(stored: T.DataType, wanted: T.DataType) -> None:
    """Scenario 41: every type to every other."""
    evolution = compare(struct(f=stored), struct(f=wanted))
    if stored == wanted:
        assert evolution.verdict is Verdict.SAME
        assert evolution.changes == ()
    elif wanted.simpleString() in ALLOWED.get(stored.simpleString(), set()):
        assert evolution.verdict is Verdict.EVOLVED
    else:
        assert evolution.verdict is Verdict.INCOMPATIBLE
        assert "field 'f' " in evolution.refused[0]


@pytest.mark.parametrize(
    ("stored", "wanted", "changes", "value", "converted"),
    [
        (struct(a=INT), struct(a=INT, b=TEXT), ["field 'b' added, null in stored values"],
         (1,), (1, None)),
        (struct(a=INT), struct(b=TEXT, a=INT), ["field 'b' added, null in stored values"],
         (1,), (None, 1)),
        (struct(a=INT, b=TEXT), struct(b=TEXT), ["field 'a' removed, stored values drop it"],
         (1, "x"), ("x",)),
        (struct(a=INT, b=TEXT), struct(a=INT), ["field 'b' removed, stored values drop it"],
         (1, "x"), (1,)),
        (struct(a=INT, b=TEXT), struct(b=TEXT, a=INT), ["fields reordered"], (1, "x"), ("x", 1)),
        (struct(a=INT), struct(), ["field 'a' removed, stored values drop it"], (1,), ()),
        (struct(), struct(a=INT), ["field 'a' added, null in stored values"], (), (None,)),
        (struct(a=INT, b=TEXT, c=INT), struct(c=DOUBLE, d=TEXT, a=LONG),
         ["field 'b' removed, stored values drop it", "field 'c' widened from int to double",
          "field 'd' added, null in stored values", "field 'a' widened from int to bigint",
          "fields reordered"],
         (1, "x", 3), (3.0, None, 1)),
    ],
)  # fmt: skip
def test_fields_are_matched_by_name(
    stored: T.StructType, wanted: T.StructType, changes: list[str], value: Any, converted: Any
) -> None:
    assert compare(stored, wanted).changes == tuple(changes)
    assert compare(stored, wanted).verdict is Verdict.EVOLVED
    convert = converter(stored, wanted)
    assert convert is not None
    assert repr(convert(value)) == repr(converted)
    # The same one level down: as a Row and as a tuple, in an array and in a map.
    inside = converter(
        struct(s=stored, a=T.ArrayType(stored), m=T.MapType(TEXT, stored)),
        struct(s=wanted, a=T.ArrayType(wanted), m=T.MapType(TEXT, wanted)),
    )
    assert inside is not None
    stored_row = Row(*stored.names)(*value) if stored.names else Row()
    for nested in (value, stored_row):
        row, items, entries = inside((nested, [nested, None], {"k": nested, "n": None}))
        assert row == converted
        assert items == [converted, None]
        assert entries == {"k": converted, "n": None}
        for made in (row, items[0], entries["k"]):
            assert isinstance(made, Row)
            assert made.asDict() == dict(zip(wanted.names, converted, strict=True))


@pytest.mark.parametrize("where", WRAPPERS)
def test_a_struct_of_which_no_field_is_kept_is_refused(where: str) -> None:
    path, wrap, _ = WRAPPERS[where]
    evolution = compare(wrap(struct(a=INT, b=INT)), wrap(struct(c=INT)))
    assert evolution.refused == (f"no field of {path!r} is kept, stored values would be lost{NOT}",)
    assert evolution.verdict is Verdict.INCOMPATIBLE
    top = compare(struct(a=INT), struct(b=INT))
    assert top.refused == (f"no field of the schema is kept, stored values would be lost{NOT}",)


def test_marks_are_no_values_that_are_kept() -> None:
    def with_mark(**fields: T.DataType) -> T.StructType:
        return T.StructType([T.StructField("__present", T.BooleanType()), *struct(**fields).fields])

    renamed = compare(with_mark(a=INT, b=INT), with_mark(c=INT))
    lost = f"no field of the schema is kept, stored values would be lost{NOT}"
    assert renamed.refused == (lost,)
    for other in (with_mark(a=INT), with_mark(c=INT, b=INT), with_mark(a=INT, b=INT)):
        assert compare(with_mark(a=INT, b=INT), other).refused == ()
    assert compare(with_mark(), with_mark(a=INT)).refused == ()


def test_marks_are_true_in_values_of_another_program() -> None:
    """Else `combine` would take them for keys without a value, and begin anew."""

    def with_marks(*names: str, **fields: T.DataType) -> T.StructType:
        marks = [T.StructField(name, T.BooleanType()) for name in names]
        return T.StructType([*marks, *struct(**fields).fields])

    stored, wanted = (
        struct(b=INT, a=INT),
        with_marks("__present", "__has_a", "__has_c", a=INT, c=INT),
    )
    assert compare(stored, wanted).changes == (
        "field 'b' removed, stored values drop it",
        "field '__present' added, true in stored values",
        "field '__has_a' added, true in stored values",
        "field '__has_c' added, null in stored values",
        "field 'c' added, null in stored values",
    )
    convert = converter(stored, wanted)
    assert convert is not None
    assert convert((2, 1)) == (True, True, None, 1, None)
    own = with_marks("__presentation", a=INT, b=INT)  # a field of the user's
    assert "field '__presentation' added, null in stored values" in compare(stored, own).changes
    nested = converter(struct(s=stored), struct(s=with_marks("__present", a=INT, b=INT)))
    assert nested is not None
    assert nested(((2, 1),)) == ((None, 1, 2),)


def test_changes_in_nested_structs_name_the_whole_path() -> None:
    stored = struct(a=T.ArrayType(struct(b=INT, c=INT, d=INT)))
    wanted = struct(a=T.ArrayType(struct(e=INT, c=INT, b=LONG)))
    assert compare(stored, wanted).removed == ("a.element.d",)
    assert compare(stored, wanted).changes == (
        "field 'a.element.d' removed, stored values drop it",
        "field 'a.element.e' added, null in stored values",
        "field 'a.element.b' widened from int to bigint",
        "fields of 'a.element' reordered",
    )


@pytest.mark.parametrize(
    ("strict", "loose", "path"),
    [
        (not_null("a", INT), struct(a=INT), "a"),
        (struct(s=not_null("a", INT)), struct(s=struct(a=INT)), "s.a"),
        (struct(a=T.ArrayType(INT, containsNull=False)), struct(a=T.ArrayType(INT)), "a.element"),
        (struct(m=T.MapType(TEXT, INT, valueContainsNull=False)), struct(m=T.MapType(TEXT, INT)),
         "m.value"),
    ],
)  # fmt: skip
def test_null_may_become_allowed_but_not_forbidden(
    strict: T.StructType, loose: T.StructType, path: str
) -> None:
    assert compare(strict, loose).changes == (f"field {path!r} now takes null",)
    assert compare(strict, loose).verdict is Verdict.EVOLVED
    assert converter(strict, loose) is None
    assert compare(loose, strict).refused == (f"field {path!r} no longer takes null{NOT}",)


def test_a_field_added_as_not_null_is_refused() -> None:
    wanted = T.StructType([*struct(a=INT).fields, *not_null("b", INT).fields])
    text = f"field 'b' added as not null, stored values have none{NOT}"
    assert compare(struct(a=INT), wanted).refused == (text,)
    nested = compare(struct(s=struct(a=INT)), struct(s=wanted))
    assert nested.refused == (text.replace("'b'", "'s.b'"),)


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        (INT, LONG), (INT, TEXT), (struct(a=INT, b=INT), struct(b=INT, a=INT)),
        (struct(a=INT), struct(a=INT, b=INT)), (not_null("a", INT), struct(a=INT)),
    ],
)  # fmt: skip
def test_keys_of_a_map_stay_as_they_are(stored: T.DataType, wanted: T.DataType) -> None:
    evolution = compare(struct(m=T.MapType(stored, INT)), struct(m=T.MapType(wanted, LONG)))
    refused, widened = evolution.changes
    assert refused.startswith("field 'm.key' changed from")
    assert refused.endswith(NOT)
    assert evolution.refused == (refused,)
    assert widened == "field 'm.value' widened from int to bigint"


def test_every_refusal_is_listed_not_only_the_first() -> None:
    stored = struct(a=LONG, b=struct(c=TEXT), d=INT)
    evolution = compare(stored, struct(a=INT, b=struct(c=INT), d=LONG))
    assert len(evolution.changes) == 3
    assert [text.split("'")[1] for text in evolution.refused] == ["a", "b.c"]


def test_a_changed_field_whose_name_occurs_twice_is_refused() -> None:
    twice = T.StructType([T.StructField("a", INT), T.StructField("a", INT)])
    assert compare(twice, twice).verdict is Verdict.SAME
    assert converter(twice, twice) is None
    assert compare(struct(s=twice, b=INT), struct(s=twice, b=LONG)).verdict is Verdict.EVOLVED
    for stored, wanted in ((twice, struct(a=TEXT)), (struct(a=TEXT), twice)):
        assert compare(stored, wanted).refused == (
            f"field 'a' occurs more than once, so it is ambiguous{NOT}",
        )


def test_metadata_is_not_looked_at() -> None:
    plain = struct(a=INT, s=struct(b=INT))
    noted = T.StructType([T.StructField("a", INT, metadata={"x": 1}), plain.fields[1]])
    assert compare(plain, noted).verdict is Verdict.SAME
    assert converter(plain, noted) is None


def test_a_schema_read_back_from_its_stored_form_is_the_same() -> None:
    schema = struct(
        a=T.ArrayType(struct(b=T.MapType(TEXT, T.DecimalType(5, 2)))), c=T.StringType("UTF8_LCASE")
    )
    assert compare(schema, T.StructType.fromJson(schema.jsonValue())).verdict is Verdict.SAME


def test_names_alone_count_where_nulls_are_left_out() -> None:
    loose = struct(a=T.ArrayType(INT), m=T.MapType(TEXT, INT), s=struct(b=INT))
    strict = T.StructType(
        [
            T.StructField("a", T.ArrayType(INT, containsNull=False), nullable=False),
            T.StructField("m", T.MapType(TEXT, INT, valueContainsNull=False)),
            T.StructField("s", not_null("b", INT)),
        ]
    )
    assert not same_type(loose, strict)
    assert same_type(loose, strict, nullability=False)
    for other in (
        struct(a=T.ArrayType(LONG), m=T.MapType(TEXT, INT), s=struct(b=INT)),
        struct(a=T.ArrayType(INT), m=T.MapType(TEXT, LONG), s=struct(b=INT)),
        struct(a=T.ArrayType(INT), m=T.MapType(INT, INT), s=struct(b=INT)),
        struct(a=T.ArrayType(INT), m=T.MapType(TEXT, INT), s=struct(c=INT)),
        struct(m=T.MapType(TEXT, INT), a=T.ArrayType(INT), s=struct(b=INT)),
        struct(a=T.ArrayType(INT), m=T.MapType(TEXT, INT)),
    ):
        assert not same_type(loose, other, nullability=False)
