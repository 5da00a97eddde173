"""The columns that users give to an edit, checked before they are cast to their table's types.

Spark's cast drops the fraction of a number, takes a double that has no room for all digits, and
without ANSI gives null for a text that is not a number. A key or value that changed silently would
be another one.
"""

from __future__ import annotations

from functools import partial, reduce
from operator import or_

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.editing.typed_frames import TableColumns
from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.schema.evolution import PRESENT_MARK, is_mark
from pyspark_ckpt.spark.program import check_frame
from pyspark_ckpt.values.nesting import holds, mapped, pairs, sql_name
from pyspark_ckpt.values.spark import MONTHS
from pyspark_ckpt.values.types import MOMENTS, NUMBERS, Kind, find_leaf, in_python, kind_of

_EXACT_TEXT = T.DecimalType(38, 18)
_NUMBERS = NUMBERS | {Kind.BOOLEAN}
_TIMES = MOMENTS | {Kind.DATE, Kind.DURATION, Kind.TIME_OF_DAY}


def quoted(name: str) -> Column:
    """Return the column of a name, which may have dots."""
    return F.col(sql_name(name))


def selected(
    rows: DataFrame, columns: TableColumns, where: str, *, in_ms: bool = False
) -> DataFrame:
    """Return the rows with the columns of a table, in its types.

    Marks of `combine` need not be given: a value that is put is present. The table's own times are
    timestamps, or milliseconds.
    """
    check_frame(rows, where, "rows", PlanError)
    wanted = {name: in_python(kind) for name, kind in columns.all_of(in_ms=in_ms)}
    given, marks = rows.columns, [name for name, kind in wanted.items() if is_mark(name, kind)]
    for name in marks:
        if name not in rows.columns or name == PRESENT_MARK:
            rows = rows.withColumn(name, F.lit(True))  # noqa: FBT003
    may_lack = {columns.position, columns.expires_at}
    missing = [name for name in wanted if name not in rows.columns and name not in may_lack]
    unknown = [name for name in rows.columns if name not in wanted]
    if missing or unknown or len(set(rows.columns)) != len(rows.columns):
        shown = ", ".join(
            f"{name} {kind.simpleString()}" for name, kind in wanted.items() if name not in marks
        )
        raise PlanError(
            f"{where}: the rows have the columns {', '.join(given)}, and its table has "
            f"{shown}: give these columns"
        )
    if columns.position is not None and columns.position not in rows.columns:
        rows = rows.withColumn(columns.position, F.monotonically_increasing_id())
    names = rows.columns
    try:
        return rows.select(
            *(_cast(rows, name, kind, where) for name, kind in wanted.items() if name in names)
        )
    except AnalysisException as exc:
        raise PlanError(f"{where}: a column cannot have the type of its table: {exc}") from exc


def in_spark(columns: TableColumns) -> T.StructType:
    """Return the columns of a table in the types in which they come to Python.

    The table's own times are milliseconds.
    """
    fields = [(name, in_python(kind)) for name, kind in columns.all_of(in_ms=True)]
    return T.StructType([T.StructField(name, kind) for name, kind in fields])


def _cast(rows: DataFrame, name: str, kind: T.DataType, where: str) -> Column:
    column, given = quoted(name), rows.schema[name].dataType
    if given == kind:
        return column
    if holds(given, T.YearMonthIntervalType):  # Spark casts only months to numbers
        given = mapped(given, _in_months)
        column = column.cast(given)
    what = f"{where}: column {name!r}"
    column = _by_name(column, given, kind, what)
    in_order = _in_order(given, kind)
    if (says := other_kind(in_order, kind)) is not None:
        raise PlanError(f"{what}: {says}")
    lost = loss(column, in_order, kind)
    if lost is not None:
        text = (
            f"{what} has a value that is not the same as {kind.simpleString()}: give the column "
            "that type, or cast it yourself. The value is "
        )
        value = F.coalesce(column.cast("string"), F.lit("null"))
        refused = F.raise_error(F.concat(F.lit(text), value))
        column = F.when(F.coalesce(lost, F.lit(False)), refused).otherwise(column)  # noqa: FBT003
    return column.cast(kind).alias(name)


def _in_order(given: T.DataType, wanted: T.DataType) -> T.DataType:
    """Return the type that :func:`_by_name` gives a column."""
    if isinstance(given, T.StructType) and isinstance(wanted, T.StructType):
        by_name = given.names != wanted.names
        pairs = ((given[each.name] if by_name else given[n], each) for n, each in enumerate(wanted))
        return T.StructType(
            [T.StructField(one.name, _in_order(one.dataType, b.dataType)) for one, b in pairs]
        )
    if isinstance(given, T.ArrayType) and isinstance(wanted, T.ArrayType):
        return T.ArrayType(_in_order(given.elementType, wanted.elementType))
    if isinstance(given, T.MapType) and isinstance(wanted, T.MapType):
        keys = _in_order(given.keyType, wanted.keyType)
        return T.MapType(keys, _in_order(given.valueType, wanted.valueType))
    return given


