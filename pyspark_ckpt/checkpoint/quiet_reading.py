"""Reading Spark's state without its warning per partition that the state is not in memory.

For what a checkpoint reads that is normal. Only lines of such a read are dropped: a filter of Log4j
looks for a mark that the reading thread, and the tasks of its jobs in this JVM, carry.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

_STORES = "org.apache.spark.sql.execution.streaming.state"
"""The parent of their loggers, whose own names differ from one version of Spark to another."""

_WARNING = ".*doesn't exist in loadedMaps.*"
_LOG4J = "org.apache.logging.log4j"
_MARK = "mdc.pyspark_ckpt"
"""Spark hands local properties of this prefix on to the logging context of tasks."""

_READING = "reading"

logger = logging.getLogger(__name__)


@contextmanager
def quiet_reading(spark: SparkSession) -> Iterator[None]:
    """Drop that warning for what this thread reads; with another logger than Log4j, it stays."""
    context = spark.sparkContext
    try:
        _install_filter(spark)
        marks = _class(spark, f"{_LOG4J}.ThreadContext")
        marks.put(_MARK, _READING)
    except (Py4JError, TypeError) as exc:  # a package where there should be a class
        logger.debug("Spark logs with something else: %s", exc)
        yield
        return
    context.setLocalProperty(_MARK, _READING)
    try:
        yield
    finally:
        context.setLocalProperty(_MARK, None)  # type: ignore[arg-type]  # None unsets it
        marks.remove(_MARK)


def _install_filter(spark: SparkSession) -> None:
    """Have the logger of Spark's state store drop what carries the mark; once in a JVM."""
    loggers = _class(spark, f"{_LOG4J}.LogManager").getContext(False)  # noqa: FBT003
    configuration = loggers.getConfiguration()
    found = configuration.getLoggerConfig(_STORES)
    if found.getName() != _STORES:
        # Without a level it has its parent's, also after `setLogLevel`.
        found = _class(spark, f"{_LOG4J}.core.config.LoggerConfig")(_STORES, None, True)  # noqa: FBT003
        configuration.addLogger(_STORES, found)
    if found.hasFilter():
        return
    filters, result = f"{_LOG4J}.core.filter", _class(spark, f"{_LOG4J}.core.Filter$Result")
    pair = _class(spark, f"{_LOG4J}.core.util.KeyValuePair")
    pairs = spark.sparkContext._gateway.new_array(pair, 1)  # type: ignore[union-attr]
    pairs[0] = pair(_MARK, _READING)
    # The first one lets everything else pass.
    found.addFilter(
        _class(spark, f"{filters}.RegexFilter").createFilter(
            _WARNING,
            None,
            False,  # noqa: FBT003
            result.NEUTRAL,
            result.ACCEPT,
        )
    )
    found.addFilter(
        _class(spark, f"{filters}.ThreadContextMapFilter").createFilter(
            pairs, "and", result.DENY, result.NEUTRAL
        )
    )
    loggers.updateLoggers()


def _class(spark: SparkSession, name: str) -> Any:
    return getattr(spark._jvm, name)
