"""Event time in Spark's plan: the column that carries it is known by its metadata."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

WATERMARK_DELAY = "spark.watermarkDelayMs"
"""Spark's metadata key (EventTimeWatermark.delayKey)."""

_EMITTED = "pyspark_ckpt.emitted"

EMITTED_EVENT_TIME = {WATERMARK_DELAY: 0, _EMITTED: True}
"""Metadata of an output column that is event time for the operator that follows."""

NEVER_LATE = 9_000_000_000_000_000
"""Stands for a null event time, in the year 2255; Spark counts null as not late."""


def event_time_index(schema: T.StructType) -> int | None:
    """Return the place of the column that ``withWatermark`` named, ``None`` if there is none."""
    for index, field in enumerate(schema.fields):
        if WATERMARK_DELAY in field.metadata and isinstance(field.dataType, T.TimestampType):
            return index
    return None


def is_emitted(field: T.StructField) -> bool:
    """Tell whether an operator of this library made a column of event time."""
    return bool(field.metadata.get(_EMITTED))


def never_late_column() -> Column:
    """Return a column of event time that satisfies Spark and drops no row."""
    return F.lit(NEVER_LATE).alias("__ckpt_event_time", metadata={WATERMARK_DELAY: 0})
