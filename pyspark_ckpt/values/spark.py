"""The types in which Spark sends columns to Python, and the expressions of that in a plan.

Spark sends nearly every type as it is: see `in_python` and `sent_as` in the table of types. A
struct has its fields by position if two of them have the same name, because Spark refuses those in
Arrow.
"""

from __future__ import annotations

from functools import partial

from pyspark.sql import Column
from pyspark.sql import types as T

from pyspark_ckpt.values.nesting import by_place, holds, mapped
from pyspark_ckpt.values.types import Kind, classes_of, find_leaf, in_python, kind_of

MONTHS = T.YearMonthIntervalType(T.YearMonthIntervalType.MONTH)


def sent_type(data_type: T.DataType) -> T.DataType:
    """Return the type in which values of a type travel; everything in it is nullable."""
    return mapped(data_type, _sent_leaf, names=_names_in_arrow)


def sent(data_type: T.DataType, column: Column) -> Column:
    """Return the expression that sends a column."""
    wanted = sent_type(data_type)
    if wanted == mapped(data_type):
        return column
    if _has_months(data_type):  # Spark casts only months to a number
        column = column.cast(mapped(data_type, partial(_in_months, sent=False)))
    return column.cast(wanted)


def restored(data_type: T.DataType, column: Column) -> Column:
    """Return the expression that gives a sent column its own type back."""
    wanted = plain_type(data_type)
    if wanted == sent_type(data_type):
        return column
    if _has_months(data_type):
        column = column.cast(
            mapped(data_type, partial(_in_months, sent=True), names=_names_in_arrow)
        )
    return column.cast(wanted)


def plain_type(data_type: T.DataType) -> T.DataType:
    """Return the type with everything nullable, and with strings for char and varchar."""
    return mapped(data_type, _text_leaf)


def _names_in_arrow(names: list[str]) -> list[str]:
    return names if len(set(names)) == len(names) else by_place(names)


def _text_leaf(leaf: T.DataType) -> T.DataType:
    return in_python(leaf) if kind_of(leaf) is Kind.TEXT else leaf


def _sent_leaf(leaf: T.DataType) -> T.DataType:
    row = find_leaf(leaf)
    return leaf if row is None else row.in_python or row.sent_as or leaf


def _has_months(data_type: T.DataType) -> bool:
    return holds(data_type, classes_of(Kind.MONTHS))


def _in_months(leaf: T.DataType, *, sent: bool) -> T.DataType:
    if kind_of(leaf) is Kind.MONTHS:
        return MONTHS
    return _sent_leaf(leaf) if sent else leaf
