"""Makes the runner of a query's checkpoints, which gathers them with Spark."""

from __future__ import annotations

from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint.contents import Gathering, metadata_at_end
from pyspark_ckpt.checkpoint.machine import Subtask
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.settings import Settings
from pyspark_ckpt.storage.open import Storage


def runner_of(
    spark: SparkSession, files: QueryFiles, storage: Storage, settings: Settings
) -> CheckpointRunner:
    """Return the runner of a query.

    Parameters
    ----------
    spark
        A session that only reads.
    files
        The query's directories and operators.
    storage
        Its checkpoints directory, as the runner shall use it.
    settings
        Its settings.

    Raises
    ------
    OSError
        If the checkpoints directory cannot be read.
    """
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
    )


def last_metadata(
    runner: CheckpointRunner, spark: SparkSession, files: QueryFiles, epoch: int
) -> tuple[str, CheckpointMetadata]:
    """Return path and metadata of a checkpoint of a stopped query's last epoch.

    The checkpoint may be stored or not. All its files are in the checkpoints directory.

    Raises
    ------
    CheckpointAbortedError, CorruptFileError
        If a part of the epoch is missing.
    """
    newest = runner.newest()
    if newest is not None and newest.epoch == epoch:
        metadata = runner.metadata_of(newest.checkpoint_id)
        if metadata is not None:
            return newest.path, metadata
    number = runner.last_id() + 1
    return runner.path(number), metadata_at_end(spark, files, epoch, number)
