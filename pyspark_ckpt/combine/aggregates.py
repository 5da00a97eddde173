"""What ``combine`` can compute of the rows of a key: count, sum, least, greatest and so on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A value that is computed of one column of a key's rows; the base of all aggregates.

    Parameters
    ----------
    column : str or None
        The column of the stream.

    Examples
    --------
    >>> isinstance(ckpt.Sum("size"), ckpt.Aggregate)
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
    >>> counts = ckpt.key_by(events, "user").combine({"n": ckpt.Count()}, uid="count")
    """

    column: str | None = None


@dataclass(frozen=True, slots=True)
class Sum(Aggregate):
    """The sum of a column of numbers; null if the key has only nulls.

    Its type is that of Spark's ``sum``. A sum of whole numbers that is no long any more is an
    error. A sum of fractions depends on the order of the rows.

    Parameters
    ----------
    column : str
        The column.

    Examples
    --------
    >>> from pyspark.sql import functions as F
    >>> sized = events.withColumn("size", F.length("user"))
    >>> sizes = ckpt.key_by(sized, "user").combine({"size": ckpt.Sum("size")}, uid="sizes")
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
    >>> first = ckpt.key_by(events, "user").combine({"least": ckpt.Min("user")}, uid="least")
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
    >>> last = ckpt.key_by(events, "user").combine({"greatest": ckpt.Max("user")}, uid="greatest")
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
    >>> first = ckpt.key_by(events, "user").combine({"first": ckpt.First("user")}, uid="first")
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
    >>> last = ckpt.key_by(events, "user").combine({"last": ckpt.Last("user")}, uid="last")
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
    >>> all_of = ckpt.key_by(events, "user").combine({"all": ckpt.CollectList("user")}, uid="all")
    """

    column: str
