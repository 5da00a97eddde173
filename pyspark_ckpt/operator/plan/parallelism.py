"""The number of subtasks of the operators of a query: as set, or after the cores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pyspark.sql import SparkSession

from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.settings import PARALLELISM, SHUFFLE_PARTITIONS, read_settings

_OF_SPARK = 200
_MANY_PER_CORE = 4

logger = library_logger(__name__)

_given: ContextVar[int | None] = ContextVar("pyspark_ckpt parallelism", default=None)


@contextmanager
def building_with(parallelism: int | None) -> Iterator[None]:
    """Build operators with this parallelism while the context lasts; the session stays as it is.

    If `parallelism` is ``None``, the session's parallelism applies.
    """
    token = _given.set(parallelism)
    try:
        yield
    finally:
        _given.reset(token)


def set_parallelism(spark: SparkSession) -> int | None:
    """Return the parallelism that was set, ``None`` if it was not.

    :func:`building_with` wins over ``spark.ckpt.parallelism.default``, which wins over
    ``spark.sql.shuffle.partitions``.
    """
    given = _given.get()
    if given is not None:
        return given
    own = spark.conf.get(PARALLELISM, None)
    if own is not None:
        return read_settings({PARALLELISM: own}, {}).parallelism
    partitions = spark.conf.get(SHUFFLE_PARTITIONS, None)
    return None if partitions is None else int(partitions)


def parallelism_of(spark: SparkSession) -> int:
    """Return the parallelism of an operator that is built now."""
    number = set_parallelism(spark)
    return (_cores(spark) or _OF_SPARK) if number is None else number


def parallelism_key(spark: SparkSession) -> str:
    """Return the key that decides the parallelism of this session."""
    decides = spark.conf.get(PARALLELISM, None) or spark.conf.get(SHUFFLE_PARTITIONS, None) is None
    return PARALLELISM if decides else SHUFFLE_PARTITIONS


def report_parallelism(spark: SparkSession, parallelism: int) -> None:
    """Log which parallelism was chosen, or a warning if it is far too high."""
    at_once = _tasks_at_once(spark)
    if parallelism > _MANY_PER_CORE * at_once:
        logger.warning(
            "parallelism %s is more than %s times the %s cores, and each epoch runs so many tasks "
            "per operator: set %s before building a query at a fresh checkpointLocation",
            parallelism,
            _MANY_PER_CORE,
            at_once,
            PARALLELISM,
        )
    elif set_parallelism(spark) is None:
        logger.info(
            "parallelism %s was chosen from the number of cores, because it is not set: set %s to "
            "choose it, and to keep it on other machines",
            parallelism,
            PARALLELISM,
        )


def _tasks_at_once(spark: SparkSession) -> int:
    session = session_of(spark)
    if session.has_jvm:
        return session.tasks_at_once()
    return session.local_cores() or _OF_SPARK  # a server would run a job to find out


def _cores(spark: SparkSession) -> int | None:
    """Return the cores that the application is configured to have, ``None`` if it does not say.

    Never how many it has at the moment: a query that is started again must get the same number.
    """
    session = session_of(spark)
    cores = session.local_cores()
    if cores is not None:
        return cores
    setting = session.setting_of_application
    fixed = setting("spark.default.parallelism") or setting("spark.cores.max")
    if fixed:
        return int(fixed)
    dynamic = setting("spark.dynamicAllocation.enabled") == "true"
    count = "spark.dynamicAllocation.maxExecutors" if dynamic else "spark.executor.instances"
    executors = setting(count)
    return int(executors) * int(setting("spark.executor.cores") or "1") if executors else None
