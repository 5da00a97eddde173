"""The ``foreachBatch`` function, called so that all its actions know their epoch."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from pyspark_ckpt.checkpoint.spark_log import SparkLog
from pyspark_ckpt.configuration import EPOCH_KEY, RUNTIME_KEY
from pyspark_ckpt.on_disk.storage import open_local_storage
from pyspark_ckpt.operator.descriptor import (
    AnnouncedEpoch,
    Runtime,
    decode_runtime,
    encode_announced,
)


class EpochFunction:
    """A user's ``foreachBatch`` function; announces its epoch to the tasks while it runs.

    An action reaches its tasks with the conf of its DataFrame's session, from any thread. That
    session is the query's own. An action of the RDD has no session, so the thread that calls the
    function has the epoch as a local property too.

    Parameters
    ----------
    function
        As given to ``foreachBatch``.
    """

    def __init__(self, function: Callable[[DataFrame, int], None]) -> None:
        self._function = function

    def __call__(self, df: DataFrame, epoch: int) -> None:
        """Call the function; a task that starts after it is refused."""
        session = df.sparkSession
        runtime = decode_runtime(session.conf.get(RUNTIME_KEY, None), "foreachBatch")
        announced = encode_announced(AnnouncedEpoch(epoch, _timestamp_ms(runtime, epoch)))
        _announce(session, announced)
        try:
            self._function(df, epoch)
        finally:
            _announce(session, None)


def _timestamp_ms(runtime: Runtime, epoch: int) -> int:
    """Return the batch timestamp that Spark wrote down before it began the epoch."""
    log = SparkLog(open_local_storage(runtime.checkpoint_location))
    return int(log.offsets_entry(epoch).metadata["batchTimestampMs"])


def _announce(session: SparkSession, text: str | None) -> None:
    if text is None:
        session.conf.unset(EPOCH_KEY)
    else:
        session.conf.set(EPOCH_KEY, text)
    session.sparkContext.setLocalProperty(EPOCH_KEY, text)  # type: ignore[arg-type]  # None: unset
