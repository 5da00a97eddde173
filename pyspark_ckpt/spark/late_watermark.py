"""The watermark by which Spark tells late rows: the operator's own, in the epoch before.

A task knows only the operator's watermark of its own epoch. Spark keeps the query's watermark of
each epoch in ``offsets/``. What comes before the operator, such as a join of streams, may hold the
watermark back, always by the same time.

If all operators of a query have one watermark, Spark tells late rows by that of the epoch itself.
"""

from __future__ import annotations

from functools import lru_cache

from pyspark_ckpt.errors import CkptError, ConfigurationError
from pyspark_ckpt.operator.descriptor import Runtime
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage.open import open_storage
from pyspark_ckpt.storage.retrying import RetryingStorage


def late_watermark_ms(runtime: Runtime, epoch: int, watermark_ms: int) -> int:
    """Return the time that late rows of an epoch are not after; called in a task.

    `watermark_ms` is the operator's watermark in this epoch.
    """
    if epoch == 0:
        return 0
    before_ms, now_ms = _watermarks_ms(runtime.run, runtime.checkpoint_location, epoch)
    held_back_ms = now_ms - watermark_ms
    return max(before_ms - held_back_ms, 0)


@lru_cache(maxsize=4)
def _watermarks_ms(run: str, location: str, epoch: int) -> tuple[int, int]:
    """Return the query's watermarks of the epoch before and of an epoch, read once in a process.

    A restart in place replaces entries, so the run is part of what is remembered.
    """
    del run
    try:
        log = SparkLog(RetryingStorage(open_storage(location)))
        return log.offsets_entry(epoch - 1).watermark_ms, log.offsets_entry(epoch).watermark_ms
    except (CkptError, OSError) as exc:
        raise ConfigurationError(
            f"epoch {epoch}: {exc}. Tasks read offsets/ in {location}, because the processor gets "
            "late rows: let the executors' Python read the checkpointLocation, as it does the "
            "directory of checkpoints, or remove the method for late rows"
        ) from exc
