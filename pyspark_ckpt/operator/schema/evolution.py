"""Which schemas a stored schema can evolve into without a migration, and how its values convert.

Fields are matched by name. They may be added, removed, reordered and widened, and null may become
allowed. The same holds in nested structs, elements of arrays and values of maps. Keys of maps must
stay as they are, because their order and equality must not change. A type widens only into a type
that holds all its values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from operator import itemgetter
from typing import Any

from pyspark.sql import types as T

from pyspark_ckpt.errors import IncompatibleStateError
from pyspark_ckpt.values.nesting import same_type
from pyspark_ckpt.values.plain import row_type_of
from pyspark_ckpt.values.types import widening_of

PRESENT_MARK = "__present"
"""The column of a combined state that is never null: it says that a key has a value."""

FIRST_MARK = "__has_"
"""How columns of a combined state begin that say which keys have a first value."""


def is_mark(name: str, data_type: T.DataType) -> bool:
    """Return whether a field at the top of a state's schema is a mark of `combine`."""
    is_named = name == PRESENT_MARK or name.startswith(FIRST_MARK)
    return is_named and data_type == T.BooleanType()


Value = tuple[Any, ...]
_REFUSED = "not without a migration"


class Verdict(Enum):
    """How a stored and a wanted schema compare."""

    SAME = "same"
    EVOLVED = "evolved"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True)
