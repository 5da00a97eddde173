"""Spark conf that a query starts with, or a job, in addition to the conf of the user's session.

:mod:`pyspark_ckpt.spark.own_session` sets it in a session of their own only.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.descriptor import OperatorDescriptor

_OPERATION_CHECK = "spark.sql.streaming.unsupportedOperationCheck"
WATERMARK_PER_OPERATOR = "spark.sql.streaming.statefulOperator.allowMultiple"
_CORRECTNESS_CHECK = "spark.sql.streaming.statefulOperator.checkCorrectness.enabled"
_PARTITIONS = "spark.sql.shuffle.partitions"
_ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
_EMPTY_EPOCHS = "spark.sql.streaming.noDataMicroBatches.enabled"

SMALL_BATCHES = {"spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20)}
"""With it a task that moves entries does not hold 10,000 large ones; PySpark 4.0 does not know it.
"""

READ_BY_PLAN_CHECK = frozenset(
    {_OPERATION_CHECK, WATERMARK_PER_OPERATOR, _CORRECTNESS_CHECK, _ENCODING}
)
"""Settings that Spark's check of a plan reads, before the query has a session."""


def conf_of_start(
    operators: Sequence[OperatorDescriptor],
    *,
    ends_by_itself: bool,
    one_watermark: bool = False,
    passed_watermarks: bool = False,
    follows_aggregation: bool = False,
) -> dict[str, str]:
    """Return the conf that a query with these operators starts with.

    `one_watermark` says that Spark's own operators follow and all operators share one watermark,
    and `passed_watermarks` that they follow and each operator has a separate watermark. With
    `follows_aggregation`, the parts of the plan were checked as Spark checks them.
    """
    # A session may ask for Avro. Spark's own operators support Avro; this library does not.
    conf = {_ENCODING: "unsaferow"}
    if operators:
        conf[_PARTITIONS] = str(operators[0].parallelism)
    if passed_watermarks:
        # Spark does not know that these operators pass their watermark to the next operator.
        conf[_CORRECTNESS_CHECK] = "false"
    if one_watermark:
        # Spark gives no watermark to an operator after applyInPandasWithState, so windows there
        # would never close. The plan was checked: no operator drops rows by the common watermark.
        conf[WATERMARK_PER_OPERATOR] = "false"
        conf[_CORRECTNESS_CHECK] = "false"
    if follows_aggregation:
        # Spark refuses an aggregation before applyInPandasWithState, and runs it all the same.
        conf[_OPERATION_CHECK] = "false"
    if len(operators) > 1:
        # Spark refuses a second applyInPandasWithState, because it cannot give it a watermark. With
        # one watermark for the whole query both run.
        conf[_OPERATION_CHECK] = "false"
        if not passed_watermarks:
            conf[WATERMARK_PER_OPERATOR] = "false"
    has_processing_time = any(
        operator.time_mode == TimeMode.PROCESSING_TIME for operator in operators
    )
    if ends_by_itself and has_processing_time:
        # Spark would run empty epochs for processing-time timers without end.
        conf[_EMPTY_EPOCHS] = "false"
    return conf
