"""Makes the runner of a query's checkpoints, which gathers them with Spark.

An epoch's number alone does not say what is in the epoch. Spark does not sync its own files: after
a power loss it runs epochs again, with other input. Therefore a checkpoint is compared with the
offsets that the location has.
"""

from __future__ import annotations

import json

from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint.cleaning import CleaningHold
from pyspark_ckpt.checkpoint.contents import Gathering, metadata_at_end
from pyspark_ckpt.checkpoint.machine import Subtask
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.settings import Settings
from pyspark_ckpt.spark.log import Sources, SparkLog
from pyspark_ckpt.spark.plan import StatefulOperators
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.storage.retrying import retried
from pyspark_ckpt.stores.base import CompletedCheckpointStore


def runner_of(
    spark: SparkSession,
    files: QueryFiles,
    storage: Storage,
    settings: Settings,
    store: CompletedCheckpointStore | None = None,
    hold: CleaningHold | None = None,
) -> CheckpointRunner:
    """Return the runner of a query, with the store and the hold if the caller has them."""
    gathering = Gathering(spark, files.through(storage))
    subtasks = frozenset(
        Subtask(operator.uid, number)
        for operator in files.operators.descriptors
        for number in range(operator.parallelism)
    )
    return CheckpointRunner(
        files.query_id,
        subtasks,
        storage,
        settings,
        gathering.gather,
        gathering.cancel,
        files.copy_names.renew,
        lambda metadata: retried(lambda: is_present(files.spark_log, metadata)),
        files.spark_state_copies.forget,
        store,
        hold,
    )


def is_present(log: SparkLog, metadata: CheckpointMetadata) -> bool:
    """Return whether a location has committed a checkpoint's epoch, with the same input."""
    sources = Sources(metadata.source_ids, metadata.source_names)
    try:
        if not log.is_committed(metadata.epoch):
            return log.is_purged(metadata.epoch)
        entry = log.offsets_entry(metadata.epoch).in_order(sources).text()
        return _input(entry) == _input(metadata.offsets_entry)
    except (CkptError, ValueError):
        return False


def _input(entry: str) -> tuple[object, list[str]]:
    """Return an epoch's times and offsets; a restart in place changes the conf next to them."""
    _, fields, *offsets = entry.split("\n")
    return {**json.loads(fields), "conf": None}, offsets


def is_of_operators(metadata: CheckpointMetadata, operators: StatefulOperators) -> bool:
    """Return whether a checkpoint has the handles of these operators and subtasks.

    A restart in place gives an epoch other ones. A checkpoint that was taken before it is of the
    same epoch, if the query has been idle since.
    """
    stored = {
        each.operator_id: (each.uid, each.parallelism, each.max_parallelism, each.time_mode)
        for each in metadata.operators
    }
    return stored == {
        operator_id: (each.uid, each.parallelism, each.max_parallelism, each.time_mode)
        for operator_id, each in operators.ours.items()
    }


def last_metadata(
    runner: CheckpointRunner, spark: SparkSession, files: QueryFiles, epoch: int
) -> tuple[str, CheckpointMetadata]:
    """Return path and metadata of a checkpoint of a stopped query's last epoch.

    The checkpoint may be stored or not. All its files are in the checkpoints directory.
    """
    newest = runner.newest()
    if newest is not None and newest.epoch == epoch and runner.covers(epoch):
        metadata = runner.metadata_of(newest.checkpoint_id)
        if metadata is not None and is_of_operators(metadata, files.operators):
            return newest.path, metadata
    number = runner.last_id() + 1
    return runner.path(number), metadata_at_end(spark, files, epoch, number)
