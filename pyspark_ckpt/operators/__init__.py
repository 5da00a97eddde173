"""Operators that everybody needs: deduplication, last values, top n, rolling windows, sessions.

Each is a processor over Arrow tables in one function. Its state is like that of any other operator:
it is in savepoints, can be rescaled, read and edited.

Examples
--------
>>> from pyspark_ckpt import operators
>>> unique = operators.deduplicate(ckpt.key_by(events, "user"), uid="unique")
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pyspark_ckpt.api.stream import KeyedStream
from pyspark_ckpt.combine.aggregates import Aggregate
from pyspark_ckpt.combine.combination import Aggregates
from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.modes.processors import ArrowProcessor
from pyspark_ckpt.operator.table.time_to_live import StateTtlConfig
from pyspark_ckpt.operator.time import duration_ms
from pyspark_ckpt.operators.first_rows import FirstRows
from pyspark_ckpt.operators.greatest_rows import GreatestRows
from pyspark_ckpt.operators.rolling_windows import RollingWindows
from pyspark_ckpt.operators.sessions import END, START, Sessions
from pyspark_ckpt.operators.stream_columns import StreamColumns

__all__ = ["deduplicate", "last_value", "rolling", "sessions", "top_n"]

Ttl = int | timedelta | StateTtlConfig | None

_APPEND, _UPDATE = "Append", "Update"
_EVENT = "event"
_US_PER_MS = 1_000


def deduplicate(keyed: KeyedStream, *, uid: str, ttl: Ttl = None) -> DataFrame:
    """Emit the first row of each key.

    Call it on the driver. The key is what makes two rows the same, such as the id of a message.

    Parameters
    ----------
    keyed : KeyedStream
        The stream, by key.
    uid : str
        The operator's stable name.
    ttl : int, timedelta or StateTtlConfig, optional
        How long a key is remembered after its first row, in milliseconds of processing time, or as
        the config says; forever by default. After that the next row of the key counts as the first.
        A time in event time needs a stream with a watermark, and drops late rows.

    Returns
    -------
    DataFrame
        The stream's columns, with key expressions before them.

    Raises
    ------
    PlanError
        If an argument is not allowed.

    Examples
    --------
    >>> users = ckpt.key_by(events, "user")
    >>> unique = ckpt.operators.deduplicate(users, uid="unique", ttl=3_600_000)
    >>> unique.columns
    ['user']
    """
    columns = StreamColumns.of(keyed, _where(uid))
    processor = FirstRows(columns, ttl)
    return _operator(keyed, processor, columns.emitted([], _where(uid)), _APPEND, uid, ttl)


def last_value(
    keyed: KeyedStream, *, uid: str, by: str | None = None, ttl: Ttl = None
) -> DataFrame:
    """Emit the newest row of each key, each time that it changes.

    Call it on the driver.

    Parameters
    ----------
    keyed : KeyedStream
        The stream, by key.
    uid : str
        The operator's stable name.
    by : str, optional
        The column that orders the rows of a key, such as a time or a version; of equal rows the one
        that comes later is the newest, and a null is older than any value. By default the row that
        comes last is the newest, which is not certain within an epoch if files are read in
        parallel.
    ttl : int, timedelta or StateTtlConfig, optional
        How long a row is kept, as for :func:`deduplicate`.

    Returns
    -------
    DataFrame
        The stream's columns, with key expressions before them.

    Raises
    ------
    PlanError
        If an argument is not allowed.

    Examples
    --------
    >>> last = ckpt.operators.last_value(ckpt.key_by(events, "user"), uid="last")
    """
    where = _where(uid)
    columns = StreamColumns.of(keyed, where)
    if not columns.others:
        raise PlanError(f"{where}: the stream has no column but the key: use deduplicate")
    order = None if by is None else columns.ordered(by, where)
    processor = GreatestRows(columns, order, 1, "", ttl, descending=True, later_wins=True)
    return _operator(keyed, processor, columns.emitted([], where), _UPDATE, uid, ttl)


def top_n(
    keyed: KeyedStream,
    *,
    by: str,
    n: int,
    uid: str,
    smallest: bool = False,
    rank: str = "rank",
    ttl: Ttl = None,
) -> DataFrame:
    """Emit the `n` rows of each key that are the greatest by a column, each time that they change.

    Call it on the driver. All rows of a key that is emitted come in one epoch, so a sink replaces
    what it has of the key. Nothing but these rows is kept.

    Parameters
    ----------
    keyed : KeyedStream
        The stream, by key.
    by : str
        The column that orders the rows; a null is less than any value. Of equal rows the one that
        came first counts.
    n : int
        How many rows of a key.
    uid : str
        The operator's stable name.
    smallest : bool
        Take the smallest rows instead.
    rank : str
        The name of the column with the place of the row, from 1.
    ttl : int, timedelta or StateTtlConfig, optional
        How long the rows of a key are kept after they changed, as for :func:`deduplicate`.

    Returns
    -------
    DataFrame
        The stream's columns, with key expressions before them, and the rank.

    Raises
    ------
    PlanError
        If an argument is not allowed.

    Examples
    --------
    >>> from pyspark.sql import functions as F
    >>> sized = events.withColumn("size", F.length("user"))
    >>> longest = ckpt.operators.top_n(
    ...     ckpt.key_by(sized, F.lit("all").alias("all")), by="size", n=3, uid="longest"
    ... )
    >>> longest.columns
    ['all', 'user', 'size', 'rank']
    """
    where = _where(uid)
    columns = StreamColumns.of(keyed, where)
    order = columns.ordered(by, where)
    _check_positive(n, "n", where)
    schema = columns.emitted([T.StructField(rank, T.IntegerType())], where)
    processor = GreatestRows(
        columns, order, n, rank, ttl, descending=not smallest, later_wins=False
    )
    return _operator(keyed, processor, schema, _UPDATE, uid, ttl)


def rolling(
    keyed: KeyedStream,
    aggregates: Mapping[str, Aggregate] | None = None,
    *,
    by: str,
    uid: str,
    rows: int | None = None,
    within: int | timedelta | None = None,
    distinct: Mapping[str, str] | None = None,
    ttl: Ttl = None,
) -> DataFrame:
    """Emit each row with aggregates of the rows of its key up to it.

    Call it on the driver. The rows that come in one epoch are taken in the order of a column. With
    `rows`, a row of a later epoch comes after all rows before, whatever its place in that order.
    With `within`, the window of a row has what has come until then and is not newer than the row.

    Parameters
    ----------
    keyed : KeyedStream
        The stream, by key.
    aggregates : Mapping of str to Aggregate, optional
        What is computed of a window, by the names of the columns: :mod:`pyspark_ckpt.agg`.
    by : str
        The column that orders the rows of a key; with `within` a timestamp. A row without a time is
        alone in its window, and in no other.
    uid : str
        The operator's stable name.
    rows : int, optional
        The window has so many rows: the row and those before it.
    within : int or timedelta, optional
        The window has the rows of so long a time, in milliseconds or as a ``timedelta``, up to the
        row's own time; a row that is exactly so much older is not in it.
    distinct : Mapping of str to str, optional
        Names of columns of the output, and the columns whose different values are counted, nulls
        left out.
    ttl : int, timedelta or StateTtlConfig, optional
        How long the rows of a key are kept after its last row, as for :func:`deduplicate`.

    Returns
    -------
    DataFrame
        The stream's columns, with key expressions before them, and the aggregates; one row for each
        row of the stream.

    Raises
    ------
    PlanError
        If an argument is not allowed.

    Examples
    --------
    >>> from pyspark.sql import functions as F
    >>> timed = events.withColumn("at", F.current_timestamp())
    >>> recent = ckpt.operators.rolling(
    ...     ckpt.key_by(timed, "user"), {"n": ckpt.agg.Count()}, by="at", within=60_000, uid="last"
    ... )
    >>> recent.columns
    ['user', 'at', 'n']
    """
    where = _where(uid)
    columns = StreamColumns.of(keyed, where)
    order = columns.ordered(by, where)
    if (rows is None) == (within is None):
        raise PlanError(f"{where}: a window has rows=, or within=: give one of them")
    within_us = None
    if rows is not None:
        _check_positive(rows, "rows", where)
    else:
        within_us = _us(within, "within", where)
        if not isinstance(order.dataType, T.TimestampType | T.TimestampNTZType):
            raise PlanError(f"{where}: within= needs a timestamp, and {by!r} is none: use rows=")
    combined = Aggregates(aggregates, _schema(columns), where) if aggregates else None
    different = dict(distinct or {})
    if combined is None and not different:
        raise PlanError(f"{where}: there is no aggregate: give at least one")
    unknown = sorted({*different.values()} - {*_schema(columns).names})
    if unknown:
        raise PlanError(f"{where}: distinct names {unknown}: give columns of the stream")
    fields = [] if combined is None else list(combined.schema.fields)
    fields += [T.StructField(name, T.LongType()) for name in different]
    processor = RollingWindows(columns, order, combined, different, rows, within_us, ttl)
    return _operator(keyed, processor, columns.emitted(fields, where), _APPEND, uid, ttl)


def sessions(
    keyed: KeyedStream, aggregates: Mapping[str, Aggregate], *, gap: int | timedelta, uid: str
) -> DataFrame:
    """Emit the sessions of each key when they have ended.

    Call it on the driver. A session has the rows of a key between which no time is longer than the
    gap. It ends when the watermark has passed its last row by the gap. Late rows are dropped.

    Parameters
    ----------
    keyed : KeyedStream
        The stream, by key; it needs a watermark.
    aggregates : Mapping of str to Aggregate
        What is computed of a session, by the names of the columns: :mod:`pyspark_ckpt.agg`.
    gap : int or timedelta
        The gap, in milliseconds or as a ``timedelta``.
    uid : str
        The operator's stable name.

    Returns
    -------
    DataFrame
        The key columns, ``start``, which is the time of the first row, ``end``, which is the time
        of the last row and the gap, and the aggregates.

    Raises
    ------
    PlanError
        If an argument is not allowed, or the stream has no watermark.

    Examples
    --------
    >>> from pyspark.sql import functions as F
    >>> timed = events.withColumn("at", F.current_timestamp()).withWatermark("at", "1 minute")
    >>> visits = ckpt.operators.sessions(
    ...     ckpt.key_by(timed, "user"), {"n": ckpt.agg.Count()}, gap=600_000, uid="visits"
    ... )
    >>> visits.columns
    ['user', 'start', 'end', 'n']
    """
    where = _where(uid)
    columns = StreamColumns.of(keyed, where)
    time = columns.event_time
    if time is None or not isinstance(time.dataType, T.TimestampType):
        raise PlanError(f"{where}: sessions need event time: call withWatermark before key_by")
    combined = Aggregates(aggregates, _schema(columns), where)
    times = [T.StructField(name, T.TimestampType()) for name in (START, END)]
    fields = [*columns.keys, *times, *combined.schema.fields]
    names = [field.name for field in fields]
    if len({*names}) < len(names):
        raise PlanError(f"{where}: the output would have a column of {names} twice: rename it")
    processor = Sessions(columns, time.name, _us(gap, "gap", where), combined)
    return keyed.transformWithStateInArrow(
        processor, T.StructType(fields), _APPEND, TimeMode.EVENT_TIME.value, uid=uid
    )


def _operator(
    keyed: KeyedStream,
    processor: ArrowProcessor,
    schema: T.StructType,
    output_mode: str,
    uid: str,
    ttl: Ttl,
) -> DataFrame:
    ages_in_event_time = isinstance(ttl, StateTtlConfig) and ttl.time == _EVENT
    mode = TimeMode.EVENT_TIME if ages_in_event_time else TimeMode.NONE
    return keyed.transformWithStateInArrow(processor, schema, output_mode, mode.value, uid=uid)


def _where(uid: str) -> str:
    return f"operator {uid!r}"


def _schema(columns: StreamColumns) -> T.StructType:
    return T.StructType([*columns.keys, *columns.others])


def _check_positive(given: object, name: str, where: str) -> None:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise PlanError(f"{where}: {name} is {given!r}: give a number of at least 1")


def _us(given: object, name: str, where: str) -> int:
    try:
        return duration_ms(given) * _US_PER_MS
    except ValueError as exc:
        raise PlanError(
            f"{where}: {name} is {given!r}: {exc}; give milliseconds, or a timedelta"
        ) from exc
