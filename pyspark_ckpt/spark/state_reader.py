"""What Spark's state store holds for an operator of this library: one handle per subtask.

It is read with Spark's own data source for state. If there are few partitions, the driver reads
them itself. A Spark job would take three times as long, most of it planning, and would compete with
the epoch that runs then (measured).

Spark warns for each partition whose state is not in memory. That is normal when a checkpoint reads.
Only the warnings of such a read are dropped: the reading thread, and the tasks of its jobs in this
JVM, have a mark, and a Log4j filter drops lines with the mark.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from pyspark_ckpt.errors import ConfigurationError, CorruptFileError
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.sessions.session import session_of

_STORES = "org.apache.spark.sql.execution.streaming.state"
"""The parent of the stores' loggers; the loggers' names differ between versions of Spark."""

_WARNING = ".*doesn't exist in loadedMaps.*"
_LOG4J = "org.apache.logging.log4j"
_MARK = "mdc.pyspark_ckpt"
"""Spark copies local properties with this prefix to the logging context of tasks."""

_READING = "reading"

logger = library_logger(__name__)


@contextmanager
def quiet_reading(spark: SparkSession) -> Iterator[None]:
    """Drop that warning for reads of this thread; loggers other than Log4j still show it."""
    if not session_of(spark).has_jvm:  # the server writes its log
        yield
        return
    context = spark.sparkContext
    try:
        _install_filter(spark)
        marks = _class(spark, f"{_LOG4J}.ThreadContext")
        marks.put(_MARK, _READING)
    except (Py4JError, TypeError) as exc:  # a package where there should be a class
        logger.debug("Spark does not log with Log4j: %s", exc)
        yield
        return
    context.setLocalProperty(_MARK, _READING)
    try:
        yield
    finally:
        context.setLocalProperty(_MARK, None)  # type: ignore[arg-type]  # None unsets it
        marks.remove(_MARK)


def _install_filter(spark: SparkSession) -> None:
    """Let the logger of Spark's state store drop that line if it has the mark; once in a JVM.

    The filter is on the configuration that the logger already has. With a separate one, Spark's
    shells and PySpark would take the logger for one that the user wants to see at level INFO.
    """
    loggers = _class(spark, f"{_LOG4J}.LogManager").getContext(False)  # noqa: FBT003
    found = loggers.getConfiguration().getLoggerConfig(_STORES)
    if found.hasFilter():
        return
    filters, result = f"{_LOG4J}.core.filter", _class(spark, f"{_LOG4J}.core.Filter$Result")
    pair = _class(spark, f"{_LOG4J}.core.util.KeyValuePair")
    pairs = spark.sparkContext._gateway.new_array(pair, 1)  # type: ignore[union-attr]
    pairs[0] = pair(_MARK, _READING)
    # The first filter lets every line without the mark pass, and costs one lookup.
    found.addFilter(
        _class(spark, f"{filters}.ThreadContextMapFilter").createFilter(
            pairs, "and", result.NEUTRAL, result.ACCEPT
        )
    )
    found.addFilter(
        _class(spark, f"{filters}.RegexFilter").createFilter(
            _WARNING,
            None,
            False,  # noqa: FBT003
            result.DENY,
            result.NEUTRAL,
        )
    )
    loggers.updateLoggers()


def _class(spark: SparkSession, name: str) -> Any:
    return getattr(spark._jvm, name)


FEW_PARTITIONS = 8
"""The driver reads up to this many partitions itself, one after the other."""

_FORMAT = "statestore"
_HANDLE = "value.groupState.handle"
_SOURCE = "org.apache.spark.sql.execution.datasources.v2.state.StateDataSource"
_OPTIONS = "org.apache.spark.sql.util.CaseInsensitiveStringMap"
_SESSIONS = "org.apache.spark.sql.classic.SparkSession"
_STRING_BUILDER = "java.lang.StringBuilder"
_CHARSETS = "java.nio.charset.StandardCharsets"

_PIECE_BYTES = 4000
"""Below 8 KB, because above it Py4J writes a second piece, which Linux delays by 40 ms (measured).
"""


_ESCAPED = frozenset(' "#%<>?[\\]^`{|}')
"""Characters of ASCII that a path of Hadoop's escapes as a URL (measured, each of them)."""


def check_state_can_be_read(
    checkpoint_location: str,
    otherwise: str = "no checkpoint of the query could be taken; use another path",
) -> None:
    """Refuse a location that Spark's data source for state does not find: it escapes paths twice.

    Spark's query would run, and never get a checkpoint. `otherwise` says what follows, and what to
    do.
    """
    escaped = sorted(
        char for char in {*checkpoint_location} if char in _ESCAPED or not char.isprintable()
    )
    if escaped:
        raise ConfigurationError(
            f"the checkpointLocation {checkpoint_location!r} has {', '.join(map(repr, escaped))}: "
            f"Spark's own reader of state finds no path with such characters, so {otherwise}"
        )