class Evolution:
    """The outcome of :func:`compare`."""

    changes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Incompatible if a change is refused, the same if nothing changes."""
        if self.refused:
            return Verdict.INCOMPATIBLE
        return Verdict.EVOLVED if self.changes else Verdict.SAME


def compare(
    stored: T.StructType, wanted: T.StructType, earlier: Sequence[T.StructType] = ()
) -> Evolution:
    """Compare a stored schema with the wanted one; on driver and executor.

    Metadata of fields is ignored.

    `earlier` has the schemas before the newest stored one, which entries may still have; it affects
    only the text of the changes.
    """
    comparison = _Comparison()
    comparison.types(stored, wanted, "", earlier)
    return Evolution(
        tuple(comparison.changes),
        tuple(comparison.refused),
        tuple(comparison.removed),
        tuple(comparison.advice),
    )


def converter(*history: T.StructType) -> Callable[[Value], Value] | None:
    """Return a function that converts tuples of the first schema of a history to the last one.

    It takes and returns tuples as :meth:`TupleCodec.decode` does, in any style; changed nested
    structs become Rows. A field that a schema in between lacks is there again if the last schema
    has it. It is null if it has another type by then, which does not hold the stored values.

    `history` begins with the stored schema and ends with the wanted one. Returns ``None`` if tuples
    need no conversion. The returned function raises StateValueError for a decimal that does not fit
    its stored schema.
    """
    for stored, wanted in pairwise(history):
        evolution = compare(stored, wanted)
        if evolution.refused:
            raise IncompatibleStateError(
                f"values of {stored.simpleString()} cannot become {wanted.simpleString()}: "
                f"{'; '.join(evolution.refused)}"
            )
    stored, wanted = history[0], history[-1]
    marks = [field.name for field in wanted.fields if _is_mark_added_in(field, history)]
    return _struct_converter(stored, wanted, marks)


def _is_mark_added_in(field: T.StructField, history: Sequence[T.StructType]) -> bool:
    """Return whether a field is a mark that the first schema lacks, true in its values."""
    lacking = [schema for schema in history if field.name not in schema.names]
    return field.name not in history[0].names and _is_mark_of(field, lacking[-1])


class _Comparison:
    """Collects the differences in the order of the wanted fields."""

    def __init__(self) -> None:
        self.changes: list[str] = []
        self.refused: list[str] = []
        self.removed: list[str] = []
        self.advice: list[str] = []

    def types(
        self, stored: T.DataType, wanted: T.DataType, path: str, earlier: Sequence[T.DataType]
    ) -> None:
        if same_type(stored, wanted):
            return
        if isinstance(stored, T.StructType) and isinstance(wanted, T.StructType):
            structs = [each for each in earlier if isinstance(each, T.StructType)]
            self._structs(stored, wanted, path, structs)
        elif isinstance(stored, T.ArrayType) and isinstance(wanted, T.ArrayType):
            element = f"{path}.element"
            self._nulls(stored.containsNull, wanted.containsNull, element)
            items = [each.elementType for each in earlier if isinstance(each, T.ArrayType)]
            self.types(stored.elementType, wanted.elementType, element, items)
        elif isinstance(stored, T.MapType) and isinstance(wanted, T.MapType):
            values = [each.valueType for each in earlier if isinstance(each, T.MapType)]
            self._maps(stored, wanted, path, values)
        else:
            self._other_types(stored, wanted, path)

    def _structs(
        self,
        stored: T.StructType,
        wanted: T.StructType,
        path: str,
        earlier: Sequence[T.StructType],
    ) -> None:
        repeated = sorted(_repeated(stored.names) | _repeated(wanted.names))
        for name in repeated:
            self._refuse(f"field {_below(path, name)!r} occurs more than once, so it is ambiguous")
        if repeated:
            return
        before = {field.name: field for field in stored.fields}
        # Marks of `combine` are not values: without another field nothing is kept.
        values = [each.name for each in stored.fields if path or not _is_mark(each)] or stored.names
        if values and wanted.fields and not {*values} & {*wanted.names}:
            where = repr(path) if path else "the schema"
            self._refuse(f"no field of {where} is kept, stored values would be lost")
            return
        for field in stored.fields:
            if field.name not in wanted.names:
                removed = _below(path, field.name)
                self._allow(f"field {removed!r} removed, stored values drop it")
                self.removed.append(removed)
        for field in wanted.fields:
            if not path and _is_mark_of(field, stored):
                self._allow(f"field {field.name!r} added, true in stored values")
            else:
                had = [each[field.name].dataType for each in earlier if field.name in each.names]
                self._field(before.get(field.name), field, _below(path, field.name), had)
        self._renamed(
            [name for name in values if name not in wanted.names],
            [f.name for f in wanted.fields if f.name not in before and (path or not _is_mark(f))],
            path,
        )
        if [n for n in stored.names if n in wanted.names] != [
            n for n in wanted.names if n in before
        ]:
            self._allow(f"fields of {path!r} reordered" if path else "fields reordered")

    def _renamed(self, removed: list[str], added: list[str], path: str) -> None:
        """Advise on names that may be one field: they differ in case, or they are the only ones."""
        by_case = {name.lower(): name for name in removed}
        only = removed[0] if len(removed) == len(added) == 1 else None
        for name in added:
            before = by_case.get(name.lower(), only)
            if before is not None:
                old, new = repr(_below(path, before)), repr(_below(path, name))
                if name.lower() in by_case:
                    self.advice.append(f"{old} and {new} differ in case, so they are two fields")
                self.advice.append(
                    f"If {new} is {old} renamed, stop and give a Migration with value="
                )

    def _field(
        self,
        stored: T.StructField | None,
        wanted: T.StructField,
        path: str,
        earlier: Sequence[T.DataType],
    ) -> None:
        if stored is not None:
            self._nulls(stored.nullable, wanted.nullable, path)
            self.types(stored.dataType, wanted.dataType, path, earlier)
        elif not wanted.nullable:
            self._refuse(f"field {path!r} added as not null, stored values have none")
        elif any(_holds_values_of(each, wanted.dataType) for each in earlier):
            self._allow(
                f"field {path!r} added again, as it is stored in values that were not written "
                "without it, null in others"
            )
        elif earlier:
            self._allow(
                f"field {path!r} added again with another type, null in stored values; those that "
                f"were not written without it still have it as {earlier[-1].simpleString()}"
            )
        else:
            self._allow(f"field {path!r} added, null in stored values")

    def _maps(
        self, stored: T.MapType, wanted: T.MapType, path: str, earlier: Sequence[T.DataType]
    ) -> None:
        if not same_type(stored.keyType, wanted.keyType):
            self._refuse(
                f"field {f'{path}.key'!r} changed from {stored.keyType.simpleString()} to "
                f"{wanted.keyType.simpleString()}, but keys of a map stay, with what may be null"
            )
        self._nulls(stored.valueContainsNull, wanted.valueContainsNull, f"{path}.value")
        self.types(stored.valueType, wanted.valueType, f"{path}.value", earlier)

    def _nulls(self, stored: bool, wanted: bool, path: str) -> None:  # noqa: FBT001
        if wanted and not stored:
            self._allow(f"field {path!r} now takes null")
        elif stored and not wanted:
            self._refuse(f"field {path!r} no longer takes null")

    def _other_types(self, stored: T.DataType, wanted: T.DataType, path: str) -> None:
        change = f"from {stored.simpleString()} to {wanted.simpleString()}"
        if widening_of(stored, wanted):
            self._allow(f"field {path!r} widened {change}")
        elif widening_of(wanted, stored):
            self._refuse(f"field {path!r} narrowed {change}")
        else:
            self._refuse(f"field {path!r} changed {change}")

    def _allow(self, change: str) -> None:
        self.changes.append(change)

    def _refuse(self, change: str) -> None:
        text = f"{change}: {_REFUSED}"
        self.changes.append(text)
        self.refused.append(text)


def _is_mark(field: T.StructField) -> bool:
    return is_mark(field.name, field.dataType)


def _is_mark_of(field: T.StructField, stored: T.StructType) -> bool:
    """Return whether a field is a mark of `combine` that stored values lack and imply.

    Another program may have written them: a stored value is present, and so is one of its fields.
    """
    if field.name in stored.names or not _is_mark(field):
        return False
    marked = field.name.removeprefix(FIRST_MARK)
    is_first = field.name.startswith(FIRST_MARK) and marked in stored.names
    return field.name == PRESENT_MARK or is_first


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _repeated(names: list[str]) -> set[str]:
    return {name for name in names if names.count(name) > 1}


def _holds_values_of(stored: T.DataType, wanted: T.DataType) -> bool:
    """Return whether a type holds every value of a stored one, perhaps without some fields."""
    if isinstance(stored, T.StructType) and isinstance(wanted, T.StructType):
        fields = {field.name: field for field in stored.fields}
        return all(
            field.nullable or _is_kept(fields.get(field.name), field) for field in wanted.fields
        )
    if isinstance(stored, T.ArrayType) and isinstance(wanted, T.ArrayType):
        loses_null = stored.containsNull and not wanted.containsNull
        return not loses_null and _holds_values_of(stored.elementType, wanted.elementType)
    if isinstance(stored, T.MapType) and isinstance(wanted, T.MapType):
        loses_null = stored.valueContainsNull and not wanted.valueContainsNull
        return (
            not loses_null
            and same_type(stored.keyType, wanted.keyType)
            and _holds_values_of(stored.valueType, wanted.valueType)
        )
    return same_type(stored, wanted) or widening_of(stored, wanted) is not None


def _is_kept(stored: T.StructField | None, wanted: T.StructField) -> bool:
    """Return whether a field has the stored values of another one of its name."""
    if stored is None or (stored.nullable and not wanted.nullable):
        return False
    return _holds_values_of(stored.dataType, wanted.dataType)


def _type_converter(stored: T.DataType, wanted: T.DataType) -> Callable[[Any], Any] | None:
    """Return a converter of values that are not null, ``None`` if they need no conversion."""
    if isinstance(stored, T.StructType) and isinstance(wanted, T.StructType):
        values = _struct_converter(stored, wanted)
        row_type = row_type_of(wanted.names)
        return None if values is None else lambda row: row_type(*values(row))
    if isinstance(stored, T.ArrayType) and isinstance(wanted, T.ArrayType):
        element = _type_converter(stored.elementType, wanted.elementType)
        return (
            None
            if element is None
            else lambda items: [None if i is None else element(i) for i in items]
        )
    if isinstance(stored, T.MapType) and isinstance(wanted, T.MapType):
        value = _type_converter(stored.valueType, wanted.valueType)
        return (
            None
            if value is None
            else lambda m: {k: None if v is None else value(v) for k, v in m.items()}
        )
    widening = widening_of(stored, wanted)
    return None if widening is None else widening.convert(stored, wanted)


def _struct_converter(
    stored: T.StructType, wanted: T.StructType, marks: Sequence[str] = ()
) -> Callable[[Sequence[Any]], Value] | None:
    if same_type(stored, wanted):
        return None
    # An added field takes the null that the picker puts after the stored values, a mark the true.
    added = len(stored.fields)
    fields = {field.name: field for field in wanted.fields}
    place = {
        field.name: index
        for index, field in enumerate(stored.fields)
        if field.name in fields and _is_kept(field, fields[field.name])
    }
    places = [
        place.get(field.name, added + 1 if field.name in marks else added)
        for field in wanted.fields
    ]
    converts = []
    for index, field in enumerate(wanted.fields):
        if field.name in place:
            convert = _type_converter(stored.fields[places[index]].dataType, field.dataType)
            if convert is not None:
                converts.append((index, convert))
    pick = None if places == list(range(added)) else _picker(places)
    return _in_turn(pick, converts) if converts else pick


def _in_turn(
    pick: Callable[[Sequence[Any]], Value] | None,
    converts: list[tuple[int, Callable[[Any], Any]]],
) -> Callable[[Sequence[Any]], Value]:
    def convert_struct(values: Sequence[Any]) -> Value:
        converted = list(values if pick is None else pick(values))
        for index, convert in converts:
            value = converted[index]
            if value is not None:
                converted[index] = convert(value)
        return tuple(converted)

    return convert_struct


def _picker(places: list[int]) -> Callable[[Sequence[Any]], Value]:
    """Return a function that picks values by place; after the last value are null and true."""
    if len(places) > 1:
        get = itemgetter(*places)
        return lambda values: get((*values, None, True))
    return lambda values: tuple((*values, None, True)[place] for place in places)
