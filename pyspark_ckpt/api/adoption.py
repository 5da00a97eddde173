"""``enable``: programs that are written for PySpark's own operator run on this library.

PySpark has no place for another operator, so methods of its classes are replaced while a session
is enabled. Frames of other sessions pass through to PySpark's methods.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from pyspark_ckpt.api.stream import key_by
from pyspark_ckpt.api.writer import write_stream
from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.spark.plan import has_operators
from pyspark_ckpt.spark.session import frame_of_groups, id_of_session

logger = library_logger(__name__)

_GROUPINGS = ("groupBy", "groupby")
_OPERATORS = ("transformWithState", "transformWithStateInPandas")
_KEYS = "_pyspark_ckpt_keys"
"""Attribute of what ``groupBy`` returns: the columns that it was given."""

_guard = threading.Lock()
"""Guards what follows."""

_enabled: dict[str, SparkSession] = {}
"""The enabled sessions by their ids: PySpark may have several objects of one session."""


class _Replaced(NamedTuple):
    """An attribute of PySpark's, whether the class itself had it, and what stands for it."""

    own: Any
    is_own: bool
    ours: Any


_replaced: dict[tuple[type, str], _Replaced] = {}


def enable(spark: SparkSession) -> None:
    """Run a program that is written for PySpark's operator on this library.

    Call it on the driver, before the program builds its query. From then on, for DataFrames of this
    session, ``df.groupBy(...).transformWithState(...)`` and ``transformWithStateInPandas`` are
    those of :func:`key_by`, and ``df.writeStream`` is :func:`write_stream` if the query has an
    operator of this library. All other queries, and all other sessions, are PySpark's as before.

    The operators take the arguments of this library too. A query with several of them needs a
    `uid` for each.

    The call replaces methods of PySpark's classes in this process, until :func:`disable` puts them
    back. It changes nothing of the session, and an import of this library replaces nothing. A
    session made of this one (``newSession()``) is another session. So is that of the frames in
    ``foreachBatch``.

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
    session = _checked(spark, "enable")
    if session_of(session).why_ended() is not None:
        raise ConfigurationError(
            "enable needs a Spark session, and this one was stopped: give a running one"
        )
    frame = session.range(0)
    with _guard:
        for name in _GROUPINGS:
            _replace(type(frame), name, _grouping)
        for name in _OPERATORS:
            _replace(type(frame.groupBy()), name, partial(_operator, name=name))
        _replace(type(frame), "writeStream", _writer)
        _enabled[id_of_session(session)] = session
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
    session = _checked(spark, "disable")
    with _guard:
        for key in [key for key, each in _enabled.items() if _is_same(key, each, session)]:
            del _enabled[key]
        if _enabled:
            return
        for (owner, name), (own, is_own, ours) in _replaced.items():
            if vars(owner).get(name) is not ours:
                logger.warning(
                    "%s.%s stays: something else has replaced it since enable()",
                    owner.__name__,
                    name,
                )
            elif is_own:
                setattr(owner, name, own)
            else:
                delattr(owner, name)
        _replaced.clear()
    logger.info("transformWithState and writeStream are PySpark's again")


def _checked(spark: Any, call: str) -> SparkSession:
    if isinstance(spark, type) or not hasattr(type(spark), "readStream"):
        raise ConfigurationError(
            f"{call} got {type(spark).__name__} for spark: give a SparkSession"
        )
    session: SparkSession = getattr(spark, "sparkSession", spark)  # of a SQLContext
    return session


def _is_same(key: str, enabled: SparkSession, given: SparkSession) -> bool:
    if enabled is given:
        return True
    try:
        return key == id_of_session(given)
    except Exception:  # its JVM or its server is gone
        return False


def _is_enabled(df: DataFrame) -> bool:
    session = df.sparkSession
    return bool(_enabled) and (
        any(each is session for each in list(_enabled.values()))
        or id_of_session(session) in _enabled
    )


def _replace(owner: type, name: str, made_of: Callable[[Any], Any]) -> None:
    own = getattr(owner, name, None)  # PySpark 4.0 has no operator of rows
    if own is None or (owner, name) in _replaced:
        return
    ours = made_of(own)
    if not isinstance(ours, property):  # pickled by its name, also where a class inherits it
        ours.__module__, ours.__qualname__ = owner.__module__, f"{owner.__qualname__}.{name}"
    _replaced[owner, name] = _Replaced(own, name in vars(owner), ours)
    setattr(owner, name, ours)


def _grouping(own: Any) -> Any:
    @wraps(own)
    def group_by(df: DataFrame, *columns: Any) -> Any:
        groups = own(df, *columns)
        if _is_enabled(df):
            setattr(groups, _KEYS, _flat(columns))
        return groups

    return group_by


def _flat(columns: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return columns that may have been given as one list, as they are now."""
    is_list = len(columns) == 1 and isinstance(columns[0], Sequence)
    return tuple(columns[0]) if is_list and not isinstance(columns[0], str) else columns


def _operator(own: Any, name: str) -> Any:
    @wraps(own)
    def operator(groups: Any, *args: Any, **kwargs: Any) -> DataFrame:
        columns = getattr(groups, _KEYS, None)
        df = frame_of_groups(groups)
        if columns is None or not _is_enabled(df):
            return own(groups, *args, **kwargs)  # type: ignore[no-any-return]
        keys = [df.columns[each - 1] if _is_ordinal(each) else each for each in columns]
        return getattr(key_by(df, *keys), name)(*args, **kwargs)  # type: ignore[no-any-return]

    return operator


def _is_ordinal(column: object) -> bool:
    """Return whether a column is given by its place, which PySpark counts from 1."""
    return isinstance(column, int) and not isinstance(column, bool)


def _writer(own: Any) -> Any:
    @wraps(own.fget)
    def writer(df: DataFrame) -> Any:
        if _is_enabled(df) and has_operators(df):
            return write_stream(df)
        return own.fget(df)

    return property(writer)
