"""The columns that users give to an edit, in the types in which they come to Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.editing.given.lost_values import loss, other_kind
from pyspark_ckpt.editing.table_columns import TableColumns
from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.schema.evolution import PRESENT_MARK, is_mark
from pyspark_ckpt.operator.values.wire_form import holds
from pyspark_ckpt.spark.program import check_frame

_MONTHS = T.YearMonthIntervalType(T.YearMonthIntervalType.MONTH)


def quoted(name: str) -> Column:
    """Return the column of a name, which may have dots."""
    return F.col("`" + name.replace("`", "``") + "`")


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


def in_python(data_type: T.DataType) -> T.DataType:
    """Return the type in which a column comes to Python.

    Spark has no texts of fixed length there. Intervals of years and months, which Spark does not
    give to Python over Arrow, are numbers of months.
    """
    return _leaves(data_type, _leaf_in_python)


def _leaf_in_python(data_type: T.DataType) -> T.DataType:
    if isinstance(data_type, T.CharType | T.VarcharType):
        return T.StringType()
    if isinstance(data_type, T.YearMonthIntervalType):
        return T.IntegerType()
    return data_type


def _cast(rows: DataFrame, name: str, kind: T.DataType, where: str) -> Column:
    column, given = quoted(name), rows.schema[name].dataType
    if given == kind:
        return column
    if holds(given, T.YearMonthIntervalType):  # Spark casts only months to numbers
        given = _leaves(given, _in_months)
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
    return _MONTHS if is_interval else data_type


def _leaves(data_type: T.DataType, leaf: Callable[[T.DataType], T.DataType]) -> T.DataType:
    """Return a type with other leaves, all nullable."""
    if isinstance(data_type, T.ArrayType):
        return T.ArrayType(_leaves(data_type.elementType, leaf))
    if isinstance(data_type, T.MapType):
        return T.MapType(_leaves(data_type.keyType, leaf), _leaves(data_type.valueType, leaf))
    if isinstance(data_type, T.StructType):
        fields = ((each.name, _leaves(each.dataType, leaf)) for each in data_type.fields)
        return T.StructType([T.StructField(name, kind) for name, kind in fields])
    return leaf(data_type)
