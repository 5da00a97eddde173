"""Which way an operator gets its rows: decided on the driver, before the operator's plan is made.

In Arrow, by a hook in PySpark's Python worker; where the hook cannot work, as packed rows in
PySpark's own frames. A probe of one row asks the worker, once in each application.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.handover.worker import PIPELINED, PROFILER, refusal_of_probe
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.settings import HAND_OVER, HandOver, read_settings

logger = library_logger(__name__)
_PROBED: dict[str, str | None] = {}


class Decision(NamedTuple):
    """The way that rows are handed over, and why."""

    way: HandOver
    why: str


def decided_hand_over(spark: SparkSession, where: str) -> Decision:
    """Return which way rows are handed over in the queries of a session."""
    given = spark.conf.get(HAND_OVER, None)
    wanted = read_settings({} if given is None else {HAND_OVER: given}, {}).hand_over
    if wanted is HandOver.PACKED:
        return Decision(HandOver.PACKED, f"{HAND_OVER} is {wanted}")
    reason = _refusal_of_conf(spark) or _refusal_of_worker(spark)
    if reason is None:
        return Decision(HandOver.ARROW, "Spark's Python worker lets it")
    if wanted is HandOver.ARROW:
        raise PlanError(
            f"{where}: {HAND_OVER} is {wanted}, and rows cannot be handed over in Arrow: {reason}; "
            f"change that, or set {HAND_OVER} to {HandOver.AUTO}"
        )
    return Decision(HandOver.PACKED, reason)


def _refusal_of_conf(spark: SparkSession) -> str | None:
    profiler = spark.conf.get(PROFILER, None)
    if profiler:
        return f"{PROFILER} is {profiler}"
    is_pipelined = str(spark.conf.get(PIPELINED, "false")).lower() == "true"
    return f"{PIPELINED} is true" if is_pipelined else None


def _refusal_of_worker(spark: SparkSession) -> str | None:
    """Return why the workers of a session refuse the hook, ``None`` if they do not."""
    name = session_of(spark).id
    if name not in _PROBED:
        try:
            rows = spark.range(1, numPartitions=1).mapInArrow(_Probe(), "reason string").collect()
        except PySparkException as exc:
            # A task of the query will say what is wrong with the workers, with its own words.
            logger.warning("the hand-over of rows could not be probed: %s", exc)
            return None
        _PROBED[name] = rows[0].reason
    return _PROBED[name]


class _Probe:
    """The function of the probe: yields why the worker that runs it refuses the hook."""

    def __init__(self) -> None:
        self._reason: str | None = None

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        self.__dict__.update(attributes)
        self._reason = refusal_of_probe()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"reason": pa.array([self._reason], pa.string())})
