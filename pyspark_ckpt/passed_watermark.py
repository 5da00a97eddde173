"""A watermark for what follows an operator, which Spark gives to nothing after one of its kind.

Spark works out each stateful operator's watermark from its inputs, and gives none to what follows
``applyInPandasWithState``. It takes the least of the watermarks that the inputs of a union have. So
the output is united with one row of a relation that has the query's watermark, and the row is
dropped again. Its time lies in the far future, so that it never holds the query's watermark back.
"""

from __future__ import annotations

import logging
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyspark_ckpt.operator.event_time import NEVER_LATE

_DATASETS = "org.apache.spark.sql.classic.Dataset"
POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
MIN = "min"
_TIME = "__ckpt_passed"
_IS_OUTPUT = "__ckpt_is_output"
_TRUE = True

logger = logging.getLogger(__name__)


def carrier_row(df: DataFrame) -> DataFrame | None:
    """Return the row that carries the watermark past an operator over a stream.

    ``None`` where Spark cannot have one: with the policy ``max``, by which a time in the far future
    would be the query's watermark; or in a version of Spark whose relations are others.
    """
    spark = df.sparkSession
    if not df.isStreaming or str(spark.conf.get(POLICY, MIN)).lower() != MIN:
        return None
    node = spark.sql("VALUES (1)")._jdf.queryExecution().analyzed()
    is_streaming = True  # Spark allows no union of a stream and a batch
    try:
        streamed = node.copy(node.output(), node.data(), is_streaming, node.stream())
    except (Py4JError, TypeError) as exc:
        logger.warning("PySpark %s: nothing in event time can follow: %s", spark.version, exc)
        return None
    datasets: Any = getattr(spark._jvm, _DATASETS)
    return DataFrame(datasets.ofRows(spark._jsparkSession, streamed), spark)


def with_passed_watermark(output: DataFrame, row: DataFrame) -> DataFrame:
    """Return an operator's output with the query's watermark, which `row` carries."""
    time = F.timestamp_micros(F.lit(NEVER_LATE)).alias(_TIME)
    timed = row.select(time).withWatermark(_TIME, "0 seconds")
    # Spark must not see what the row holds, or it would drop it early: with this filter, or with
    # one of the user's that no null passes. The number of a partition it cannot know.
    number = F.spark_partition_id()
    first = number % 1 + 1
    empty = [
        F.element_at(F.array(F.lit(None).cast(field.dataType)), first).alias(field.name)
        for field in output.schema
    ]
    carrier = timed.select(*empty, (number < 0).alias(_IS_OUTPUT))
    both = output.select("*", F.lit(_TRUE).alias(_IS_OUTPUT)).union(carrier)
    return both.where(F.col(_IS_OUTPUT)).select(*output.columns)
