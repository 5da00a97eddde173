"""A watermark for the operators that follow one of this library; Spark gives them none.

Spark works out each stateful operator's watermark from its inputs, and gives none to what follows
``applyInPandasWithState``. It takes the least of the watermarks that the inputs of a union have. So
the output is united with one row of a relation that has the query's watermark, and the row is
dropped again. Its time lies in the far future, so that it never holds the query's watermark back.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyspark_ckpt.errors import NotBuiltYetError
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.plan.streaming_row import streaming_row
from pyspark_ckpt.operator.time import NEVER_LATE

POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
MIN = "min"
_TIME = "__ckpt_passed"
_IS_OUTPUT = "__ckpt_is_output"
_TRUE = True

logger = library_logger(__name__)


def carrier_row(df: DataFrame) -> DataFrame | None:
    """Return the row that carries the watermark past an operator over a stream.

    ``None`` where Spark cannot have one: with the policy ``max``, by which a time in the far future
    would be the query's watermark; or in a version of Spark whose relations are others.
    """
    spark = df.sparkSession
    if not df.isStreaming or str(spark.conf.get(POLICY, MIN)).lower() != MIN:
        return None
    try:
        return streaming_row(spark)
    except NotBuiltYetError as exc:
        logger.warning("no operator in event time can follow this library's operator: %s", exc)
        return None


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
