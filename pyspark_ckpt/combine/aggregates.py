"""What ``combine`` can compute of the rows of a key, and the rule of each aggregate."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.values.arrow import arrow_type
from pyspark_ckpt.values.types import MOST_SUMMED_DIGITS, find_leaf, is_grouped


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A value that is computed of one column of a key's rows; the base of all aggregates.

    Parameters
    ----------
    column : str or None
        The column of the stream.

    Examples
    --------
    >>> isinstance(ckpt.agg.Sum("size"), ckpt.agg.Aggregate)
    True
    """

    column: str | None


@dataclass(frozen=True, slots=True)
class Count(Aggregate):
    """The number of rows of a key, or of those where a column is not null; a long.

    Parameters
    ----------
    column : str, optional
        The column.

    Examples
    --------
    >>> counts = ckpt.key_by(events, "user").combine({"n": ckpt.agg.Count()}, uid="count")
    """

    column: str | None = None


@dataclass(frozen=True, slots=True)
class Sum(Aggregate):
    """The sum of a column of numbers; null if the key has only nulls.

    Its type is that of Spark's ``sum``. A sum of whole numbers that does not fit a long is an
    error. A sum of fractions depends on the order of the rows.

    Parameters
    ----------
    column : str
        The column.

    Examples
    --------
    >>> from pyspark.sql import functions as F
    >>> sized = events.withColumn("size", F.length("user"))
    >>> sizes = ckpt.key_by(sized, "user").combine({"size": ckpt.agg.Sum("size")}, uid="sizes")
    """

    column: str


@dataclass(frozen=True, slots=True)
class Min(Aggregate):
    """The least value of a column, nulls left out; NaN is greater than any number, as in Spark.

    Parameters
    ----------
    column : str
        The column.

    Examples
    --------
    >>> first = ckpt.key_by(events, "user").combine({"least": ckpt.agg.Min("user")}, uid="least")
    """

    column: str


@dataclass(frozen=True, slots=True)
class Max(Aggregate):
    """The greatest value of a column, nulls left out; NaN is greater than any number, as in Spark.

    Parameters
    ----------
    column : str
        The column.

    Examples
    --------
    >>> greatest = {"greatest": ckpt.agg.Max("user")}
    >>> last = ckpt.key_by(events, "user").combine(greatest, uid="greatest")
    """

    column: str


@dataclass(frozen=True, slots=True)
class First(Aggregate):
    """The value, or null, of the row of a key that was taken first.

    Parameters
    ----------
    column : str
        The column.

    Examples
    --------
    >>> first = ckpt.key_by(events, "user").combine({"first": ckpt.agg.First("user")}, uid="first")
    """

    column: str


@dataclass(frozen=True, slots=True)
class Last(Aggregate):
    """The value, or null, of the row of a key that was taken last.

    Parameters
    ----------
    column : str
        The column.

    Examples
    --------
    >>> last = ckpt.key_by(events, "user").combine({"last": ckpt.agg.Last("user")}, uid="last")
    """

    column: str


@dataclass(frozen=True, slots=True)
class CollectList(Aggregate):
    """All values of a column in the order in which they were taken, nulls left out; an array.

    Parameters
    ----------
    column : str
        The column.

    Examples
    --------
    >>> everything = {"all": ckpt.agg.CollectList("user")}
    >>> all_of = ckpt.key_by(events, "user").combine(everything, uid="all")
    """

    column: str


class Merge(Enum):
    """How two partial values of an aggregate become one."""

    SUM = auto()
    MIN = auto()
    MAX = auto()
    FIRST = auto()
    LAST = auto()
    LIST = auto()


MERGES: dict[type[Aggregate], Merge] = {
    Count: Merge.SUM,
    Sum: Merge.SUM,
    Min: Merge.MIN,
    Max: Merge.MAX,
    First: Merge.FIRST,
    Last: Merge.LAST,
    CollectList: Merge.LIST,
}


_BY_ORDER = (First, Last, CollectList)


def result_type(aggregate: Aggregate, data_type: T.DataType, where: str) -> T.DataType:
    """Return the Spark type of a result, and of partial values, for a type of the column."""
    if isinstance(aggregate, Count):
        return T.LongType()
    if isinstance(aggregate, CollectList):
        return T.ArrayType(data_type)
    of_column = f"{type(aggregate).__name__} of column {aggregate.column!r}"
    if isinstance(aggregate, Sum):
        row = find_leaf(data_type)
        if row is not None and (summed := row.sum_type(data_type)) is not None:
            return summed
        raise PlanError(
            f"{where}: {of_column}, which is {data_type.simpleString()}: give a column of numbers "
            f"with at most {MOST_SUMMED_DIGITS} digits"
        )
    if isinstance(aggregate, Min | Max) and not is_grouped(data_type):
        raise PlanError(
            f"{where}: {of_column}, which is {data_type.simpleString()}: give a column whose "
            "values have an order"
        )
    return data_type


def needs_order(aggregate: Aggregate, data_type: T.DataType) -> bool:
    """Return whether a result of a type may depend on the order in which rows are taken."""
    if isinstance(aggregate, Sum):
        return isinstance(data_type, T.DoubleType)
    return isinstance(aggregate, _BY_ORDER)


def partial_values(aggregate: Aggregate, column: pa.Array, data_type: T.DataType) -> pa.Array:
    """Return the partial value of each single row: 1 to count, a list of one, or the value."""
    wanted: Any = arrow_type(data_type)
    if isinstance(aggregate, Count):
        if aggregate.column is None:
            return pa.array(np.ones(len(column), np.int64))
        return column.is_valid().cast(wanted)
    if not isinstance(aggregate, CollectList):
        return column.cast(wanted)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(valid)]).astype(np.int32)
    values = column.drop_null().cast(wanted.value_type)
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=wanted)
