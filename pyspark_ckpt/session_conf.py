"""Spark conf that one start call needs, set for its length only.

A query copies the session's conf when it starts, so what is set around the start is the query's,
and nobody else's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark.sql import SparkSession

from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.epoch_clock import TimeMode

_OPERATION_CHECK = "spark.sql.streaming.unsupportedOperationCheck"
_WATERMARK_PER_OPERATOR = "spark.sql.streaming.statefulOperator.allowMultiple"
_CORRECTNESS_CHECK = "spark.sql.streaming.statefulOperator.checkCorrectness.enabled"
_EMPTY_EPOCHS = "spark.sql.streaming.noDataMicroBatches.enabled"


def conf_of_start(
    operators: Sequence[OperatorDescriptor],
    *,
    ends_by_itself: bool,
    one_watermark: bool = False,
) -> dict[str, str]:
    """Return the conf that a query with these operators is started with.

    Parameters
    ----------
    operators
        Its operators.
    ends_by_itself
        Whether its trigger ends the query once all data is read.
    one_watermark
        Whether operators of Spark's own come after one of these.
    """
    conf = {}
    if one_watermark:
        # Spark gives no watermark to what comes after applyInPandasWithState: windows there would
        # never close. That rows may be late by a common one was checked with the plan.
        conf[_WATERMARK_PER_OPERATOR] = "false"
        conf[_CORRECTNESS_CHECK] = "false"
    if len(operators) > 1:
        # Spark refuses a second applyInPandasWithState, and gives it no watermark of its own;
        # with one watermark for the whole query both run.
        conf[_OPERATION_CHECK] = "false"
        conf[_WATERMARK_PER_OPERATOR] = "false"
    has_processing_time = any(
        operator.time_mode == TimeMode.PROCESSING_TIME.value for operator in operators
    )
    if ends_by_itself and has_processing_time:
        # Spark would run empty epochs for processing-time timers for ever.
        conf[_EMPTY_EPOCHS] = "false"
    return conf


@contextmanager
def session_conf(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set conf values of a session and put back what was there before."""
    # What `get` answers may be a default; to ask for all takes the JVM a call per key.
    before = {key: value for key, value in spark.conf.getAll.items() if key in values}
    for key, value in values.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in values:
            if key in before:
                spark.conf.set(key, before[key])
            else:
                spark.conf.unset(key)
