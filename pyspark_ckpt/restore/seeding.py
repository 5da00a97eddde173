"""Seeding: carries out the plan of a restore in a fresh ``checkpointLocation``.

The new query gets copies of all files that it needs, so it never depends on what it was restored
from. Its location looks as if the query had just committed the epoch of the checkpoint or
savepoint: state stores, source offsets, watermark. The query continues with the next epoch.

While a location is filled, it holds nothing but an unfinished seeding, and another driver may fill
it anew (``restore/location/seedings.py``).
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from pyspark.sql import SparkSession

from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.restore.copies import HandleCopy, copy_handles
from pyspark_ckpt.restore.plan import RestorePlan
from pyspark_ckpt.restore.planned import (
    CopiedOperator,
    MovedOperator,
    NewOperator,
    PlannedSources,
)
from pyspark_ckpt.restore.rescale import Seed, move_state, write_seeds
from pyspark_ckpt.restore.spark_files import place_spark_files
from pyspark_ckpt.settings import ClaimMode
from pyspark_ckpt.spark.log import SOURCE_EVOLUTION, OffsetsEntry, SparkLog
from pyspark_ckpt.spark.own_session import own_session
from pyspark_ckpt.spark.state_files import copy_first_version
from pyspark_ckpt.storage.open import Storage

QUERY_ID_NAME = "metadata"
"""Spark's file with the id of the query."""

SCRATCH = "_seed"


def seed(
    spark: SparkSession,
    location: Storage,
    checkpoints: Storage,
    query_id: str,
    plan: RestorePlan,
    place: Storage | None = None,
) -> None:
    """Fill a location that nobody else fills; durable on return.

    `location` is fenced, or nobody else knows it. `place` is where it will lie if it is moved once
    it is filled. The caller then writes the origin of the plan into `checkpoints`. Nothing was
    written if the plan refuses the sources or an operator of this library; files of Spark's own
    operators are copied even if the plan refuses them.
    """
    plan.check_operators_and_sources()
    scratch = f"{SCRATCH}-{query_id}"  # a driver that was paused may still write into another one
    with plan.source.reading():
        seeds = {
            operator.operator_id: Seed(
                operator.wanted, _handles(spark, operator, plan, checkpoints, query_id)
            )
            for operator in plan.started
        }
        location.make_directory(scratch)  # Spark does not ask whether it may still write there
        seeded = write_state(spark, location.child(scratch), seeds, plan)
        place_state(seeded, location, seeds, plan, place)
        _write_logs(location, seeded, plan)
        state_files = [file for each in plan.spark_operators.operators for file in each.files]
        source, sources = plan.source.storage, plan.sources
        place_spark_files(source, location, state_files, sources, place)
    location.remove_directory(scratch)


def _handles(
    spark: SparkSession,
    operator: NewOperator | CopiedOperator | MovedOperator,
    plan: RestorePlan,
    checkpoints: Storage,
    query_id: str,
) -> list[Handle]:
    """Return an operator's handles in the new query, whose files are durable."""
    source = plan.source.storage
    if isinstance(operator, MovedOperator):
        links = _shares_files(plan)
        return move_state(spark, operator, source, checkpoints, query_id, plan.epoch, links=links)
    if isinstance(operator, CopiedOperator):
        copy = HandleCopy(operator.wanted, query_id, plan.epoch, _shares_files(plan))
        return copy_handles(spark, operator.handles, copy, source, checkpoints)
    return []


def _shares_files(plan: RestorePlan) -> bool:
    """Return whether a file may be there once for the source and the new query.

    Not so with a savepoint that stays: it is the backup, which no damage of the query may reach.
    """
    return not plan.source.metadata.is_savepoint or plan.origin.claim_mode is ClaimMode.CLAIM


def write_state(
    spark: SparkSession, scratch: Storage, seeds: dict[int, Seed], plan: RestorePlan
) -> SparkLog:
    """Let Spark write state stores with handles in a directory that is removed later."""
    planned = plan.spark_operators
    session = spark if planned.store_conf is None else own_session(spark, planned.store_conf)
    return write_seeds(session, scratch, list(seeds.values()))


def place_state(
    seeded: SparkLog,
    location: Storage,
    seeds: dict[int, Seed],
    plan: RestorePlan,
    place: Storage | None,
) -> None:
    """Put state stores in place as they are when the epoch has been committed."""
    version = plan.epoch + 1
    new_ids = dict(enumerate(seeds))
    copy_first_version(seeded.storage, location, new_ids, version, place)


def _write_logs(
    location: Storage,
    seeded: SparkLog,
    plan: RestorePlan,
) -> None:
    """Write Spark's logs of the epoch, after those of the query that wrote the state stores."""
    metadata = {**seeded.offsets_entry(0).metadata, **plan.sources.times_ms}
    # A stored conf may have more keys; only those that Spark itself keeps here are taken.
    stored = plan.spark_operators.epoch_conf or {}
    metadata["conf"] = {
        key: stored.get(key, value) for key, value in metadata.get("conf", {}).items()
    }
    offsets = _entry(metadata, plan.sources, is_v2=seeded.offsets_entry(0).keys is not None).text()
    # Spark continues from the newest entry, and wants the one before it too.
    for epoch in range(max(plan.epoch - 1, 0), plan.epoch + 1):
        location.write(f"offsets/{epoch}", [offsets.encode()])
    write_commit(location, seeded, plan)


def write_commit(location: Storage, seeded: SparkLog, plan: RestorePlan) -> None:
    """Write the commit of the epoch, which names the versions of state stores that have ids."""
    version, fields = seeded.commits_entry(0).split("\n", 1)
    commit = {**json.loads(fields), "nextBatchWatermarkMs": plan.watermark_ms}
    location.write(f"commits/{plan.epoch}", [f"{version}\n{json.dumps(commit)}".encode()])


def _entry(metadata: dict[str, Any], planned: PlannedSources, *, is_v2: bool) -> OffsetsEntry:
    """Return the offsets of the epoch in the format of Spark's log that the query will have."""
    names = planned.sources.names
    if names:
        metadata = {**metadata, "conf": {**metadata["conf"], SOURCE_EVOLUTION: "true"}}
        by_name = {
            names[number]: offset
            for number, offset in zip(planned.sources.ids, planned.offsets, strict=True)
        }
        return OffsetsEntry(metadata, tuple(by_name.values()), tuple(by_name))
    keys = tuple(map(str, range(len(planned.offsets)))) if is_v2 else None
    return OffsetsEntry(metadata, planned.offsets, keys)


def write_query_id(location: Storage) -> str:
    """Give the query of a fresh location its id, as Spark would; durable on return.

    ``FileExistsError`` is raised if the location has an id.
    """
    query_id = str(uuid.uuid4())
    location.write(QUERY_ID_NAME, [json.dumps({"id": query_id}).encode()])
    return query_id
