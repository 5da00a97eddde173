"""Output modes: an operator runs in a query of any mode, as PySpark's transformWithState does.

Spark's check of a plan wants ``applyInPandasWithState`` to have the mode of the query; nothing else
in Spark looks at the operator's mode. An operator whose mode is neither append nor update passes
that check in both. Spark's method refuses such a mode, so the node of the plan is changed.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.sessions.kind import is_connect

_ANY_MODE = "org.apache.spark.sql.catalyst.streaming.InternalOutputModes$Complete$"
_DATASETS = "org.apache.spark.sql.classic.Dataset"
_OF_MODES = "STREAMING_OUTPUT_MODE"
_OURS = "FlatMapGroupsInPandasWithState"

logger = library_logger(__name__)


def in_any_mode(df: DataFrame) -> DataFrame:
    """Return a DataFrame whose last node, an operator, Spark accepts in append and update mode.

    If the node of this version of Spark has other parts, it stays as it is, and Spark accepts it
    in its own mode only. Over Spark Connect the plan gets the query's mode when the query starts.
    """
    if is_connect(df):
        return df
    spark = df.sparkSession
    node = df._jdf.queryExecution().analyzed()
    try:
        changed = node.copy(
            node.functionExpr(),
            node.groupingAttributes(),
            node.outputAttrs(),
            node.stateType(),
            _java(df, _ANY_MODE).__getattr__("MODULE$"),
            node.timeout(),
            node.child(),
        )
        return DataFrame(_java(df, _DATASETS).ofRows(spark._jsparkSession, changed), spark)
    except (Py4JError, TypeError) as exc:
        logger.warning(
            "PySpark %s: operators cannot have another output mode than the query: %s",
            spark.version,
            exc,
        )
        return df


def plan_error(exc: AnalysisException) -> PlanError | None:
    """Return the error for a plan that Spark's check refuses, ``None`` for another error.

    Spark's own message shows the whole plan, with columns that users never named.
    """
    text = str(exc)
    if _OURS not in text and _OF_MODES not in text:
        return None
    reason = text.split("\n")[0].rstrip(";").replace("applyInPandasWithState", "the operator")
    return PlanError(
        f"Spark refuses the query: {reason.rstrip('. ')}. Operators of this library run with "
        "outputMode append or update; beside an aggregation, see README, Limits"
    )


def _java(df: DataFrame, name: str) -> Any:
    return getattr(df.sparkSession._jvm, name)
