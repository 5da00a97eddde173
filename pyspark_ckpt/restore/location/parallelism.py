"""The number of subtasks that Spark has bound a location to, with its first epoch."""

from __future__ import annotations

from pyspark.sql import SparkSession

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.plan.parallelism import parallelism_key, set_parallelism
from pyspark_ckpt.restore.location.seedings import is_half_seeded
from pyspark_ckpt.settings import PARALLELISM
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.operators import StatefulOperators
from pyspark_ckpt.storage.open import Storage


def bound_parallelism(location: Storage) -> int | None:
    """Return the parallelism of Spark's next epoch, ``None`` in a fresh location.

    Spark takes it from the newest offsets, also of an epoch that was never committed.
    """
    begun = _begun_epoch(location)
    return None if begun is None else _parallelism_of(location, begun)


def check_parallelism(
    location: Storage,
    operators: StatefulOperators,
    spark: SparkSession,
    option: int | None = None,
) -> None:
    """Check that the query's parallelism is that of the session and of the location.

    `option` is the writer's option, which has no effect on a query that is built. PlanError is also
    raised if Spark has distributed the state to another number of partitions by itself.
    """
    begun, bound = _begun_epoch(location), None
    if begun is not None:
        bound = _parallelism_of(location, begun)
        _check_not_repartitioned(location, begun, bound)
    key = parallelism_key(spark)
    session = option or set_parallelism(spark)
    if session is None:  # the number of cores may have changed
        session = operators.descriptors[0].parallelism
    for operator in operators.descriptors:
        if operator.parallelism != session:
            if option is not None:
                by = "by default" if set_parallelism(spark) is None else key
                raise PlanError(
                    f"operator {operator.uid!r} was built with parallelism {operator.parallelism} "
                    f"({by}): the writer's option {PARALLELISM} = {option} comes too late. Set it "
                    "in the session before key_by"
                )
            raise PlanError(
                f"operator {operator.uid!r} was built with {key} = {operator.parallelism}, it "
                f"is {session} now: set it in the session and build the query again"
            )
        if bound is not None and operator.parallelism != bound:
            raise PlanError(
                f"operator {operator.uid!r} has parallelism {operator.parallelism} ({key}), "
                f"Spark bound the location {location.url} to {bound} with its first "
                f"epoch: set {key} to {bound} before building the query, or "
                f"{_way_to_another_parallelism(location)}"
            )


def _check_not_repartitioned(location: Storage, begun: int, now: int | None) -> None:
    """Refuse state that Spark distributed to another number of partitions by itself.

    Spark moves the rows of its state store by their hash. The handles in them are of subtasks of
    the old parallelism.
    """
    before = SparkLog(location).parallelism_before(begun)
    if before is not None and before != now:
        raise PlanError(
            f"{location.url}: epoch {begun} is a repartitioning of Spark's state from "
            f"{before} to {now} partitions, which does not move the state of this library. To "
            f"change the parallelism, {_way_to_another_parallelism(location)}"
        )


def _way_to_another_parallelism(location: Storage) -> str:
    if SparkLog(location).committed_epoch() is None:
        return "start it at a fresh checkpointLocation (no epoch is committed here)"
    return (
        "start it at a fresh checkpointLocation with restoreFrom(the newest savepoint or "
        "chk-N of this query), which moves the state to the new parallelism"
    )


def _parallelism_of(location: Storage, epoch: int) -> int | None:
    return SparkLog(location).offsets_entry(epoch).parallelism


def _begun_epoch(location: Storage) -> int | None:
    return None if is_half_seeded(location) else SparkLog(location).begun_epoch()