def encoded_handles(
    spark: SparkSession,
    checkpoint_location: str,
    epoch: int,
    operator_id: int,
    partitions: int | None,
    partition: int | None = None,
) -> list[bytes]:
    """Return the handles of an operator at an epoch, in any order; with `partition`, only its own.

    Call it on the driver, which reads a few partitions itself. A Spark job reads more than
    :data:`FEW_PARTITIONS`, and all that a session of Spark Connect reads.

    `partitions` is ``None`` if their number is unknown; then those whose directories Spark finds
    are taken for all. ``CorruptFileError`` is raised if Spark found fewer partitions than
    `partitions`, or more, or not `partition`.
    """
    options = {"batchId": str(epoch), "operatorId": str(operator_id)}

    def check(found: int) -> None:
        if partitions is not None and found != partitions:
            raise partitions_missing(
                f"{checkpoint_location}/state/{operator_id}",
                epoch,
                f"has {found} partitions of Spark's state and not {partitions}",
            )

    if not session_of(spark).has_jvm:
        state = spark.read.format(_FORMAT).options(**options).load(checkpoint_location)
        rows = state if partition is None else state.where(state["partition_id"] == partition)
        return [bytes(row[0]) for row in rows.select(_HANDLE).collect()]
    with quiet_reading(spark):
        with _active(spark):
            table = _table(spark, {**options, "path": checkpoint_location})
            batch = table.newScanBuilder(_options(spark, {})).build().toBatch()
            found = batch.planInputPartitions()
            check(len(found))
            wanted = found
            if partition is not None:
                wanted = [each for each in found if each.partition() == partition]
            if not wanted:
                raise partitions_missing(
                    f"{checkpoint_location}/state/{operator_id}",
                    epoch,
                    f"has no partition {partition}",
                )
            if len(wanted) <= FEW_PARTITIONS:
                factory, place = batch.createReaderFactory(), _Place(table.schema())
                return [
                    handle
                    for each in wanted
                    for handle in _read(spark, factory.createReader(each), place)
                ]
        rows = spark.read.format(_FORMAT).options(**options).load(checkpoint_location)
        rows = rows.select(_HANDLE)
        execution: Any = rows._jdf.queryExecution()  # the one that collect() runs
        check(execution.executedPlan().execute().getNumPartitions())
        return [bytes(row[0]) for row in rows.collect()]


def partitions_missing(directory: str, epoch: int, what: str) -> CorruptFileError:
    """Return the error of an operator whose state is there in part."""
    return CorruptFileError(
        f"{directory}, epoch {epoch}: it {what}. Its state would be smaller than it was: somebody "
        "has deleted or moved directories in it, or copied it in part, or the storage lists old "
        "names. Put them back, or restore from a checkpoint or savepoint"
    )


class _Place:
    """Where a row of the source has the handle."""

    def __init__(self, schema: Any) -> None:
        value = schema.apply("value").dataType()
        self.value = schema.fieldIndex("value"), value.length()
        group_state = value.apply("groupState").dataType()
        self.group_state = value.fieldIndex("groupState"), group_state.length()
        self.handle = group_state.fieldIndex("handle")


def _read(spark: SparkSession, reader: Any, place: _Place) -> list[bytes]:
    handles = []
    try:
        while reader.next():
            value = reader.get().getStruct(*place.value)
            group_state = value.getStruct(*place.group_state)
            handles.append(_bytes_of(spark, group_state.getUTF8String(place.handle)))
    finally:
        reader.close()
    return handles


def _bytes_of(spark: SparkSession, java_bytes: Any) -> bytes:
    """Return bytes of Java; they are fetched in pieces, as Latin-1 characters."""
    latin_1 = _java(spark, _CHARSETS).ISO_8859_1
    text = _java(spark, _STRING_BUILDER)(latin_1.decode(java_bytes.getByteBuffer()))
    length = text.length()
    pieces = [
        text.substring(begin, min(length, begin + _PIECE_BYTES))
        for begin in range(0, length, _PIECE_BYTES)
    ]
    return "".join(pieces).encode("latin-1")


def _table(spark: SparkSession, options: dict[str, str]) -> Any:
    source = _java(spark, _SOURCE)()
    wanted = _options(spark, options)
    return source.getTable(
        source.inferSchema(wanted), source.inferPartitioning(wanted), wanted.asCaseSensitiveMap()
    )


def _options(spark: SparkSession, options: dict[str, str]) -> Any:
    return _java(spark, _OPTIONS)(options)


def _java(spark: SparkSession, name: str) -> Any:
    """Return a Java class by its full name, in one call; part by part takes a call per part."""
    return getattr(spark._jvm, name)


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Let the source use this session instead of the thread's active session."""
    sessions = _java(spark, _SESSIONS)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