def _by_name(column: Column, given: T.DataType, wanted: T.DataType, where: str) -> Column:
    """Return a column whose structs have their fields in the wanted order.

    Spark casts structs by position, whatever their names are.
    """
    if not _has_another_order(given, wanted, where):
        return column
    if isinstance(given, T.StructType) and isinstance(wanted, T.StructType):
        fields = [
            _by_name(column.getField(each.name), given[each.name].dataType, each.dataType, where)
            for each in wanted.fields
        ]
        made = F.struct(*map(Column.alias, fields, wanted.names))
        return F.when(column.isNotNull(), made)
    if isinstance(given, T.MapType) and isinstance(wanted, T.MapType):
        keys, values = (
            partial(_by_name, given=one, wanted=other, where=where)
            for one, other in (
                (given.keyType, wanted.keyType),
                (given.valueType, wanted.valueType),
            )
        )
        changed = F.transform_keys(column, lambda key, _: keys(key))
        return F.transform_values(changed, lambda _, value: values(value))
    assert isinstance(given, T.ArrayType)
    assert isinstance(wanted, T.ArrayType)
    one, other = given.elementType, wanted.elementType
    return F.transform(column, lambda item: _by_name(item, one, other, where))


def _has_another_order(given: T.DataType, wanted: T.DataType, where: str) -> bool:
    """Return whether a struct inside has its fields in another order; refuse other fields."""
    if isinstance(given, T.ArrayType) and isinstance(wanted, T.ArrayType):
        return _has_another_order(given.elementType, wanted.elementType, where)
    if isinstance(given, T.MapType) and isinstance(wanted, T.MapType):
        keys = _has_another_order(given.keyType, wanted.keyType, where)
        return _has_another_order(given.valueType, wanted.valueType, where) or keys
    if not isinstance(given, T.StructType) or not isinstance(wanted, T.StructType):
        return False
    if sorted(given.names) != sorted(wanted.names):
        raise PlanError(
            f"{where} has {given.simpleString()}, its table has {wanted.simpleString()}: give "
            "structs with these fields"
        )
    if given.names == wanted.names:
        pairs = zip(given.fields, wanted.fields, strict=True)
        return any(_has_another_order(a.dataType, b.dataType, where) for a, b in pairs)
    if len({*given.names}) < len(given.names):
        raise PlanError(f"{where} has {given.simpleString()}, in which two fields have one name")
    return True


def _in_months(data_type: T.DataType) -> T.DataType:
    is_interval = isinstance(data_type, T.YearMonthIntervalType)
    return MONTHS if is_interval else data_type


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
    for one, other in pairs(given, wanted):
        kinds = kind_of(one), kind_of(other)
        if kinds[0] in _NUMBERS and kinds[1] in _TIMES:
            remedy = "make a time of it"
            if kinds[1] in MOMENTS:
                remedy += ", of milliseconds with timestamp_millis"
        elif kinds[0] in _TIMES and kinds[1] in _NUMBERS:
            remedy = "make a number of it"
            if kinds[0] in MOMENTS:
                remedy += ", of milliseconds with unix_millis"
        else:
            continue
        return (
            f"{one.simpleString()} is given and {other.simpleString()} is wanted, and a "
            f"cast of Spark would count in seconds, not in milliseconds: {remedy}"
        )
    return None


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
    one, other = find_leaf(given), find_leaf(wanted)
    kind, into = one and one.kind, other and other.kind
    if given == wanted or kind is Kind.NULL:
        return None
    if kind is into and kind in (Kind.TEXT, Kind.FRACTION):
        return None  # fractions are rounded as a processor's update would do
    if one and other and kind is into is Kind.INTEGER and one.bits <= other.bits:
        return None
    cast = column.cast(wanted)
    if kind is Kind.VARIANT:
        return column.isNotNull() & cast.isNull()
    if kind is Kind.TEXT:
        is_no_value = column.isNotNull() & cast.isNull()
        if into in (Kind.INTEGER, Kind.DECIMAL):  # "5.7" is 5 without ANSI
            scale = wanted.scale if isinstance(wanted, T.DecimalType) else 0
            has_more_digits = column.rlike(rf"\.\d{{{scale}}}\d*[1-9]")
            changes = ~column.cast(_EXACT_TEXT).eqNullSafe(cast)
            return is_no_value | F.when(column.rlike("[eE]"), changes).otherwise(has_more_digits)
        if other is None or other.whole_text is None:
            return is_no_value
        return is_no_value | ~column.rlike(other.whole_text(wanted))
    if kind is Kind.FRACTION and into is Kind.TEXT:
        return column.isNotNull()  # 5.0 is "5.0" in Spark, and another text elsewhere
    changed = column.isNotNull() & ~cast.cast(given).eqNullSafe(column)
    if one is not None and one.exact_up_to is not None:
        return changed | (F.abs(column) > one.exact_up_to)
    return changed
