"""Gives the location of a stopped query other subtasks or operators, without losing an epoch.

Spark keeps what depends on the number of subtasks in ``state/`` of the location, and in the newest
entries of ``offsets/`` and ``commits/``. New ones are staged in a directory inside the location and
swapped with the old ones, as in a rollback. All else stays: the query's id, its source logs, its
checkpoints and savepoints, and the files of its state, which old and new handles share.

New files of state have the next epoch in their names. The cleaner deletes no file of an epoch after
the newest checkpoint, so it keeps them until a checkpoint refers to them.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

import msgspec
from pyspark.sql import SparkSession

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.restore.location.swap import (
    KEPT_BY_RESTART,
    STAGED_BY_RESTART,
    Swap,
    swap,
)
from pyspark_ckpt.restore.plan import RestorePlan
from pyspark_ckpt.restore.planned import CopiedOperator, MovedOperator, NewOperator
from pyspark_ckpt.restore.rescale import Seed, move_state
from pyspark_ckpt.restore.seeding import SCRATCH, place_state, write_commit, write_state
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.own_session import own_session
from pyspark_ckpt.storage.fenced import Lease
from pyspark_ckpt.storage.open import Storage

_SWAPPED = ("state",)

logger = library_logger(__name__)


def change_in_place(
    spark: SparkSession,
    location: Storage,
    plan: RestorePlan,
    lease: Lease,
) -> Swap:
    """Give a stopped query's location the plan's operators; durable on return.

    `spark` is not changed. ``FencedError`` is raised if another driver has taken the query over.
    The query runs an epoch without input next. :func:`put_back` undoes the returned swap until the
    query has committed that epoch.
    """
    token = secrets.token_hex(6)
    staged = location.child(f"{STAGED_BY_RESTART}{token}")
    session = own_session(spark, plan.source.plain_conf)
    query_id = plan.source.metadata.query_id
    seeds = {
        each.operator_id: Seed(each.wanted, _handles(session, each, plan, query_id))
        for each in plan.started
    }
    seeded = write_state(session, staged.child(SCRATCH), seeds, plan)
    place_state(seeded, staged, seeds, plan, place=location)
    kept = f"{KEPT_BY_RESTART}{token}"
    offsets = _write_offsets(location, staged, plan, kept)
    write_commit(staged, seeded, plan)
    staged.remove_directory(SCRATCH)
    parallelism = plan.started[0].wanted.parallelism
    done = Swap(
        to=f"{parallelism} subtasks",
        kept=kept,
        staged=staged.name,
        outgoing=_SWAPPED,
        incoming=_SWAPPED,
        restarts=True,
        exchanged=(f"commits/{plan.epoch}", *offsets),
        epoch=plan.epoch,
    )
    swap(location, done, lease)
    logger.info("%s continues epoch %s with %s", location.url, plan.epoch, done.to)
    return done


def put_back(location: Storage, done: Swap, lease: Lease) -> None:
    """Undo :func:`change_in_place`, because the query could not be started with it."""
    kept = f"{KEPT_BY_RESTART}{secrets.token_hex(6)}"
    if done.epoch is not None:
        before = SparkLog(location.child(done.kept)).offsets_entry(done.epoch).parallelism
        begun = SparkLog(location).offsets_entry(done.epoch + 1)
        entry = begun if before is None else begun.with_conf(before, kept)
        location.replace(f"{done.kept}/offsets/{done.epoch + 1}", entry.text().encode())
    back = msgspec.structs.replace(done, to="as before", kept=kept, staged=done.kept)
    swap(location, back, lease)
    logger.warning("%s is as it was before the restart", location.url)


def _handles(
    spark: SparkSession,
    operator: NewOperator | CopiedOperator | MovedOperator,
    plan: RestorePlan,
    query_id: str,
) -> list[Handle]:
    """Return an operator's handles of the plan's epoch; all their files are durable."""
    made: list[Handle] = []
    if isinstance(operator, MovedOperator):
        checkpoints = plan.source.storage
        next_epoch = plan.epoch + 1
        made = move_state(
            spark, operator, checkpoints, checkpoints, query_id, next_epoch, in_place=True
        )
    elif isinstance(operator, CopiedOperator):
        made = list(operator.handles)
    return [
        msgspec.structs.replace(
            handle,
            epoch=plan.epoch,
            pending=None,  # nobody uploads it any more
            predecessors=(),
            time_mode=operator.wanted.time_mode,
        )
        for handle in made
    ]


def _write_offsets(location: Storage, staged: Storage, plan: RestorePlan, kept: str) -> list[str]:
    """Write the offsets of the epoch, of those before and after it, with the new parallelism.

    Spark continues from the newest entry, and reads the one before it too. Returns the names of
    those that replace others.
    """
    log, epoch, parallelism = SparkLog(location), plan.epoch, plan.started[0].wanted.parallelism
    last = log.offsets_entry(epoch)
    times = {
        "batchWatermarkMs": plan.watermark_ms,
        "batchTimestampMs": max(now_ms(), int(last.metadata.get("batchTimestampMs", 0))),
    }
    following = replace(last, metadata={**last.metadata, **times}).with_conf(parallelism, kept)
    staged.write(f"offsets/{epoch + 1}", [following.text().encode()])
    names = [name for n in (epoch - 1, epoch) if location.exists(name := f"offsets/{n}")]
    for name in names:
        entry = log.offsets_entry(int(name.rpartition("/")[2]))
        staged.write(name, [entry.with_conf(parallelism).text().encode()])
    return names
