"""``enable``: programs that are written for PySpark's own operator run on this library.

PySpark has no place for another operator, so methods of its classes are replaced while a session
is enabled. Frames of other sessions pass through to PySpark's methods.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from pyspark.sql import DataFrame, SparkSession

from pyspark_ckpt.api.stream import key_by
from pyspark_ckpt.api.writer import write_stream
from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.spark.plan import has_operators
from pyspark_ckpt.spark.session import frame_of_groups

logger = library_logger(__name__)

_GROUPINGS = ("groupBy", "groupby")
_OPERATORS = ("transformWithState", "transformWithStateInPandas")
_KEYS = "_pyspark_ckpt_keys"
"""Attribute of what ``groupBy`` returns: the columns that it was given."""

_guard = threading.Lock()
"""Guards what follows."""

_enabled: WeakSet[SparkSession] = WeakSet()
_replaced: dict[tuple[type, str], tuple[Any, bool]] = {}
"""PySpark's own attribute of each class and name, and whether the class itself had it."""


def enable(spark: SparkSession) -> None:
    """Run a program that is written for PySpark's operator on this library.

    Call it on the driver, before the program builds its query. From then on, for DataFrames of this
    session, ``df.groupBy(...).transformWithState(...)`` and ``transformWithStateInPandas`` are
    those of :func:`key_by`, and ``df.writeStream`` is :func:`write_stream` if the query has an
    operator of this library. All other queries, and all other sessions, are PySpark's as before.

    The operators take the arguments of this library too. A query with several of them needs a
    `uid` for each.

    The call replaces methods of PySpark's classes in this process, until :func:`disable` puts them
    back. It changes nothing of the session, and an import of this library replaces nothing.

    Parameters
    ----------
    spark : SparkSession
        A classic session, or one of Spark Connect.

    Raises
    ------
    ConfigurationError
        If `spark` is not a running session.

    Examples
    --------
    >>> ckpt.enable(spark)
    >>> counts = events.groupBy("user").transformWithState(
    ...     Count(), "user string, n long", "Update", "None"
    ... )
    >>> type(counts.writeStream).__name__
    'CheckpointedStreamWriter'
    >>> ckpt.disable(spark)
    """
    _check(spark, "enable")
    frame = spark.range(0)
    with _guard:
        for name in _GROUPINGS:
            _replace(type(frame), name, _grouping)
        for name in _OPERATORS:
            _replace(type(frame.groupBy()), name, _operator)
        _replace(type(frame), "writeStream", _writer)
        _enabled.add(spark)
    logger.info(
        "transformWithState, transformWithStateInPandas and writeStream of the session run on "
        "pyspark_ckpt, until pyspark_ckpt.disable(spark)"
    )


def disable(spark: SparkSession) -> None:
    """Undo :func:`enable` for a session; queries that run are not affected.

    Parameters
    ----------
    spark : SparkSession
        The session. One that was not enabled stays as it is.

    Raises
    ------
    ConfigurationError
        If `spark` is not a session.

    Examples
    --------
    >>> ckpt.disable(spark)
    """
    _check(spark, "disable", may_have_ended=True)
    with _guard:
        _enabled.discard(spark)
        if _enabled:
            return
        for (owner, name), (own, is_own) in _replaced.items():
            if is_own:
                setattr(owner, name, own)
            else:
                delattr(owner, name)
        _replaced.clear()
    logger.info("transformWithState and writeStream are PySpark's again")


def _check(spark: object, call: str, *, may_have_ended: bool = False) -> None:
    if not hasattr(spark, "readStream"):
        raise ConfigurationError(
            f"{call}() got {type(spark).__name__} for spark: give a SparkSession"
        )
    if not may_have_ended and session_of(spark).why_ended() is not None:
        raise ConfigurationError(f"{call}() needs a running session, and this one was stopped")


def _replace(owner: type, name: str, made_of: Callable[[Any, str], Any]) -> None:
    own = getattr(owner, name, None)  # PySpark 4.0 has no operator of rows
    if own is not None and (owner, name) not in _replaced:
        _replaced[owner, name] = own, name in vars(owner)
        setattr(owner, name, made_of(own, name))


def _grouping(own: Any, name: str) -> Any:
    def group_by(df: DataFrame, *columns: Any) -> Any:
        groups = own(df, *columns)
        if df.sparkSession in _enabled:
            setattr(groups, _KEYS, columns)
        return groups

    return _named(group_by, own, name)


def _operator(own: Any, name: str) -> Any:
    def operator(groups: Any, *args: Any, **kwargs: Any) -> DataFrame:
        given = getattr(groups, _KEYS, None)
        df = frame_of_groups(groups)
        if given is None or df.sparkSession not in _enabled:
            return own(groups, *args, **kwargs)  # type: ignore[no-any-return]
        columns = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
        keys = [df.columns[each - 1] if _is_ordinal(each) else each for each in columns]
        return getattr(key_by(df, *keys), name)(*args, **kwargs)  # type: ignore[no-any-return]

    return _named(operator, own, name)


def _is_ordinal(column: object) -> bool:
    """Return whether a column is given by its place, which PySpark counts from 1."""
    return isinstance(column, int) and not isinstance(column, bool)


def _writer(own: Any, name: str) -> Any:
    def writer(df: DataFrame) -> Any:
        if df.sparkSession in _enabled and has_operators(df):
            return write_stream(df)
        return own.fget(df)

    return property(_named(writer, own.fget, name))


def _named(function: Any, own: Any, name: str) -> Any:
    function.__name__, function.__doc__ = name, own.__doc__
    return function
