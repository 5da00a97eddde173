"""The columns that users give to an edit, in the types in which they come to Python."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.editing.table_columns import TableColumns
from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.values.codec import holds

_MONTHS = T.YearMonthIntervalType(T.YearMonthIntervalType.MONTH)


def quoted(name: str) -> Column:
    """Return the column of a name, which may have dots."""
    return F.col("`" + name.replace("`", "``") + "`")


def selected(rows: DataFrame, columns: TableColumns, where: str) -> DataFrame:
    """Return the rows with the columns of a table, in its types.

    Raises
    ------
    PlanError
        If a column is missing or cannot have its type.
    """
    wanted = {name: in_python(kind) for name, kind in columns.all_of()}
    may_lack = {columns.position, columns.expires_at}
    missing = [name for name in wanted if name not in rows.columns and name not in may_lack]
    unknown = [name for name in rows.columns if name not in wanted]
    if missing or unknown or len(set(rows.columns)) != len(rows.columns):
        shown = ", ".join(f"{name} {kind.simpleString()}" for name, kind in wanted.items())
        raise PlanError(
            f"{where}: the rows have the columns {', '.join(rows.columns)}, and its table has "
            f"{shown}: give these columns"
        )
    if columns.position is not None and columns.position not in rows.columns:
        rows = rows.withColumn(columns.position, F.monotonically_increasing_id())
    try:
        return rows.select(
            *(_cast(rows, name, kind) for name, kind in wanted.items() if name in rows.columns)
        )
    except AnalysisException as exc:
        raise PlanError(f"{where}: a column cannot have the type of its table: {exc}") from exc


def in_spark(columns: TableColumns) -> T.StructType:
    """Return the columns of a table in the types in which they come to Python."""
    fields = [(name, in_python(kind)) for name, kind in columns.all_of()]
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


def _cast(rows: DataFrame, name: str, kind: T.DataType) -> Column:
    column, given = quoted(name), rows.schema[name].dataType
    if given == kind:
        return column
    if holds(given, T.YearMonthIntervalType):  # Spark casts only months to numbers
        column = column.cast(_leaves(given, _in_months))
    return column.cast(kind).alias(name)


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
